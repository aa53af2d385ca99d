"""An object with NVML's interface that gives values written down before.

Names, signatures and constants are those of nvidia-ml-py 13.615 (checked against it where it is
installed). The values of `HEALTHY` are those of an H100 as NVIDIA's documentation prints them,
those of `H200_IDLE` and `H200_BUSY` were read from one that computed (driver 580.159.04).
"""

from collections import deque
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """As the library raises it, with the code in `value`."""

    def __init__(self, value: int, text: str = "") -> None:
        super().__init__(text)
        self.value = value


NOT_SUPPORTED = NVMLError(3, "Not Supported")
TIMEOUT = NVMLError(10, "Timeout")
LOST = NVMLError(15, "GPU is lost")

ALL_LINKS = 0xFFFFFFFF
VALUES = {1: "uiVal", 2: "ulVal", 3: "ullVal"}  # member of the union, by type

HEALTHY: dict[str, Any] = {
    "pci": "00000000:3B:00.0",
    "nvmlDeviceGetTemperature": 41,
    "nvmlDeviceGetTemperatureThreshold": 87,
    "nvmlDeviceGetCurrentClocksThrottleReasons": 0x1,  # idle
    "nvmlDeviceGetUUID": "GPU-9a1c2f64-0d3e-5b7a-8c21-4f6e7d8a9b0c",
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=97, memory=60),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=70 << 30, total=80 << 30),
    "nvmlDeviceGetPowerUsage": 690_000,
    "nvmlDeviceGetTotalEnergyConsumption": 5_000_000,
    "nvmlDeviceGetTotalEccErrors": 0,
    "nvmlDeviceGetRemappedRows": (0, 0, 0, 0),
    "nvmlDeviceGetCurrPcieLinkWidth": 16,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetCurrPcieLinkGeneration": 5,
    "nvmlDeviceGetPcieThroughput": [14_000_000, 2_000],  # sent and received, KiB/s
    "recovery": 0,
    "links": 18,
    "fields": {
        (138, ALL_LINKS): (3, 2_000_000), (139, ALL_LINKS): (3, 1_000_000),  # KiB
        (38, 0): (3, 5), (45, 0): (3, 0), (52, 0): (3, 2), (59, 0): (3, 1), (160, 0): (3, 0),
        (197, 0): (1, 4_292_536_280), (198, 0): (1, 2_295_671_580), (94, 0): (1, 4),
    },
}  # fmt: skip
"""`fields`: by number and scope, which type of value it is, and the value."""

H200_IDLE: dict[str, Any] = {
    "pci": "00000000:00:06.0",
    "nvmlDeviceGetTemperature": 36,
    "nvmlDeviceGetTemperatureThreshold": 89,
    "nvmlDeviceGetCurrentClocksThrottleReasons": 0x0,
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=0, memory=0),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=644_939_776, total=150_754_820_096),
    "nvmlDeviceGetPowerUsage": 127_014,
    "nvmlDeviceGetTotalEnergyConsumption": 15_824_772,
    "links": 0,
    "fields": {
        (197, 0): (3, 4_292_536_280), (198, 0): (3, 2_295_671_580), (94, 0): (1, 0),
    },
}  # fmt: skip
H200_BUSY: dict[str, Any] = {
    **H200_IDLE,
    "nvmlDeviceGetTemperature": 58,
    "nvmlDeviceGetCurrentClocksThrottleReasons": 0x4,  # power cap
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=100, memory=22),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=1_704_853_504, total=150_754_820_096),
    "nvmlDeviceGetPowerUsage": 688_457,
    "nvmlDeviceGetTotalEnergyConsumption": 18_112_168,
    "fields": {
        (197, 0): (3, 36_061_028), (198, 0): (3, 2_354_053_436), (94, 0): (1, 0),
    },
}  # fmt: skip


class RecordedNvml:
    """GPUs by what is known of each; change `gpus` to have something happen. Of a list, the
    function's second argument says which is meant."""

    NVMLError = NVMLError
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_TEMPERATURE_GPU = 0
    NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 1
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX = 138
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 139
    NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL = 38
    NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL = 45
    NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL = 52
    NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL = 59
    NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL = 160
    NVML_FI_DEV_PCIE_COUNT_TX_BYTES = 197  # of 32 bits
    NVML_FI_DEV_PCIE_COUNT_RX_BYTES = 198
    NVML_PCIE_UTIL_TX_BYTES = 0
    NVML_PCIE_UTIL_RX_BYTES = 1
    NVML_FI_DEV_PCIE_REPLAY_COUNTER = 94
    NVML_VALUE_TYPE_UNSIGNED_INT = 1
    NVML_VALUE_TYPE_UNSIGNED_LONG = 2
    NVML_VALUE_TYPE_UNSIGNED_LONG_LONG = 3
    NVML_MEMORY_ERROR_TYPE_CORRECTED = 0
    nvmlEventTypeXidCriticalError = 8  # noqa: N815

    def __init__(self, *gpus: dict[str, Any]) -> None:
        self.gpus = [dict(HEALTHY, **gpu) for gpu in gpus]
        self.events: deque[Any] = deque()
        self.registered = 0

    def __getattr__(self, name: str) -> Any:
        """Every other function reads one value of one GPU; an error stands for itself."""
        if not name.startswith("nvmlDeviceGet"):
            raise AttributeError(name)

        def get(handle: int, which: Any = 0, *_: Any) -> Any:
            value = self.gpus[handle].get("all", self.gpus[handle].get(name, NOT_SUPPORTED))
            if isinstance(value, NVMLError):
                raise value
            return value[which] if isinstance(value, list) else value

        return get

    def nvmlInit(self) -> None:  # noqa: N802 - the library's name
        """Nothing to do."""

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        """How many there are."""
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        """Its place."""
        return index

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:  # noqa: N802
        """Its address."""
        return SimpleNamespace(busId=self.gpus[handle]["pci"])

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:  # noqa: N802
        """Whether a link is active; those that a GPU does not have are not supported."""
        if self.gpus[handle]["links"] is None:
            raise NOT_SUPPORTED
        return int(link < self.gpus[handle]["links"])

    def nvmlDeviceGetFieldValues(self, handle: int, asked: list[Any]) -> list[Any]:  # noqa: N802
        """The recovery action, or counters; 3 says that the driver is too old to know."""
        gpu = self.gpus[handle]
        known = {self.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: (1, gpu["recovery"])}
        return [_field((known | gpu.get("fields", {})).get(one)) for one in asked]

    def nvmlEventSetCreate(self) -> str:  # noqa: N802
        """Where events are waited for."""
        return "events"

    def nvmlDeviceRegisterEvents(self, _handle: int, kinds: int, _set: str) -> None:  # noqa: N802
        """Only XIDs."""
        assert kinds == self.nvmlEventTypeXidCriticalError
        self.registered += 1

    def nvmlEventSetWait_v2(self, _set: str, _timeout_ms: int) -> Any:  # noqa: N802
        """The next event, if there is one."""
        if not self.events:
            raise TIMEOUT
        return self.events.popleft()

    def xid(self, handle: int, number: int) -> None:
        """The driver tells of one."""
        self.events.append(SimpleNamespace(device=handle, eventData=number))


def _field(found: tuple[int, int | None] | None) -> Any:
    """With the value in the member that its type says, and nothing in the others."""
    if found is None or found[1] is None:
        return SimpleNamespace(nvmlReturn=3)
    members = {**dict.fromkeys(VALUES.values(), 0), VALUES[found[0]]: found[1]}
    return SimpleNamespace(nvmlReturn=0, valueType=found[0], value=SimpleNamespace(**members))
