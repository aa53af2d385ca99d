"""A journal that grows, read once: its ledger, and what is to be marked on a curve.

Each look takes in only what was written since the last one, so a page that is open costs the same
on the first day of a job and on the thirtieth. A journal that was replaced is read anew.
"""

import contextlib
import os
from collections import deque
from pathlib import Path
from typing import NamedTuple

from holdfast import journal
from holdfast.actions import Entry, StartAttempt
from holdfast.counts import count
from holdfast.drivers.incident_facts import IncidentFacts
from holdfast.errors import Error
from holdfast.events import CheckpointCommitted, LossPlateaued, NumbersSpiked, Progressed
from holdfast.goodput import Bookkeeper, Ledger
from holdfast.profiles import StepsSlowed

MARKS_MAX = 4000  # of a kind, the newest


class CurveMark(NamedTuple):
    """Something to be marked: an attempt's start, an update, a checkpoint, a note."""

    kind: str
    at: float
    step: int | None
    attempt: int
    text: str


class JournalReader:
    """What one journal says, as far as it could be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.trouble: Error | None = None  # why not all of it could be read
        self._begin()

    def _begin(self) -> None:
        found = _identity(self._path)  # known once its header could be read
        header = journal.read_header(self._path)
        self._books, self.written_by = Bookkeeper(header.created_at), header.holdfast
        self.facts = IncidentFacts()
        self._file = found
        self._after: journal.Mark | None = None
        self._marks: dict[str, deque[CurveMark]] = {}
        self._step, self._version = 0, 1
        self.last_at = 0.0

    def read_on(self) -> None:
        """Take in what is new. Raises `Error` or `OSError` if not even the header can be read."""
        if _identity(self._path) != self._file or self._shrunk():
            self._begin()
        self.trouble = None
        try:
            for entry, mark in journal.read(self._path, self._after):
                self._after, self.last_at = mark, entry.at
                self._books.add(entry)
                self.facts.hear(entry)
                self._note(entry)
        except Error as error:
            self.trouble = error

    def _shrunk(self) -> bool:
        return self._after is not None and self._path.stat().st_size < self._after.offset

    def ledger(self, now: float | None) -> Ledger:
        """Where the time went, until now or the last entry."""
        return self._books.at(now)

    def marks(self) -> list[CurveMark]:
        """In the order of time."""
        return sorted((one for kind in self._marks.values() for one in kind), key=lambda m: m.at)

    def _note(self, entry: Entry) -> None:
        match entry.event:
            case Progressed() if entry.event.progress.step is not None:
                self._step = entry.event.progress.step
            case CheckpointCommitted() as saved:
                text = f"checkpoint of step {saved.step} in {saved.tier}"
                self._add("checkpoint", entry.at, saved.step, saved.attempt, text)
            case NumbersSpiked() as odd:
                spike = odd.spike
                text = f"{spike.what} {spike.value:.4g}, usually {spike.usual:.4g}"
                self._add("spike", entry.at, spike.step, odd.attempt, text)
            case StepsSlowed() as slow:
                text = f"steps {slow.slower:.0%} slower than usual"
                self._add("slower", entry.at, slow.step, slow.attempt, text)
            case LossPlateaued() as flat:
                self._add(
                    "plateau", entry.at, flat.step, flat.attempt, "the loss has reached a plateau"
                )
            case _:
                pass
        for action in entry.actions:
            if isinstance(action, StartAttempt):
                self._started(action, entry.at)

    def _started(self, order: StartAttempt, at: float) -> None:
        step, attempt = self._step or None, order.attempt
        text = f"attempt {attempt}: {count(order.node_count, 'node')}"
        self._add("attempt", at, step, attempt, text)
        if order.version.number != self._version:
            self._version = order.version.number
            self._add("update", at, step, attempt, f"version {self._version}")

    def _add(self, kind: str, at: float, step: int | None, attempt: int, text: str) -> None:
        known = self._marks.setdefault(kind, deque(maxlen=MARKS_MAX))
        known.append(CurveMark(kind, at, step, attempt, text))


def _identity(path: Path) -> tuple[int, int]:
    with contextlib.suppress(OSError):
        found = os.stat(path)
        return found.st_dev, found.st_ino
    return 0, 0
