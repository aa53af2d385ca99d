"""Where a verb reads a job from: its folder on this machine, or its record in a cluster.

Whatever the place, a verb gets a status when it asks and a folder with the journal, so that there
is one code for what it prints. For a job in a cluster the folder is a temporary one, filled from
the record at each look; its lock is held while the job has a controller there, which is how the
code for folders knows that time goes on.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from holdfast.cli.cluster import Reach, Session, connected
from holdfast.cli.locate import job_folder
from holdfast.cli.output import talk
from holdfast.errors import Error

if TYPE_CHECKING:
    from holdfast.drivers.kubernetes.remote import Look
    from holdfast.status import JobStatus

LOCAL_S = 0.5
REMOTE_S = 2.0  # as often as a record is published
PATIENCE_S = 600.0  # a cluster that does not answer is asked again for so long


class Source(Protocol):
    """A job that can be looked at."""

    folder: Path
    refresh_s: float
    words: str  # after a verb and the name, to mean this job

    def status(self) -> "JobStatus":
        """How it stands now; the folder is then as new."""

    def troubles(self) -> list[Error]:
        """What keeps its nodes from starting, as of the last status."""

    def require_journal(self) -> None:
        """Raise `Error` if the folder lacks the journal."""


class LocalSource:
    """A job on this machine."""

    refresh_s = LOCAL_S
    words = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def status(self) -> "JobStatus":
        """From its controller, else from the journal."""
        from holdfast.drivers.client import status

        return status(self.folder)

    def troubles(self) -> list[Error]:
        """None: its nodes are processes."""
        return []

    def require_journal(self) -> None:
        """It is there."""


class RemoteSource:
    """A job in a cluster, as its record and its pods tell."""

    refresh_s = REMOTE_S

    def __init__(self, session: Session, name: str, home: Path, held: ExitStack) -> None:
        self._session, self._name, self._held = session, name, held
        self.folder = home / name
        self.words = f" --on kubernetes{session.words}"
        self._locked: ExitStack | None = None
        self._last: JobStatus | None = None
        self._silent_since: float | None = None
        self._troubles: list[Error] = []
        self._complete = True

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

    def troubles(self) -> list[Error]:
        """What somebody has to do something about."""
        return self._troubles

    def require_journal(self) -> None:
        """Raise `Error` journal-away if the record holds the status alone."""
        if not self._complete:
            raise Error(
                "journal-away",
                f"the record of {self._name!r} in the cluster holds no journal",
                why="it has grown beyond what a ConfigMap may hold; the controller has it whole",
                help=f"holdfast status {self._name}{self.words}",
            )

    def _wait(self, error: Error) -> None:
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since = now
            talk(f"{error.what}: {error.why}; asking again")
        if now - self._silent_since > PATIENCE_S:
            raise error

    def _look(self) -> "JobStatus":
        import msgspec

        from holdfast.drivers.kubernetes.remote import controller_state, look, status
        from holdfast.drivers.kubernetes.remote_troubles import evidence, troubles
        from holdfast.drivers.kubernetes.submit_refusals import About

        session = self._session
        seen = session.do(look(session.cluster, self._name, session.words))
        found = session.do(evidence(session.cluster, seen))
        about = About(f"job {self._name}", "v1", session.cluster.namespace, session.words)
        self._troubles = troubles(seen, found, about)
        self._fill(seen)
        self._keep_lock(controller_state(seen) in ("alive", "starting"))
        told = status(seen)
        if self._troubles and told.phase == "waiting":
            told = msgspec.structs.replace(told, waiting_for=_in_short(self._troubles))
        return told

    def _fill(self, seen: "Look") -> None:
        """Bring the folder up to date."""
        from holdfast.drivers.kubernetes.remote import require_managed
        from holdfast.drivers.records import create

        job = require_managed(seen, self._session.words)
        if not self.folder.exists():
            create(job, self.folder, now=seen.created_at)
        if seen.record is not None and seen.record.journal is not None:
            (self.folder / "journal.jsonl").write_bytes(seen.record.journal)
        self._complete = seen.record is None or seen.record.journal is not None

    def _keep_lock(self, wanted: bool) -> None:
        from holdfast.drivers.records import locked

        if wanted and self._locked is None:
            self._locked = ExitStack()
            self._locked.enter_context(locked(self.folder))
            self._held.callback(self._locked.close)
        elif not wanted and self._locked is not None:
            self._locked.close()
            self._locked = None


def _in_short(troubles: list[Error]) -> str:
    """What it waits for, with the reason in the words of whoever gave it."""
    return "; ".join(f"{trouble.what} ({trouble.why})" for trouble in troubles)


@contextmanager
def job_source(name: str | None, reach: Reach | None) -> Iterator[Source]:
    """The named job, or the newest. Raises `Error` job-not-found, or why there is no cluster."""
    if reach is None:
        yield LocalSource(job_folder(name))
        return
    with connected(reach) as session, remote_source(session, name) as source:
        yield source


@contextmanager
def remote_source(session: Session, name: str | None) -> Iterator[RemoteSource]:
    """A job in the cluster of a session, looked at once already."""
    import tempfile

    from holdfast.drivers.kubernetes.remote import newest

    name = name or session.do(newest(session.cluster, session.words))
    with ExitStack() as held:
        home = held.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-"))
        source = RemoteSource(session, name, Path(home), held)
        source.status()
        yield source
