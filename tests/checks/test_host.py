"""Checks without torch fail where something is not as it was written, and leave nothing behind."""

import mmap
import os
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.checks import host, tools
from holdfast.checks.outcome import CheckFinding
from holdfast.checks.plan import MIB


def test_memory_that_keeps_what_is_written_is_well() -> None:
    assert host.memory(2 * MIB).state == "ok"


class Faulty(mmap.mmap):
    """One bit of its second block is always set."""

    def __getitem__(self, at: Any) -> Any:
        data = bytearray(super().__getitem__(at))
        if at.start == MIB:
            data[77] |= 4
        return bytes(data)


def test_a_bit_that_sticks_is_found_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "mmap", Faulty)
    found = host.memory(2 * MIB)
    assert found.state == "failed" and "1 of 2 blocks" in found.found


def test_a_disk_is_written_read_and_left_as_it_was(tmp_path: Path) -> None:
    assert host.disk(str(tmp_path / "x"), 2 * MIB).state == "ok"
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_reads_otherwise_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(fd: int, count: int, real: Any = os.read) -> bytes:
        data: bytes = real(fd, count)
        return data[:5] + bytes([data[5] ^ 1]) + data[6:]

    monkeypatch.setattr(os, "read", read)
    found = host.disk(str(tmp_path / "x"), 2 * MIB)
    assert found.state == "failed" and "2 of 2 blocks" in found.found
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_takes_no_file_fails_and_one_that_is_there_is_not_touched(
    tmp_path: Path,
) -> None:
    assert host.disk(str(tmp_path / "none" / "x"), MIB).state == "failed"
    assert not host.disk(str(tmp_path / "none" / "x"), MIB).environment
    (tmp_path / "mine").write_text("mine")
    found = host.disk(str(tmp_path / "mine"), MIB)
    assert (found.state, found.found) == ("failed", "File exists")
    assert (tmp_path / "mine").read_text() == "mine"


def test_shared_memory_has_to_be_there_and_to_have_room(tmp_path: Path) -> None:
    assert "MiB" in host.shared_memory().found
    assert host.shared_memory(str(tmp_path / "none")).state == "failed"


@pytest.mark.parametrize(("ahead", "state"), [(0.0, "ok"), (0.1, "failed"), (-0.1, "failed")])
def test_a_clock_that_runs_away_is_found(
    monkeypatch: pytest.MonkeyPatch, ahead: float, state: str
) -> None:
    began = time.monotonic()
    monkeypatch.setattr(time, "time", lambda: 1.8e9 + (time.monotonic() - began) * (1 + ahead))
    assert host.clock().state == state


def test_a_date_before_this_program_was_written_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 3600.0)
    assert host.clock().found == "the date is 1970-01-01"


def test_tools_that_are_not_installed_are_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert tools.dcgmi() == CheckFinding("skipped", "dcgmi is not installed")
    assert tools.nccl_tests().state == "skipped"


@pytest.mark.parametrize(("status", "state"), [(0, "ok"), (226, "failed")])
def test_the_exit_status_of_a_tool_decides_and_its_last_lines_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, state: str
) -> None:
    tool = tmp_path / "dcgmi"
    tool.write_text(f"#!/bin/sh\necho \"$@\"\necho 'GPU 3: Fail'\nexit {status}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = tools.dcgmi()
    assert found.state == state and "diag -r 1; GPU 3: Fail" in found.found
