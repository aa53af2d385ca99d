"""The doctor shows what can be read of a machine, and is alarmed by what will not pass."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agent.health.gpus import Gpus
from holdfast.agent.health.network import Interfaces
from holdfast.cli import doctor_health
from holdfast.cli.doctor_health import HealthCheck, checks
from holdfast.detection.health import Reading
from tests.agent.health.recorded import H200_BUSY, H200_IDLE, RecordedNvml
from tests.metadata_service import SPOT, MetadataStub, spot_action


def recorded(monkeypatch: pytest.MonkeyPatch, root: Path, log: str) -> dict[str, HealthCheck]:
    (root / "dev").mkdir(exist_ok=True)
    (root / "dev/kmsg").write_text(log)
    monkeypatch.setenv("HOLDFAST_HEALTH_ROOT", str(root))
    return {check.name: check for check in checks(root)}


def test_each_provider_is_listed_with_what_it_reads_or_why_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = recorded(monkeypatch, tmp_path, "")
    assert all(check.ok for check in found.values())
    assert "GiB free" in found[f"health of folder {tmp_path}"].found
    assert found["health of GPUs"].found.startswith("not watched: no NVIDIA driver")
    assert found["health of kernel log"].found == "readable; no fault reported"


def test_faults_that_the_kernel_log_still_holds_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    xid = "3,1,1,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    oom = "3,2,2,-;Out of memory: Killed process 4711 (python) total-vm:1kB\n"
    found = recorded(monkeypatch, tmp_path, f"6,0,0,-;Linux version\n{oom}{xid}{oom}")
    assert found["health of kernel log"].found == (
        "readable; it reports out-of-memory 2 times, XID 79 1 time"
    )


def test_the_metadata_service_of_the_cloud_is_listed_and_is_no_fault_where_it_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "health of cloud notices"
    assert (
        "names none of AWS, Google Cloud, Azure" in recorded(monkeypatch, tmp_path, "")[name].found
    )
    vendor = tmp_path / "sys/class/dmi/id/sys_vendor"
    vendor.parent.mkdir(parents=True)
    vendor.write_text("Amazon EC2\n")
    service = MetadataStub()
    monkeypatch.setenv("HOLDFAST_METADATA_URL", service.url)
    assert recorded(monkeypatch, tmp_path, "")[name].found == "AWS: no notice"
    service.say(SPOT, spot_action(1_790_000_000.0))
    assert "the spot instance is reclaimed at 2026-09-21" in (
        recorded(monkeypatch, tmp_path, "")[name].found
    )
    service.refuse("/", 403)
    told = recorded(monkeypatch, tmp_path, "")[name]
    service.close()
    assert told.ok and "HTTP 403 for /latest/api/token" in told.found


def provider(read: Any) -> Any:
    return SimpleNamespace(name="GPUs", stalled=None, every_s=5.0, read=read)


def test_a_gpu_that_asks_for_a_reset_is_bad_and_one_that_is_hot_is_not() -> None:
    sick = doctor_health._check(provider(lambda: [Reading("gpu-reset-needed", 1.0, "g", "RESET")]))
    assert not sick.ok and "RESET" in sick.found and "reset the GPU" in sick.remedy
    hot = doctor_health._check(provider(lambda: [Reading("gpu-hot", 9.0, "g", "99 °C")]))
    assert hot.ok and hot.found == "g: 99 °C"


def test_a_gpu_is_named_once_and_what_says_nothing_is_left_out() -> None:
    nvml = RecordedNvml(H200_IDLE)
    look = doctor_health._check(Gpus(lambda: nvml))
    assert look.ok and look.found == (
        "0000:00:06: GPU-9a1c2f64-0d3e-5b7a-8c21-4f6e7d8a9b0c; 36 °C, slows down at 89 °C; "
        "0.6 GiB used; 140.4 GiB of memory; PCIe 5, 16 of 16 lanes; "
        "14.3 GB/s sent over PCIe; 0.0 GB/s received over PCIe; 127 W; 15,825 J so far"
    )


def test_several_gpus_have_a_line_each_and_what_slows_them_down_is_told() -> None:
    nvml = RecordedNvml(H200_BUSY, {"pci": "00000000:3B:00.0", "nvmlDeviceGetTotalEccErrors": 2})
    first, second = doctor_health._check(Gpus(lambda: nvml)).found.splitlines()
    assert first.startswith("0000:00:06: ") and "clocks are low: SW Power Cap" in first
    assert "busy 100 %; memory busy 22 %" in first
    assert second.startswith("0000:3b:00: ") and "2 uncorrectable ECC errors" in second
    assert "18 of 18 are active" in second and "2 replay errors on NVLink" in second
    assert first.count("0000:00:06") == second.count("0000:3b:00") == 1


def test_a_quiet_interface_says_that_it_is_up_and_a_lossy_one_what_it_lost(tmp_path: Path) -> None:
    link = tmp_path / "sys/class/net/eth0"
    (link / "device").mkdir(parents=True)
    (link / "statistics").mkdir()
    (link / "carrier").write_text("1")
    (link / "statistics/rx_bytes").write_text("11300000000")
    read = doctor_health._check(Interfaces(tmp_path))
    assert read.found == "eth0: up, stable; 11.3 GB received"
    (link / "carrier_down_count").write_text("1")
    (link / "statistics/tx_dropped").write_text("7")
    read = doctor_health._check(Interfaces(tmp_path))
    assert read.found == (
        "eth0: up, lost once since the start; 7 packets dropped; 11.3 GB received"
    )


def test_where_all_is_quiet_that_is_said_and_so_is_that_nothing_was_there() -> None:
    assert doctor_health._check(provider(lambda: [Reading("zombies", 0.0)])).found == (
        "no findings"
    )
    assert doctor_health._check(provider(list)).found == "nothing to read"
    many = [Reading("link-down", 0.0, f"eth{number}", "up") for number in range(30)]
    assert doctor_health._check(provider(lambda: many)).found.splitlines()[-1] == "and 14 more"


def test_a_driver_that_cannot_be_asked_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> list[Reading]:
        raise OSError("Driver/library version mismatch")

    found = doctor_health._check(provider(fails))
    assert not found.ok and found.found == "Driver/library version mismatch"
    gate = threading.Event()
    monkeypatch.setattr(doctor_health, "LOOK_S", 0.01)
    found = doctor_health._check(provider(lambda: gate.wait() and []))
    gate.set()
    assert not found.ok and "no answer" in found.found
