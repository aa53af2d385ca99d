"""Which jobs there are: those of this machine, or of a folder, each with its record."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Protocol

from holdfast.dashboard.job_record import JobLook, JobRecord
from holdfast.drivers.records import all_jobs
from holdfast.errors import Error

GLANCE_S = 0.25  # that a list of jobs waits for those that have not been read yet
RECORDS_MAX = 200  # that are kept in memory; of more the oldest are read anew


class Fleet(Protocol):
    """Jobs of one place."""

    title: str

    def names(self) -> list[str]:
        """The newest first. Raises `Error` or `OSError`."""

    def record(self, name: str) -> JobRecord:
        """Raises `Error` job-not-found."""


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
            if name not in self._records and len(self._records) >= RECORDS_MAX:
                del self._records[next(iter(self._records))]
            return self._records.setdefault(name, JobRecord(self._home / name))


class Glances:
    """All jobs at once, none of which is waited for: what takes long to read for the first time
    is read beside, one after the other, and shown when it is there."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._reading = ThreadPoolExecutor(1, "reading")
        self._under_way: dict[str, Future[JobLook]] = {}
        self._lock = threading.Lock()

    def all(self) -> list[tuple[str, JobLook | BaseException | None]]:
        """Name and newest look of each; None: not read yet. Raises as `Fleet.names`."""
        names = self._fleet.names()
        with self._lock:
            for name in names:
                self._begin(name)
            waited = [self._under_way[name] for name in names]
        wait(waited, GLANCE_S)
        return [(name, self._found(name, one)) for name, one in zip(names, waited, strict=True)]

    def warm(self) -> None:
        """Begin to read all of them, before anybody asks."""
        self._reading.submit(self._begin_all)

    def _begin_all(self) -> None:
        names = self._fleet.names()
        with self._lock:
            for name in names:
                self._begin(name)

    def _begin(self, name: str) -> None:
        known = self._under_way.get(name)
        if known is None or known.done():
            self._under_way[name] = self._reading.submit(lambda: self._fleet.record(name).look())

    def _found(self, name: str, looking: "Future[JobLook]") -> Any:
        if not looking.done():
            return self._fleet.record(name).latest
        return looking.exception() or looking.result()


def not_found(name: str, where: str) -> Error:
    """There is no such job."""
    return Error(
        "job-not-found",
        f"there is no job {name!r} in {where}",
        why="its record may have been removed, or it is another machine's",
        help="holdfast list",
    )
