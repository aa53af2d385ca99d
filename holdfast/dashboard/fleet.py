"""Which jobs there are: those of this machine, or of a folder, each with its record."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from holdfast.dashboard.job_record import JobLook, JobRecord
from holdfast.drivers.records import JOURNAL, all_jobs
from holdfast.errors import Error

GLANCE_S = 0.25  # that a list of jobs waits for those that have not been read yet
RECORDS_MAX = 200  # that are kept in memory; of more those not asked for lately are read anew


class Fleet(Protocol):
    """Jobs of one place."""

    title: str

    def names(self) -> list[str]:
        """The newest first. Raises `Error` or `OSError`."""

    def record(self, name: str) -> JobRecord:
        """Raises `Error` job-not-found."""

    def version(self, name: str) -> object | None:
        """Another one whenever the record is; None: it is not known without looking."""


class FolderFleet:
    """Jobs whose folders lie in one folder."""

    def __init__(self, home: Path, title: str) -> None:
        self.title = title
        self._home = home
        self._records: dict[str, JobRecord] = {}
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """Of all folders that are jobs'."""
        return [folder.name for folder in all_jobs(self._home)]

    def record(self, name: str) -> JobRecord:
        """Only a name that is listed is a folder that is opened."""
        if name not in self.names():
            raise not_found(name, str(self._home))
        with self._lock:
            found = self._records.pop(name, None) or JobRecord(self._home / name)
            if len(self._records) >= RECORDS_MAX:
                del self._records[next(iter(self._records))]
            self._records[name] = found
            return found

    def version(self, name: str) -> object | None:
        """Identity, size and age of the journal."""
        with contextlib.suppress(OSError):
            found = (self._home / name / JOURNAL).stat()
            return found.st_ino, found.st_size, found.st_mtime_ns
        return None


class Glance(NamedTuple):
    """What was seen of a job: a row of the list, or why there is none. `version`: of the record of
    a job that has ended, which need not be read again while it is the same."""

    seen: dict[str, Any] | BaseException
    version: object | None


class Glances:
    """All jobs at once, none of which is waited for: what takes long to read is read beside, one
    after the other, and shown when it is there; until then what was seen last."""

    def __init__(self, fleet: Fleet, row: Callable[[JobLook], dict[str, Any]]) -> None:
        self._fleet, self._row = fleet, row
        self._reading = ThreadPoolExecutor(1, "reading")
        self._under_way: dict[str, Future[None]] = {}
        self._known: dict[str, Glance] = {}
        self._lock = threading.Lock()

    def all(self) -> list[tuple[str, dict[str, Any] | BaseException | None]]:
        """Name and newest row of each; None: not read yet. Raises as `Fleet.names`."""
        names = self._fleet.names()
        wait(self._begin(names), GLANCE_S)
        with self._lock:
            known = [self._known.get(name) for name in names]
        return [(name, one and one.seen) for name, one in zip(names, known, strict=True)]

    def warm(self) -> None:
        """Begin to read all of them, before anybody asks."""
        self._reading.submit(lambda: self._begin(self._fleet.names()))

    def _begin(self, names: Sequence[str]) -> list[Future[None]]:
        there = set(names)
        with self._lock:
            for name in self._known.keys() - there:
                del self._known[name]
            for name in self._under_way.keys() - there:
                self._under_way.pop(name).cancel()
            for name in names:
                if name not in self._under_way and self._may_differ(name):
                    self._under_way[name] = self._reading.submit(self._look, name)
            return list(self._under_way.values())

    def _may_differ(self, name: str) -> bool:
        known = self._known.get(name)
        return known is None or known.version is None or known.version != self._fleet.version(name)

    def _look(self, name: str) -> None:
        try:
            version = self._fleet.version(name)  # before the look, so that it is never too new
            look = self._fleet.record(name).look()
            found = Glance(self._row(look), version if look.status.controller == "ended" else None)
        except Exception as error:
            found = Glance(error, None)
        with self._lock:
            if self._under_way.pop(name, None) is not None:  # else it is gone
                self._known[name] = found


def not_found(name: str, where: str) -> Error:
    """There is no such job."""
    return Error(
        "job-not-found",
        f"there is no job {name!r} in {where}",
        why="its record may have been removed, or it is another machine's",
        help="holdfast list",
    )
