"""NVIDIA's GPUs, as the driver's management library (NVML) shows them.

The library is asked through `nvidia-ml-py`, an optional dependency, which is imported at the first
look and in the thread of that look: a driver in trouble may not answer. `Nvml` is any object with
that module's functions and constants, so that what was read once can be read again without a GPU.
What a GPU or driver does not support is left out.
"""

import contextlib
import importlib
import importlib.util
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.agent.health.provider import EVERY_S, Missing
from holdfast.detection import xid
from holdfast.detection.health import GPU, XID, Reading

Nvml = Any  # the module pynvml has no types

DEVICE = "dev/nvidiactl"
EVENTS_MAX = 64  # at one look
LINKS_MAX = 18
SLOWED = {  # bits of the reasons why clocks are low, which say that the GPU protects itself
    0x8: "HW Slowdown",
    0x20: "SW Thermal Slowdown",
    0x40: "HW Thermal Slowdown",
    0x80: "HW Power Brake Slowdown",
}
REASONS = {
    **SLOWED,
    0x2: "Applications Clocks Setting",
    0x4: "SW Power Cap",
    0x10: "Sync Boost",
    0x100: "Display Clock Setting",
}
"""All but that it is idle, as `nvidia-smi -q` names them."""
LABELS = {  # of the metric, which keeps them
    0x8: "hardware-slowdown",
    0x20: "software-thermal-slowdown",
    0x40: "hardware-thermal-slowdown",
    0x80: "power-brake",
    0x2: "application-clocks",
    0x4: "power-cap",
    0x10: "sync-boost",
    0x100: "display-clocks",
}
ALL_LINKS = 0xFFFFFFFF  # scope of a field: all NVLinks of the GPU together
KIB, GIB = 1 << 10, 1 << 30


class FieldReading(NamedTuple):
    """A counter that NVML has as a field."""

    kind: str
    field: str  # name of its number
    words: str  # what it counts, for people
    of: str = ""  # which of them, where several are one kind
    factor: int = 1
    all_links: bool = False

    def text(self, count: int) -> str:
        """So many of them, or billions where these are GB."""
        number = f"{count / 1e9:,.1f}" if self.words.startswith("GB ") else f"{count:,}"
        return f"{number} {self.words}"


COUNTERS = (
    FieldReading(
        "gpu-nvlink-sent", "NVLINK_THROUGHPUT_DATA_TX", "GB sent over NVLink", "", KIB, True
    ),
    FieldReading(
        "gpu-nvlink-received", "NVLINK_THROUGHPUT_DATA_RX", "GB received over NVLink", "", KIB, True
    ),
    FieldReading(
        "gpu-nvlink-crc",
        "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        "CRC errors of flits on NVLink",
        "crc-flit",
    ),
    FieldReading(
        "gpu-nvlink-crc",
        "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
        "CRC errors of data on NVLink",
        "crc-data",
    ),
    FieldReading(
        "gpu-nvlink-errors", "NVLINK_REPLAY_ERROR_COUNT_TOTAL", "replay errors on NVLink", "replay"
    ),
    FieldReading(
        "gpu-nvlink-errors",
        "NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
        "recovery errors on NVLink",
        "recovery",
    ),
    FieldReading(
        "gpu-nvlink-errors",
        "NVLINK_ECC_DATA_ERROR_COUNT_TOTAL",
        "ECC errors of data on NVLink",
        "ecc-data",
    ),
    FieldReading("gpu-pcie-replays", "PCIE_REPLAY_COUNTER", "replays on PCIe"),
)


class Gpus:
    """All that NVML shows. Those that were there at the first look are expected at each other."""

    name = "GPUs"
    stalled = Reading("gpu-silent")
    every_s = EVERY_S

    def __init__(
        self, load: Callable[[], Nvml], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._load, self._clock = load, clock
        self._energy: dict[str, PowerIntegral] = {}  # of GPUs that do not count it
        self._nvml: Nvml = None
        self._handles: dict[str, Any] = {}  # PCI address → handle
        self._events: Any = None
        self._links: dict[str, int] = {}  # active at first

    def read(self) -> list[Reading]:
        """One look at each GPU. Raises `OSError` where the library or the driver is not usable."""
        if self._nvml is None:
            self._begin()
        found = [r for gpu, handle in self._handles.items() for r in self._gpu(gpu, handle)]
        return [*found, *self._xids()]

    def _begin(self) -> None:
        try:
            nvml = self._load()
            nvml.nvmlInit()
        except Exception as error:  # ImportError, or any of the library's own
            raise OSError(f"{type(error).__name__}: {error}") from error
        self._nvml = nvml
        count = nvml.nvmlDeviceGetCount()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        self._handles = {self._address(handle): handle for handle in handles}
        with contextlib.suppress(nvml.NVMLError):
            self._events = nvml.nvmlEventSetCreate()
            for handle in handles:
                kind = nvml.nvmlEventTypeXidCriticalError
                nvml.nvmlDeviceRegisterEvents(handle, kind, self._events)

    def _address(self, handle: Any) -> str:
        bus = self._nvml.nvmlDeviceGetPciInfo(handle).busId
        return xid.address_of(bus.decode() if isinstance(bus, bytes) else bus)

    def _gpu(self, gpu: str, handle: Any) -> Iterator[Reading]:
        nvml = self._nvml
        try:
            degrees = nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
        except nvml.NVMLError as error:
            lost = error.value == nvml.NVML_ERROR_GPU_IS_LOST
            yield Reading("gpu-lost", float(lost), gpu, str(error))
            return
        yield Reading(GPU, float(degrees), gpu, f"{degrees} °C")
        yield Reading("gpu-lost", 0.0, gpu)
        for look in (_identity, _heat, _use, _clocks, _ecc, _corrected, _remapping, _pcie):
            with contextlib.suppress(nvml.NVMLError):
                yield from look(nvml, gpu, handle, degrees)
        for look in (_recovery, _counters, _pcie_rates):
            with contextlib.suppress(nvml.NVMLError):
                yield from look(nvml, gpu, handle, degrees)
        with contextlib.suppress(nvml.NVMLError):
            yield from self._power(gpu, handle)
        active = self._active_links(handle)
        first = self._links.setdefault(gpu, active)
        if first:
            text = f"{active} of {first} are active"
            yield Reading("gpu-nvlink", float(first - active), gpu, text)

    def _power(self, gpu: str, handle: Any) -> Iterator[Reading]:
        """NVML counts in milliwatts and, since the driver was loaded, in millijoules. Where it does
        not count energy, power is integrated since the first look."""
        watts = self._nvml.nvmlDeviceGetPowerUsage(handle) / 1000
        yield Reading("gpu-power", watts, gpu, f"{watts:.0f} W")
        try:
            joules = self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000
        except self._nvml.NVMLError:
            joules = self._energy.setdefault(gpu, PowerIntegral()).add(watts, self._clock())
        yield Reading("gpu-energy", joules, gpu, f"{joules:,.0f} J so far")

    def _active_links(self, handle: Any) -> int:
        count = 0
        for link in range(LINKS_MAX):
            with contextlib.suppress(self._nvml.NVMLError):
                count += bool(self._nvml.nvmlDeviceGetNvLinkState(handle, link))
        return count

    def _xids(self) -> list[Reading]:
        """Those that were told since the last look."""
        found: list[Reading] = []
        for _ in range(EVENTS_MAX if self._events is not None else 0):
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except self._nvml.NVMLError:  # none left
                break
            found.append(Reading(XID, float(event.eventData), self._address(event.device)))
        return found


def _heat(nvml: Nvml, gpu: str, handle: Any, degrees: int) -> Iterator[Reading]:
    """Above the temperature at which the GPU slows itself down."""
    limit = nvml.nvmlDeviceGetTemperatureThreshold(handle, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
    if limit > 0:
        text = f"{degrees} °C, slows down at {limit} °C"
        yield Reading("gpu-hot", float(degrees - limit), gpu, text)


def _use(nvml: Nvml, gpu: str, handle: Any, _degrees: int) -> Iterator[Reading]:
    """Of the time since NVML's last sample; and the memory that is in use."""
    share, memory = nvml.nvmlDeviceGetUtilizationRates(handle), nvml.nvmlDeviceGetMemoryInfo
    yield Reading("gpu-utilization", float(share.gpu), gpu, f"busy {share.gpu} %")
    moves = f"memory busy {share.memory} %"
    yield Reading("gpu-memory-utilization", float(share.memory), gpu, moves)
    info = memory(handle)
    used, total = info.used / GIB, info.total / GIB
    yield Reading("gpu-memory-used", float(info.used), gpu, f"{used:.1f} GiB used")
    yield Reading("gpu-memory-total", float(info.total), gpu, f"{total:.1f} GiB of memory")


class PowerIntegral:
    """Energy of what tells only its power: each stretch between two looks at their mean."""

    def __init__(self) -> None:
        self._joules = 0.0
        self._last: tuple[float, float] | None = None  # watts, and when

    def add(self, watts: float, now: float) -> float:
        """Joules since the first look."""
        if self._last is not None:
            before, then = self._last
            self._joules += (before + watts) / 2 * max(0.0, now - then)
        self._last = watts, now
        return self._joules


def _identity(nvml: Nvml, gpu: str, handle: Any, _degrees: int) -> Iterator[Reading]:
    """What other exporters call it."""
    uuid = nvml.nvmlDeviceGetUUID(handle)
    name = uuid.decode() if isinstance(uuid, bytes) else uuid
    yield Reading("gpu-info", 1.0, f"{gpu} {name}", name)


def _counters(nvml: Nvml, gpu: str, handle: Any, _degrees: int) -> Iterator[Reading]:
    """What NVLink has moved, and errors of NVLink and PCIe; those that this GPU has."""
    numbers = [getattr(nvml, f"NVML_FI_DEV_{one.field}", None) for one in COUNTERS]
    known = [(one, n) for one, n in zip(COUNTERS, numbers, strict=True) if n is not None]
    asked = [(n, ALL_LINKS if one.all_links else 0) for one, n in known]
    values = nvml.nvmlDeviceGetFieldValues(handle, asked)
    for (one, _), found in zip(known, values, strict=True):
        if found.nvmlReturn == 0:
            count = _number_in(nvml, found) * one.factor
            device = f"{gpu} {one.of}" if one.of else gpu
            yield Reading(one.kind, float(count), device, one.text(count))


def _number_in(nvml: Nvml, found: Any) -> int:
    """A field says in which member of a union its value is."""
    members = {
        nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    }
    return int(getattr(found.value, members.get(found.valueType, "ullVal")))


def _clocks(nvml: Nvml, gpu: str, handle: Any, _degrees: int) -> Iterator[Reading]:
    bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    why = [words for bit, words in SLOWED.items() if bits & bit]
    yield Reading("gpu-throttled", float(bool(why)), gpu, ", ".join(why))
    for bit, words in REASONS.items():
        holds = bool(bits & bit)
        text = f"clocks are low: {words}" if holds else ""
        yield Reading("gpu-slow-clocks", float(holds), f"{gpu} {LABELS[bit]}", text)


def _ecc(nvml: Nvml, gpu: str, handle: Any, _degrees: int) -> Iterator[Reading]:
    """Since the driver was loaded."""
    count = nvml.nvmlDeviceGetTotalEccErrors(
        handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    )
    yield Reading("gpu-ecc", float(count), gpu, f"{count} uncorrectable ECC errors")


def _corrected(nvml: Nvml, gpu: str, handle: Any, _degrees: int) -> Iterator[Reading]:
    """Likewise."""
    count = nvml.nvmlDeviceGetTotalEccErrors(
        handle, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_VOLATILE_ECC
    )
    yield Reading("gpu-ecc-corrected", float(count), gpu, f"{count} corrected ECC errors")


def _remapping(nvml: Nvml, gpu: str, handle: Any, _degrees: int) -> Iterator[Reading]:
    corrected, uncorrected, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
    text = f"{corrected + uncorrected} rows remapped"
    yield Reading("gpu-remap-failed", float(failed), gpu, text)
    yield Reading("gpu-remap-pending", float(pending), gpu, text)


def _pcie(nvml: Nvml, gpu: str, handle: Any, _degrees: int) -> Iterator[Reading]:
    """The generation falls while the GPU is idle, to save power; the width does not."""
    width = nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)
    most = nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)
    generation = nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)
    text = f"PCIe {generation}, {width} of {most} lanes"
    yield Reading("gpu-pcie", float(most - width), gpu, text)


def _pcie_rates(nvml: Nvml, gpu: str, handle: Any, _degrees: int) -> Iterator[Reading]:
    """Bytes a second, which the driver measures for 20 ms. Its counters of bytes are of 32 bits: a
    busy GPU is through them in a tenth of a second, so that what two looks differ by means nothing.
    """
    ways = (("sent", nvml.NVML_PCIE_UTIL_TX_BYTES), ("received", nvml.NVML_PCIE_UTIL_RX_BYTES))
    for way, number in ways:
        rate = nvml.nvmlDeviceGetPcieThroughput(handle, number) * KIB
        yield Reading(f"gpu-pcie-{way}", float(rate), gpu, f"{rate / 1e9:.1f} GB/s {way} over PCIe")


def _recovery(nvml: Nvml, gpu: str, handle: Any, _degrees: int) -> Iterator[Reading]:
    """What the driver itself asks for: the state behind XID 154."""
    [field] = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    if field.nvmlReturn == 0:
        code = int(field.value.uiVal)
        remedy = xid.ACTIONS.get(code, xid.Remedy.UNKNOWN)
        fatal = xid.is_fatal(remedy)
        text = f"recovery action {code}: {remedy}" if code else ""
        yield Reading("gpu-reset-needed", float(fatal), gpu, text)


def find(root: Path) -> Gpus | Missing:
    """Where there is a driver and the package that talks to it. Neither is asked yet."""
    if not (root / DEVICE).exists():
        return Missing(Gpus.name, f"no NVIDIA driver: there is no {root / DEVICE}")
    if importlib.util.find_spec("pynvml") is None:
        return Missing(Gpus.name, "nvidia-ml-py is not installed: pip install 'holdfast[gpu]'")
    return Gpus(lambda: importlib.import_module("pynvml"))
