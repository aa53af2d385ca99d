"""What agents, workers and the controller send each other; versioned, never pickled.

Agents and the controller speak msgpack over one authenticated WebSocket (header
`Authorization: Bearer TOKEN`). Facts are numbered by the agent and kept until acknowledged, so none
is lost while the controller is away and none counts twice. Reports are telemetry: the newest wins.

Where the controller's disk may vanish with it, some agents are keepers: they hold the journal in
memory. Lines are numbered as in the file: 0 is the header, `n` the entry with `seq` n.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.events import (
    CheckpointCommitted,
    CheckpointFailed,
    Milestone,
    NodeLeft,
    NodeReady,
    Progress,
    Store,
    WorkerExited,
)

PROTOCOL = 3
MAX_MESSAGE_BYTES = 4 * 1024 * 1024  # of any message, both ways
NodeName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z", max_length=253)]
Count = Annotated[int, Meta(ge=0, lt=1 << 53)]


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The root of all messages."""


# ── agent → controller ────────────────────────────────────────────────────────────────────────


class Hello(Message, frozen=True, kw_only=True):
    """First message of every connection of an agent."""

    protocol: int
    node: NodeName
    name: NodeName
    address: Annotated[str, Meta(max_length=253)]
    workers: int
    pid: int
    attempt: int  # newest attempt whose workers it has run; 0 before the first
    running: bool  # workers of that attempt are alive
    kept: int = -1  # newest line of the journal that it holds; -1: none
    term: int = 0  # of that line: see `Keep`


class WorkersStarted(Message, frozen=True, kw_only=True):
    """All workers of the node run with their ranks in this attempt; `pids` by local rank."""

    node: str
    attempt: int
    ago_s: float = 0.0
    pids: tuple[int, ...] = ()


class WorkersStopped(Message, frozen=True, kw_only=True):
    """No process of this attempt is left on the node. `store` is its next fresh store; None: it
    cannot start workers yet, and `NodeReady` follows."""

    node: str
    attempt: int
    store: Store | None
    ago_s: float = 0.0
    progress: Progress = Progress()  # the furthest of its workers


AgentFact = (
    NodeReady
    | NodeLeft
    | WorkerExited
    | WorkersStarted
    | WorkersStopped
    | CheckpointCommitted
    | CheckpointFailed
)


class Fact(Message, frozen=True, kw_only=True):
    """News of one node. `seq` counts from 1 per node; repeated until acknowledged.

    Ages inside the event are those at the moment of sending.
    """

    seq: Count
    event: AgentFact


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """The newest look at one worker's progress page."""

    rank: int
    pid: int
    progress: Progress
    milestones: dict[Milestone, float]  # age in seconds of each one reached
    restored_step: int = 0
    phase: str = ""  # what the worker says it does now
    loss: float | None = None
    grad_norm: float | None = None
    step_time_s: float | None = None
    tokens: int = 0
    snapshot_step: int = 0
    snapshot_every: int = 0
    tier_every_s: tuple[float, ...] = ()  # planned now, by tier; 0: not used. Told by rank 0


class Report(Message, frozen=True, kw_only=True):
    """Telemetry and heartbeat of one node, a few times a second."""

    node: str
    attempt: int
    workers: tuple[WorkerReport, ...]


class Kept(Message, frozen=True, kw_only=True):
    """Answer to `Keep`: lines up to `seq` are held as they were sent.

    A `seq` below the last line sent: send again from `seq + 1`. A `term` above that of `Keep`:
    nothing was taken, because a newer controller has been here.
    """

    seq: int
    term: int


class JournalCopy(Message, frozen=True, kw_only=True):
    """Answer to `GiveJournal`: a part of the copy, in order; `size` is that of the whole."""

    offset: int
    data: bytes
    size: int


# ── controller → agent ────────────────────────────────────────────────────────────────────────


class Welcome(Message, frozen=True, kw_only=True):
    """Answer to `Hello`: facts up to `acked` are safe. `known=False`: this life of the node was
    given up; it must kill its workers and end."""

    protocol: int
    acked: int
    known: bool


class Ack(Message, frozen=True, kw_only=True):
    """All facts up to `seq` are on the controller's disk."""

    seq: int


class Start(Message, frozen=True, kw_only=True):
    """Start this node's workers for an attempt. Ignored unless newer than any seen."""

    attempt: int
    node_rank: int
    node_count: int
    workers_per_node: int
    store: Store
    redo_until: int
    restarts: int
    restore_below: int | None = None  # only what was saved before this step may be gone on from
    committed: int | None = None  # newest step of this job in tiers that outlive its nodes


class Stop(Message, frozen=True, kw_only=True):
    """End the workers of this attempt and all before it.

    `save`: within the grace time, bring one more snapshot to a durable tier first.
    """

    attempt: int
    grace_s: float
    save: bool = False


class Leave(Message, frozen=True, kw_only=True):
    """End all workers at once, then the agent itself.

    At the end of the job `exit_code` says how the agent is to exit; None: it was only let go.
    """

    reason: str
    exit_code: int | None = None


class Keep(Message, frozen=True, kw_only=True):
    """Hold these lines of the journal, each with its line end; the first has number `first`.

    Lines that are held already stay. From the first one that differs on, these replace all that is
    held, and are of this `term`: it grows with each controller, and an older one is not obeyed.
    """

    first: int
    lines: tuple[bytes, ...]
    term: int = 0


class GiveJournal(Message, frozen=True, kw_only=True):
    """Send all that you hold; answered by one or more `JournalCopy`."""


# ── command line ↔ controller ─────────────────────────────────────────────────────────────────


class StopJob(Message, frozen=True, kw_only=True):
    """`holdfast stop`."""

    by: str
    now: bool


class AskStatus(Message, frozen=True, kw_only=True):
    """`holdfast status`: answered by `StatusReply`."""


class StatusReply(Message, frozen=True, kw_only=True):
    """A `JobStatus` as JSON."""

    status: bytes


class Done(Message, frozen=True, kw_only=True):
    """The request was taken."""


FromKeeper = Kept | JournalCopy
ToKeeper = Keep | GiveJournal
ToController = Hello | Fact | Report | FromKeeper | StopJob | AskStatus
ToAgent = Welcome | Ack | Start | Stop | Leave
ToClient = StatusReply | Done

# ── agent → worker (control socket, one JSON line) ────────────────────────────────────────────


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What a waiting worker is told when it gets a rank. `env` is merged into its environment."""

    attempt: int
    rank: int
    local_rank: int
    world_size: int
    redo_until: int
    env: dict[str, str]
