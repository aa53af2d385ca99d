"""The doctor shows what can be read of a machine, and is alarmed by what will not pass."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.cli import doctor_health
from holdfast.cli.doctor_health import HealthCheck, checks
from holdfast.detection.health import Reading


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
    assert found["health of kernel log"].found == "readable; it tells of no fault"


def test_faults_that_the_kernel_log_still_holds_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    xid = "3,1,1,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    oom = "3,2,2,-;Out of memory: Killed process 4711 (python) total-vm:1kB\n"
    found = recorded(monkeypatch, tmp_path, f"6,0,0,-;Linux version\n{oom}{xid}{oom}")
    assert found["health of kernel log"].found == (
        "readable; it tells of out-of-memory 2 times, XID 79 1 times"
    )


def provider(read: Any) -> Any:
    return SimpleNamespace(name="GPUs", stalled=None, every_s=5.0, read=read)


def test_a_gpu_that_asks_for_a_reset_is_bad_and_one_that_is_hot_is_not() -> None:
    sick = doctor_health._check(provider(lambda: [Reading("gpu-reset-needed", 1.0, "g", "RESET")]))
    assert not sick.ok and "RESET" in sick.found and "reset the GPU" in sick.remedy
    hot = doctor_health._check(provider(lambda: [Reading("gpu-hot", 9.0, "g", "99 °C")]))
    assert hot.ok and hot.found == "g 99 °C"


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
