"""Where a verb reads a job from: its folder on this machine, or its record in a cluster.

Whatever the place, a verb asks for the same things, in the shapes of `holdfast.status`, so that
there is one code for what it prints. A record is written by the controller from its journal by the
code that reads folders here, so both places tell the same story.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import typer

from holdfast.cli.cluster import Reach, Session, connected
from holdfast.cli.locate import job_folder
from holdfast.cli.output import talk
from holdfast.cli.trend import CURVE_POINTS, KeptCourse
from holdfast.errors import Error

if TYPE_CHECKING:
    import asyncio

    from holdfast.drivers.kubernetes.remote import Look
    from holdfast.drivers.kubernetes.sharded import Cache
    from holdfast.status import Goodput, Incident, JobStatus

LOCAL_S = 0.5
REMOTE_S = 2.0  # as often as a record is published
COURSE_S = 10.0  # between two questions to a controller in a cluster for its curve
PARTIAL = ("journal-corrupt", "record-incomplete")
"""Troubles because of which not all is told that there was."""
PATIENCE_S = 600.0  # a cluster that does not answer is asked again for so long


Told = TypeVar("Told", "JobStatus", "Goodput")


class Source(Protocol):
    """A job that can be looked at."""

    name: str
    folder: Path | None  # with its logs, if it is on this machine
    refresh_s: float
    words: str  # after a verb and the name, to mean this job

    def status(self) -> "JobStatus":
        """How it stands now."""

    def incidents(self) -> "list[Incident]":
        """All incidents with their bills; in a cluster as of the last status."""

    def goodput(self) -> "Goodput":
        """Where the time went; in a cluster as of the last status."""

    def course(self) -> KeptCourse:
        """How loss and speed went since the job began, as far as that is kept and can be had."""

    def troubles(self) -> list[Error]:
        """What keeps its nodes from starting, or makes what is told of it incomplete."""


def incidents_of(folder: Path) -> "list[Incident]":
    """All incidents with their bills, from the journal in a job's folder."""
    from holdfast.drivers.records import incidents

    return incidents(folder, time.time())


def tell(troubles: Sequence[Error]) -> None:
    """What makes an answer incomplete, or keeps the job from starting; comes after the answer.

    One that is not the whole truth ends the command with the status of what it lacks.
    """
    for trouble in troubles:
        talk(str(trouble))
    for trouble in troubles:
        if trouble.slug in PARTIAL:
            raise typer.Exit(trouble.status)


def lacking(troubles: Sequence[Error]) -> str | None:
    """Why an answer is incomplete, for programs; None if it is whole."""
    told = [f"{trouble.what}: {trouble.why}" for trouble in troubles if trouble.slug in PARTIAL]
    return "; ".join(told) or None


def marked(found: Told, troubles: Sequence[Error]) -> Told:
    """An answer that says of itself whether it is whole."""
    import msgspec

    return msgspec.structs.replace(found, incomplete=lacking(troubles))


class LocalSource:
    """A job on this machine."""

    refresh_s = LOCAL_S
    words = ""

    def __init__(self, folder: Path) -> None:
        self.folder: Path | None = folder
        self._folder = folder
        self.name = folder.name

    def status(self) -> "JobStatus":
        """From its controller, else from the journal."""
        from holdfast.drivers.client import status

        return status(self._folder)

    def incidents(self) -> "list[Incident]":
        """From the journal."""
        return incidents_of(self._folder)

    def goodput(self) -> "Goodput":
        """From the journal."""
        from holdfast.drivers.records import goodput

        return goodput(self._folder, time.time())

    def course(self) -> KeptCourse:
        """From its curve."""
        from holdfast.history import CURVE, read_curve

        return KeptCourse.of(read_curve(self._folder / CURVE, points=CURVE_POINTS).mean)

    def troubles(self) -> list[Error]:
        """What is damaged in its folder, so that not all of it can be told."""
        from holdfast.drivers.records import troubles

        return troubles(self._folder)


class RemoteSource:
    """A job in a cluster, as its record and its pods tell."""

    refresh_s = REMOTE_S
    folder: Path | None = None

    def __init__(self, session: Session, name: str) -> None:
        self._session = session
        self.name = name
        self.words = f" --on kubernetes{session.words}"
        self._seen: Look | None = None
        self._last: JobStatus | None = None
        self._silent_since: float | None = None
        self._troubles: list[Error] = []
        self._cache: Cache = {}
        self._course, self._course_at = KeptCourse(), float("-inf")  # and when it was asked for
        self._asking: asyncio.Task[bytes | None] | None = None

    def status(self) -> "JobStatus":
        """What the record says; while the API server is away, what it said last."""
        try:
            self._last = self._look()
            self._silent_since = None
        except Error as error:
            if self._last is None or error.slug != "cluster-unreachable":
                raise
            self._wait(error)
        return self._last

    def incidents(self) -> "list[Incident]":
        """As recorded."""
        record = self._seen.record if self._seen is not None else None
        return list(record.incidents) if record is not None else []

    def goodput(self) -> "Goodput":
        """As recorded; before the first record nothing has been counted."""
        from holdfast.status import Goodput

        record = self._seen.record if self._seen is not None else None
        if record is not None:
            return record.goodput
        return Goodput(job=self.name, wall_s=0.0, ettr=0.0, ettr_1h=0.0, buckets={}, observed=True)

    def course(self) -> KeptCourse:
        """From its controller, now and then; what that said last while it does not answer. It is
        not waited for: the question goes on while the cluster is asked for the status."""
        import msgspec

        if self._asking is not None and self._asking.done():
            if (told := self._asking.result()) is not None:
                self._course = KeptCourse.of(msgspec.json.decode(told)["mean"])
            self._asking = None
        if self._asking is None and time.monotonic() - self._course_at >= COURSE_S:
            self._course_at = time.monotonic()
            self._asking = self._session.do(self._ask())
        return self._course

    async def _ask(self) -> "asyncio.Task[bytes | None]":
        import asyncio

        from holdfast.dashboard.controller_figures import figures

        async def told() -> bytes | None:
            path = f"curve/0/end/{CURVE_POINTS}"
            with contextlib.suppress(ConnectionError):
                return await figures(self._session.cluster, self.name, path)
            return None

        return asyncio.ensure_future(told())

    def troubles(self) -> list[Error]:
        """What somebody has to do something about."""
        return self._troubles

    def _wait(self, error: Error) -> None:
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since = now
            talk(f"{error.what}: {error.why}; retrying")
        if now - self._silent_since > PATIENCE_S:
            raise error

    def _look(self) -> "JobStatus":
        import msgspec

        from holdfast.drivers.kubernetes import queued, remote
        from holdfast.drivers.kubernetes.remote_troubles import evidence, troubles
        from holdfast.drivers.kubernetes.submit_refusals import About

        session = self._session
        seen = session.do(remote.look(session.cluster, self.name, session.words, self._cache))
        remote.require_managed(seen, session.words)
        found = session.do(evidence(session.cluster, seen))
        about = About(f"job {self.name}", "v1", session.cluster.namespace, session.words)
        waits = troubles(seen, found, about)
        record = [remote.stale(seen, about), remote.incomplete(seen, about)]
        self._seen, self._troubles = seen, [*waits, *(error for error in record if error)]
        told = remote.status(seen)
        if waits and told.phase == "waiting":
            return msgspec.structs.replace(told, waiting_for=_in_short(waits))
        return queued.quoted(told, found.queued)


def _in_short(troubles: list[Error]) -> str:
    """What it waits for, with the reason in the words of whoever gave it."""
    return "; ".join(f"{trouble.what} ({trouble.why})" for trouble in troubles)


@contextmanager
def job_source(name: str | None, reach: Reach | None) -> Iterator[Source]:
    """The named job, or the newest. Raises `Error` job-not-found, or why there is no cluster."""
    if reach is None:
        yield LocalSource(job_folder(name))
        return
    with connected(reach) as session:
        yield remote_source(session, name)


def remote_source(session: Session, name: str | None) -> RemoteSource:
    """A job in the cluster of a session, looked at once already."""
    from holdfast.drivers.kubernetes.remote import newest

    source = RemoteSource(session, name or session.do(newest(session.cluster, session.words)))
    source.status()
    return source
