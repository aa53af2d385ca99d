"""A job finds out whether another one of its name lives where it wants to continue."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from holdfast.checkpoint import catalog
from holdfast.checkpoint.folder import FolderStore
from holdfast.checkpoint.presence import (
    BEAT_S,
    PATIENCE_S,
    SILENT_S,
    LifeSigned,
    file_of,
    others,
    processes_here,
    rival,
)

ME, OTHER = "a" * 16, "b" * 16


class Looking:
    """One look at a place, in a time of its own: what others do there meanwhile is said before."""

    def __init__(self, folder: Path) -> None:
        self.store = FolderStore(str(folder))
        self.now = 1000.0
        self.begun = self.now
        self.waited = 0
        self.process = ("of another machine", 1)  # that gives life signs
        self._deeds: list[tuple[float, Callable[[], None]]] = []

    def at(self, after_s: float, deed: Callable[[], None]) -> None:
        """So long after the look began."""
        self._deeds.append((self.begun + after_s, deed))

    def beats(self, owner: str, *, until_s: float, every_s: float = BEAT_S) -> None:
        """A job that lives for so long."""
        for beat in range(int(until_s / every_s) + 1):
            self.at(beat * every_s, lambda number=beat: self.write(owner, number))  # type: ignore[misc]
        self.pause(0)

    def write(self, owner: str, beat: int) -> None:
        """One sign of life."""
        where, pid = self.process
        sign = LifeSigned(
            job="gpt", owner=owner, node="n7", host="h9", processes=where, pid=pid, beat=beat,
            at=0.0,
        )  # fmt: skip
        self.store.put(file_of(owner), msgspec.json.encode(sign))

    def pause(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds
        due = [deed for at, deed in self._deeds if at <= self.now]
        self._deeds = [(at, deed) for at, deed in self._deeds if at > self.now]
        for deed in due:
            deed()

    def rival(self) -> str | None:
        """The answer."""
        return rival(self.store, ME, waits=self._count, clock=lambda: self.now, pause=self.pause)

    def _count(self) -> None:
        self.waited += 1

    @property
    def took_s(self) -> float:
        return self.now - self.begun


@pytest.fixture
def looking(tmp_path: Path) -> Looking:
    return Looking(tmp_path / "place")


def test_where_nobody_else_has_been_there_is_no_wait(looking: Looking) -> None:
    looking.write(ME, 7)
    assert looking.rival() is None
    assert (looking.took_s, looking.waited) == (0.0, 0)


def test_a_job_that_goes_on_is_named(looking: Looking) -> None:
    looking.beats(OTHER, until_s=10 * PATIENCE_S)
    found = looking.rival()
    assert found is not None and "n7 on h9" in found and file_of(OTHER) in found
    assert (looking.took_s, looking.waited) == (PATIENCE_S, 1)
    assert others(looking.store, ME), "what a live job has there stays"


def test_a_job_that_ends_is_waited_for(looking: Looking) -> None:
    """Pods that are being removed live for their grace time."""
    looking.beats(OTHER, until_s=45)
    looking.at(46, lambda: looking.store.remove(file_of(OTHER)))
    assert looking.rival() is None
    assert looking.took_s == 46


def test_a_job_that_was_killed_is_gone_after_its_silence_and_never_waited_for_again(
    looking: Looking,
) -> None:
    looking.write(OTHER, 3)
    assert looking.rival() is None and looking.took_s == SILENT_S
    looking.begun = looking.now
    assert looking.rival() is None and looking.took_s == 0


def test_a_job_that_was_killed_on_this_machine_is_not_waited_for(looking: Looking) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    looking.process = (processes_here(), dead.pid)
    looking.write(OTHER, 3)
    assert looking.rival() is None
    assert (looking.took_s, looking.waited) == (0, 0) and others(looking.store, ME) == {}
    looking.process = (processes_here(), os.getpid())
    looking.write(OTHER, 3)
    assert looking.rival() is None
    assert looking.took_s == SILENT_S, "its process may be anybody's by now, or hang"


def test_one_that_is_killed_meanwhile_is_gone_too(looking: Looking) -> None:
    looking.beats(OTHER, until_s=20)
    assert looking.rival() is None
    assert SILENT_S < looking.took_s < PATIENCE_S


def test_a_slow_sign_is_a_sign(looking: Looking) -> None:
    looking.beats(OTHER, until_s=10 * PATIENCE_S, every_s=SILENT_S - 2)
    assert looking.rival() is not None


def test_a_third_job_that_comes_meanwhile_is_seen(looking: Looking) -> None:
    looking.write(OTHER, 3)
    looking.at(5, lambda: looking.beats("c" * 16, until_s=10 * PATIENCE_S))
    found = looking.rival()
    assert found is not None and "c" * 16 in found


def test_what_cannot_be_read_as_a_sign_counts_by_its_change_only(looking: Looking) -> None:
    for number in range(200):
        looking.at(number, lambda n=number: looking.store.put(file_of(OTHER), b"\xff%d" % n))  # type: ignore[misc]
    looking.pause(0)
    found = looking.rival()
    assert found is not None and file_of(OTHER) in found


def test_it_is_no_checkpoint_and_hides_none(looking: Looking) -> None:
    looking.write(OTHER, 1)
    assert catalog.survey(looking.store) == catalog.Catalog((), (), (), (), (), ())
