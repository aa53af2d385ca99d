"""When which part of a log was written, and what `logs --since` shows of it."""

import os
import time
from pathlib import Path

import pytest

from holdfast.agent.output import LogFile
from holdfast.cli.tail import Tail
from holdfast.log_times import beside


class Clock:
    """The time of day, as told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "time", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def log_of(folder: Path, max_bytes: int = 1 << 20) -> LogFile:
    return LogFile(folder / "logs/attempt-1/rank-0.log", max_bytes)


def texts(folder: Path, since: float | None) -> list[str]:
    tail = Tail(folder, since=since)
    found = [line.text for line in tail.drain()]
    tail.close()
    return found


def test_only_what_was_written_since_is_shown(tmp_path: Path, clock: Clock) -> None:
    log = log_of(tmp_path)
    for _ in range(5):
        log.write(f"at {clock.now:.0f}\n".encode())
        clock.now += 10
    log.close()
    os.utime(tmp_path / "logs/attempt-1/rank-0.log", (1040, 1040))
    assert texts(tmp_path, 1021) == ["at 1030", "at 1040"]
    assert texts(tmp_path, 1020) == ["at 1020", "at 1030", "at 1040"]
    assert texts(tmp_path, 0) == texts(tmp_path, None)
    assert texts(tmp_path, 2000) == []


def test_at_most_one_entry_is_kept_for_a_second(tmp_path: Path, clock: Clock) -> None:
    log = log_of(tmp_path)
    for _ in range(100):
        log.write(b"x\n")
        clock.now += 0.02
    log.close()
    assert beside(tmp_path / "logs/attempt-1/rank-0.log").stat().st_size == 2 * 16


def test_a_rotated_log_keeps_its_times(tmp_path: Path, clock: Clock) -> None:
    log = log_of(tmp_path, max_bytes=32)
    for _ in range(6):
        log.write(f"written at {clock.now:.0f}\n".encode())  # two of them fill a file
        clock.now += 10
    log.close()
    for name, at in (("rank-0.log", 1050), ("rank-0.log.1", 1030)):
        os.utime(tmp_path / "logs/attempt-1" / name, (at, at))
    assert texts(tmp_path, None) == [f"written at {at}" for at in (1020, 1030, 1040, 1050)]
    assert texts(tmp_path, 1030) == [f"written at {at}" for at in (1030, 1040, 1050)]
    assert texts(tmp_path, 1050) == ["written at 1050"]


def test_what_is_not_known_is_shown_rather_than_hidden(tmp_path: Path, clock: Clock) -> None:
    log = log_of(tmp_path)
    log.write(b"first\n")
    clock.now += 10
    log.write(b"second\n")
    log.close()
    path = tmp_path / "logs/attempt-1/rank-0.log"
    times = beside(path)
    whole = times.read_bytes()
    times.write_bytes(whole[:-3])  # killed while the second entry was written
    assert texts(tmp_path, 1005) == ["first", "second"]
    times.write_bytes(b"")
    assert texts(tmp_path, 1005) == ["first", "second"]
    times.unlink()
    assert texts(tmp_path, 1005) == ["first", "second"]


def test_a_clock_set_back_hides_nothing(tmp_path: Path, clock: Clock) -> None:
    log = log_of(tmp_path)
    log.write(b"before\n")
    clock.now = 500.0
    log.write(b"after\n")
    log.close()
    assert texts(tmp_path, 900) == ["before", "after"]


def test_a_log_is_written_where_its_times_cannot_be(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    os.makedirs(beside(tmp_path / "logs/attempt-1/rank-0.log"))
    log.write(b"said\n")
    log.close()
    assert texts(tmp_path, None) == ["said"]
