"""GPUs as NVML shows them: what they ask for is told, what they do not support is left out."""

import importlib.util
from pathlib import Path

import pytest

from holdfast.agent.figures import add_readings
from holdfast.agent.health import gpus
from holdfast.agent.health.gpus import Gpus
from holdfast.agent.health.provider import Missing
from holdfast.detection.health import Conditions
from holdfast.events import Severity
from holdfast.scrape import Exposition
from tests.agent.health.recorded import HEALTHY, LOST, NOT_SUPPORTED, NVMLError, RecordedNvml

GPU = "0000:3b:00"


class Watched:
    """GPUs and what is told of them, a look each minute."""

    def __init__(self, nvml: RecordedNvml) -> None:
        self.provider, self.conditions, self.now = Gpus(lambda: nvml), Conditions("n"), 0.0

    def look(self, after_s: float = 60.0) -> list[tuple[str, Severity]]:
        self.now += after_s
        found = self.conditions.hear(self.provider.read(), self.now)
        return [(change.condition, change.severity) for change in found]


def test_a_healthy_gpu_tells_nothing_and_shows_how_it_is() -> None:
    nvml = RecordedNvml({}, {"pci": b"00000000:5E:00.0"})
    watched = Watched(nvml)
    assert [watched.look() for _ in range(3)] == [[], [], []]
    texts = {r.text for r in watched.provider.read() if r.device == GPU}
    assert {"41 °C", "PCIe 5, 16 of 16 lanes", "18 of 18 are active"} <= texts
    assert nvml.registered == 2


def test_a_gpu_that_is_lost_is_told_and_the_others_are_still_read() -> None:
    nvml = RecordedNvml({}, {"pci": "00000000:5E:00.0"})
    watched = Watched(nvml)
    assert watched.look() == []
    nvml.gpus[0]["all"] = LOST
    assert watched.look() == [("gpu-lost", Severity.FATAL)]
    nvml.gpus[1]["nvmlDeviceGetRemappedRows"] = (0, 1, 1, 0)
    assert watched.look() == [("gpu-remap-pending", Severity.WARN)]


@pytest.mark.parametrize(
    ("what", "value", "condition", "severity"),
    [
        ("nvmlDeviceGetRemappedRows", (3, 2, 0, 1), "gpu-remap-failed", Severity.FATAL),
        ("recovery", 1, "gpu-reset-needed", Severity.FATAL),
        ("recovery", 2, "gpu-reset-needed", Severity.FATAL),
        ("nvmlDeviceGetTotalEccErrors", 4, "gpu-ecc", Severity.WARN),
        ("nvmlDeviceGetTemperature", 91, "gpu-hot", Severity.WARN),
        ("nvmlDeviceGetCurrentClocksThrottleReasons", 0x48, "gpu-throttled", Severity.WARN),
        ("nvmlDeviceGetCurrPcieLinkWidth", 8, "gpu-pcie", Severity.WARN),
        ("links", 16, "gpu-nvlink", Severity.ALERT),
    ],
)
def test_what_goes_wrong_with_a_gpu_is_told_once(
    what: str, value: object, condition: str, severity: Severity
) -> None:
    nvml = RecordedNvml({})
    watched = Watched(nvml)
    watched.look()
    nvml.gpus[0][what] = value
    told = watched.look() + watched.look() + watched.look()
    assert told == [(condition, severity)]


def test_a_gpu_that_saves_power_or_was_asked_to_be_slow_is_not_told() -> None:
    nvml = RecordedNvml({})
    watched = Watched(nvml)
    for reasons in (0x1, 0x2, 0x4, 0x100):  # idle, application clocks, power cap, display clocks
        nvml.gpus[0]["nvmlDeviceGetCurrentClocksThrottleReasons"] = reasons
        assert watched.look() + watched.look() == []


def test_what_links_and_memory_have_done_is_counted_in_base_units() -> None:
    nvml = RecordedNvml({"nvmlDeviceGetCurrentClocksThrottleReasons": 0x44})
    found = {(r.kind, r.device): r.value for r in Gpus(lambda: nvml).read()}
    assert found["gpu-nvlink-sent", GPU] == 2_000_000 * 1024
    assert found["gpu-nvlink-received", GPU] == 1_000_000 * 1024
    of_links = {k: v for k, v in found.items() if k[0] in ("gpu-nvlink-errors", "gpu-nvlink-crc")}
    kinds = {device.split()[1]: count for (_, device), count in of_links.items()}
    assert kinds == {"crc-flit": 5, "crc-data": 0, "replay": 2, "recovery": 1, "ecc-data": 0}
    assert {k for k in found if k[0] == "gpu-nvlink-crc"} == {
        ("gpu-nvlink-crc", f"{GPU} crc-{of}") for of in ("flit", "data")
    }
    assert found["gpu-pcie-sent", GPU] == 14_000_000 * 1024
    assert found["gpu-pcie-received", GPU] == 2_000 * 1024
    assert found["gpu-pcie-replays", GPU] == 4, "it is of another type than the others"
    assert found["gpu-memory-total", GPU] == 80 << 30
    slow = {d.split()[1] for (kind, d), v in found.items() if kind == "gpu-slow-clocks" and v}
    assert slow == {"power-cap", "hardware-thermal-slowdown"}
    assert ("gpu-info", f"{GPU} {HEALTHY['nvmlDeviceGetUUID']}") in found


def test_fields_that_a_gpu_lacks_are_left_out_and_the_others_are_read() -> None:
    fields = {key: value for key, value in HEALTHY["fields"].items() if key[0] != 138}
    lacks = {"fields": fields, "nvmlDeviceGetPcieThroughput": NOT_SUPPORTED}
    kinds = {r.kind for r in Gpus(lambda: RecordedNvml(lacks)).read()}
    assert "gpu-nvlink-received" in kinds and "gpu-nvlink-sent" not in kinds
    assert "gpu-pcie-replays" in kinds and "gpu-pcie-sent" not in kinds


def test_what_is_served_as_a_counter_never_falls_though_those_of_pcie_wrap() -> None:
    """As an H200 was read twice, some seconds apart: it counts bytes of PCIe in 32 bits."""
    nvml = RecordedNvml({})
    provider = Gpus(lambda: nvml)

    def served() -> dict[str, float]:
        found = Exposition({"node": "n"})
        add_readings(found, provider.read(), {})
        lines = [line.rpartition(" ") for line in found.page().body.decode().splitlines()]
        return {name: float(value) for name, _, value in lines if not name.startswith("#")}

    before = served()
    fields = nvml.gpus[0]["fields"]
    nvml.gpus[0]["fields"] = fields | {(197, 0): (1, 36_061_028), (198, 0): (1, 2_354_053_436)}
    after = served()
    counters = {name for name in before if "_total{" in name}
    assert len(counters) > 8 and before.keys() == after.keys()
    assert all(after[name] >= before[name] for name in counters)
    assert not any("pcie" in name and "bytes_total" in name for name in counters)


def test_where_no_energy_is_counted_power_is_integrated() -> None:
    nvml = RecordedNvml({"nvmlDeviceGetTotalEnergyConsumption": NOT_SUPPORTED})
    now = iter((100.0, 105.0, 115.0))
    provider = Gpus(lambda: nvml, lambda: next(now))

    def joules() -> float:
        return next(r.value for r in provider.read() if r.kind == "gpu-energy")

    assert joules() == 0.0
    nvml.gpus[0]["nvmlDeviceGetPowerUsage"] = 490_000
    assert joules() == pytest.approx((690 + 490) / 2 * 5)
    assert joules() == pytest.approx((690 + 490) / 2 * 5 + 490 * 10)


def test_xids_are_heard_from_the_library_where_the_kernel_log_cannot_be_read() -> None:
    nvml = RecordedNvml({})
    watched = Watched(nvml)
    watched.look()
    nvml.xid(0, 45)
    nvml.xid(0, 79)
    assert watched.look() == [("xid-79", Severity.FATAL)]


def test_an_old_gpu_that_supports_next_to_nothing_is_read_all_the_same() -> None:
    least = {"nvmlDeviceGetTemperature": 60, "links": None, "recovery": None}
    nvml = RecordedNvml({})
    nvml.gpus[0] = {"pci": "0000:01:00.0", **least}
    watched = Watched(nvml)
    assert watched.look() == []
    assert {r.text for r in watched.provider.read()} == {"60 °C", ""}
    nvml.gpus[0]["nvmlDeviceGetTemperature"] = NOT_SUPPORTED
    assert watched.look() == [], "not supported is not lost"


def test_a_driver_that_does_not_start_is_a_trouble_that_may_pass() -> None:
    nvml = RecordedNvml({})

    def init() -> None:
        raise NVMLError(9, "Driver Not Loaded")

    provider = Gpus(lambda: nvml)
    nvml.nvmlInit = init  # type: ignore[method-assign]
    with pytest.raises(OSError, match="Driver Not Loaded"):
        provider.read()
    del nvml.nvmlInit
    assert provider.read()


def test_without_a_driver_or_its_library_it_is_said_what_is_missing(tmp_path: Path) -> None:
    found = gpus.find(tmp_path)
    assert isinstance(found, Missing) and "nvidiactl" in found.why
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    found = gpus.find(tmp_path)
    installed = importlib.util.find_spec("pynvml") is not None
    assert isinstance(found, Gpus if installed else Missing)
    if isinstance(found, Missing):
        assert "holdfast[gpu]" in found.why


def test_the_recorded_library_has_the_names_of_the_real_one() -> None:
    real = pytest.importorskip("pynvml")
    names = [name for name in dir(RecordedNvml) if name.startswith(("nvml", "NVML"))]
    names += [name for name in HEALTHY if name.startswith("nvml")]
    assert [name for name in names if not hasattr(real, name)] == []
    constants = [name for name in names if isinstance(getattr(RecordedNvml, name, None), int)]
    assert {n: getattr(real, n) for n in constants} == {
        n: getattr(RecordedNvml, n) for n in constants
    }
