"""One job as the page sees it: status, incidents, ledger, figures, layout, output.

From its folder, by the readers that the command line has; a live controller adds its telemetry. A
job in a cluster has a folder too, a mirror of what its controller publishes. Looks of several
browsers within a moment are one.
"""

import re
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol

import msgspec

from holdfast.controller import Limits, State
from holdfast.dashboard.journal_reader import CurveMark, JournalReader
from holdfast.dimensions import PLAIN, Dimensions
from holdfast.drivers import client, records, report
from holdfast.drivers.explained import last_lines
from holdfast.errors import Error
from holdfast.goodput import Ledger
from holdfast.history import COLUMNS, CURVE, last_point, told
from holdfast.messages import AskStatus, StatusReply
from holdfast.replay import read_state
from holdfast.spec import Job
from holdfast.status import Incident, JobStatus

FRESH_S = 0.5  # for so long a look is as good as another
LOG_LINES, LOG_BYTES = 400, 256 << 10
HOUR_S = 3600.0
_ATTEMPT = re.compile(r"attempt-(\d+)$")


class JobLook(NamedTuple):
    """A job at one moment."""

    status: JobStatus
    incidents: list[Incident]
    ledger: Ledger
    marks: list[CurveMark]
    dimensions: Dimensions | None  # None: not known, or they do not fit
    workers_per_node: int
    cost_per_hour: float | None
    racks: Mapping[str, str]  # by the names of nodes; empty where nobody tells
    loss: float | None  # newest that is known
    trouble: str | None  # why not all is told that there was
    job: Job
    written_by: str  # version of Holdfast that began its journal
    engine: str

    @property
    def cost(self) -> float | None:
        """Until now, at the size that it has now."""
        if self.cost_per_hour is None:
            return None
        return self.cost_per_hour * self.ledger.wall_s / HOUR_S

    def node_of(self, rank: int) -> str | None:
        """The name of the node that has it now."""
        place = rank // max(1, self.workers_per_node)
        return next((node.name for node in self.status.nodes if node.rank == place), None)


class RankOutput(NamedTuple):
    """The end of what a rank has printed."""

    rank: int
    attempt: int | None
    attempts: list[int]
    lines: list[str]


class JobRecord:
    """A job that is looked at again and again; of several threads one looks at a time."""

    def __init__(self, folder: Path, site: "JobSite | None" = None) -> None:
        self.name, self.folder = folder.name, folder
        self._site = site or LocalSite(folder)
        self._lock = threading.Lock()
        self._reader: JournalReader | None = None
        self._state: tuple[object, Job, State] | None = None  # of a journal of this size and age
        self._looked: tuple[float, JobLook] | None = None

    def look(self) -> JobLook:
        """How it stands. Raises `Error` or `OSError` if its journal cannot be read at all."""
        with self._lock:
            now = time.monotonic()
            if self._looked is None or now - self._looked[0] > FRESH_S:
                self._looked = now, self._look()
            return self._looked[1]

    def _look(self) -> JobLook:
        status = self._site.status()
        path = self.folder / records.JOURNAL
        if self._reader is None:
            self._reader = JournalReader(path)
        self._reader.read_on()
        job, state = self._recorded(path)
        alive, now = not state.ended and self._site.alive, records.present(self.folder, time.time())
        ledger = self._reader.ledger(
            None if state.ended else now if alive else max(state.now, self._reader.last_at)
        )
        if status is None:
            controller = "ended" if state.ended else "away"
            wall = self._reader.facts.wall
            status = report.job_status(self.name, state, ledger, controller=controller, wall=wall)
        trouble = self._reader.trouble
        return JobLook(
            status=status,
            incidents=report.incidents(self.name, state, ledger, self._reader.facts),
            ledger=ledger,
            marks=self._reader.marks(),
            dimensions=_dimensions(job, state),
            workers_per_node=state.workers_per_node,
            cost_per_hour=_cost_per_hour(job, state),
            racks=self._site.racks,
            loss=self._last_loss() if status.loss is None else status.loss,
            trouble=None if trouble is None else f"{trouble.what}: {trouble.why}",
            job=job,
            written_by=self._reader.written_by,
            engine=self._site.engine or job.kubernetes.engine,
        )

    def _recorded(self, path: Path) -> tuple[Job, State]:
        found = path.stat()
        version = (found.st_ino, found.st_size, found.st_mtime_ns)
        if self._state is None or self._state[0] != version:
            job = records.recorded_job(self.folder)
            self._state = version, job, read_state(path, Limits.of(job))
        return self._state[1:]

    def _last_loss(self) -> float | None:
        """Of a job without a controller, by its curve."""
        newest = last_point(self.folder / CURVE)
        return None if newest is None else newest.values[COLUMNS.index("loss")]

    def figures(self, path: str) -> tuple[bytes, str] | None:
        """See `holdfast.history.answers`."""
        return self._site.figures(path)

    def output(self, rank: int, attempt: int | None) -> RankOutput:
        """Of one attempt, by default the newest in which there is a log of this rank."""
        look = self._looked and self._looked[1]
        return self._site.output(rank, attempt, None if not look else look.node_of(rank))


class JobSite(Protocol):
    """Where a job runs, or has run."""

    alive: bool  # whether somebody drives it; as of the last status, like what follows
    racks: Mapping[str, str]  # by the names of nodes
    engine: str  # empty: the one that the job file names

    def status(self) -> JobStatus | None:
        """What its controller says, if one answers; the job's folder is up to date then."""

    def figures(self, path: str) -> tuple[bytes, str] | None:
        """See `holdfast.history.answers`."""

    def output(self, rank: int, attempt: int | None, node: str | None) -> RankOutput:
        """Of one rank; `node`: the name of its node, where that is known."""


class LocalSite:
    """This machine, or only the folder of a job."""

    racks: Mapping[str, str] = MappingProxyType({})
    engine = "local"

    def __init__(self, folder: Path) -> None:
        self._folder, self.alive = folder, False

    def status(self) -> JobStatus | None:
        """From the controller's socket."""
        self.alive = records.controller_alive(self._folder)
        if not self.alive:
            return None
        try:
            reply = client.request(self._folder, AskStatus(), busy_s=0.0)
            if not isinstance(reply, StatusReply):
                return None
            return msgspec.json.decode(reply.status, type=JobStatus)
        except (ConnectionError, Error, msgspec.DecodeError):  # the last: it is of another version
            return None

    def figures(self, path: str) -> tuple[bytes, str] | None:
        """From its files."""
        return told(self._folder, path)

    def output(self, rank: int, attempt: int | None, _node: str | None) -> RankOutput:
        """From its logs."""
        found = sorted(self._folder.glob(f"logs/attempt-*/rank-{rank}.log"))
        numbers = (_ATTEMPT.search(path.parent.name) for path in found)
        attempts = sorted(int(number[1]) for number in numbers if number)
        chosen = attempts[-1] if attempt is None and attempts else attempt
        if chosen not in attempts:
            return RankOutput(rank, chosen, attempts, [])
        path = self._folder / "logs" / f"attempt-{chosen}" / f"rank-{rank}.log"
        return RankOutput(rank, chosen, attempts, last_lines(path, LOG_LINES, LOG_BYTES))


def _dimensions(job: Job, state: State) -> Dimensions | None:
    layout = PLAIN if job.parallel is None else job.parallel.layout
    try:
        return layout.resolve(state.world_size) if state.world_size else None
    except ValueError:  # a size that it does not fit any more
        return None


def _cost_per_hour(job: Job, state: State) -> float | None:
    if job.cost is None:
        return None
    waiting = len(state.spares) * state.workers_per_node
    return job.cost.gpu_hour * (state.world_size + waiting)
