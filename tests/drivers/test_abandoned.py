"""A job whose controller died, after any line of its journal, is stopped in its record, too."""

import shutil
from pathlib import Path

import pytest

import recorded_job
from holdfast import cli, journal
from holdfast.drivers import records
from holdfast.drivers.local import stop_abandoned

NOW = 1.7e9
LINES = 120  # of a journal with several faults


@pytest.fixture
def whole(home: Path) -> Path:
    """The record of a job of which nothing runs."""
    folder = home / "jobs" / "job"
    recorded_job.record(folder, days=3, nodes=4, until=NOW, rate=2000.0)
    return folder


def test_it_is_stopped_wherever_its_journal_ends(whole: Path) -> None:
    lines = (whole / "journal.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) > LINES
    phases = set()
    for kept in range(1, LINES, 3):
        folder = whole.with_name(f"job-{kept}")
        folder.mkdir()
        shutil.copy(whole / "job.json", folder)
        (folder / "journal.jsonl").write_bytes(b"".join(lines[:kept]))
        phases.add(records.state_of(folder).phase)
        assert stop_abandoned(folder, "holdfast stop") == 0
        found = records.status(folder, NOW)
        assert (found.phase, found.controller) == ("stopped", "ended"), kept
        journal.state_path(folder / "journal.jsonl").unlink(missing_ok=True)
        assert records.state_of(folder).phase == "stopped", kept
    assert phases >= {"waiting", "starting", "running", "recovering"}


def test_a_record_that_has_ended_is_left_alone(whole: Path) -> None:
    stop_abandoned(whole, "holdfast stop")
    path = whole / "journal.jsonl"
    files = [one for one in (path, journal.state_path(path)) if one.exists()]
    before = [(one.read_bytes(), one.stat().st_mtime_ns) for one in files]
    stop_abandoned(whole, "holdfast stop")
    assert [(one.read_bytes(), one.stat().st_mtime_ns) for one in files] == before


def test_a_damaged_journal_is_left_as_it_is_and_that_is_said(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = whole / "journal.jsonl"
    text = bytearray(path.read_bytes())
    text[len(text) // 2] ^= 1
    path.write_bytes(text)
    assert cli.main(["stop", "job"]) == 0
    said = capsys.readouterr()
    assert "does not say that it was stopped" in said.err and "no process of job" in said.out
    assert path.read_bytes() == text


def test_a_controller_that_has_it_meanwhile_is_not_written_over(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (whole / "journal.jsonl").read_bytes()
    with records.locked(whole):
        stop_abandoned(whole, "holdfast stop")
    assert "already running" in capsys.readouterr().err
    assert (whole / "journal.jsonl").read_bytes() == before
    assert journal.read_saved(whole / "journal.jsonl") is None
