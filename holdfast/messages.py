"""What agents, workers and the controller send each other; versioned, never pickled.

Agents and the controller speak msgpack over one authenticated WebSocket (header
`Authorization: Bearer TOKEN`). Facts are numbered by the agent and kept until acknowledged: none is
lost, none counts twice. Reports are telemetry: the newest wins. Signs of life are no messages but
unsolicited pong frames (RFC 6455, 5.5.3), which cost next to nothing, and whatever else arrives.

Each controller of a job has a term, greater than those of all before it. Every order carries it,
and an agent obeys none of an older term than it has seen: whoever was replaced cannot act on it.

Where the controller's disk may vanish with it, some agents hold a replica of the journal in
memory. Lines are numbered as in the file: 0 is the header, `n` the entry with `seq` n.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from holdfast.collectives import RECENT_MAX, GroupLog, RankTimes, UnreadLog
from holdfast.compiled_code import CompiledHere, TakeCompiled
from holdfast.digests import ReplicaDigest, StepsToRepeat
from holdfast.events import (
    Broken,
    CheckpointCommitted,
    CheckpointFailed,
    HealthChanged,
    Keeps,
    LastEntered,
    Milestone,
    NodeLeft,
    NodePreparing,
    NodeReady,
    NodeUnfit,
    Progress,
    Spike,
    Store,
    WorkerExited,
)
from holdfast.evidence import NodeEvidence, PeerAddress, PeerReach, Traffic
from holdfast.links import LinkFigures, LinkReport
from holdfast.profiles import (
    AskProfile,
    ProfileReply,
    ProfileTaken,
    TakeProfile,
    TakeTracePart,
    TracePart,
)
from holdfast.stacks import StackGroup
from holdfast.versions import FIRST, Version, When

PROTOCOL = 12
MAX_MESSAGE_BYTES = 4 * 1024 * 1024  # of any message, both ways
NodeName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z", max_length=253)]
Count = Annotated[int, Meta(ge=0, lt=1 << 53)]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]  # SHA-256 of a bundle of code


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
    ordered: int = 0  # newest attempt that it was told to start
    fenced: int = 0  # and to stop: it starts none up to this one any more
    kept: int = -1  # newest line of the journal that it holds; -1: none
    term: int = 0  # of that line: see `Keep`
    obeyed: int = 0  # newest term of a controller that it has obeyed; an older one has no say
    ready: bool = False  # a controller was told of its fresh store and knows it


class WorkersStarted(Message, frozen=True, kw_only=True):
    """All workers of the node run with their ranks in this attempt; `pids` by local rank."""

    node: str
    attempt: int
    ago_s: float = 0.0
    pids: tuple[int, ...] = ()


class WorkersStopped(Message, frozen=True, kw_only=True):
    """No process of this attempt acts on the node any more. `store` is its next fresh store; None:
    it cannot start workers yet, and `NodeReady` follows."""

    node: str
    attempt: int
    store: Store | None
    warm: bool = True  # as in `NodeReady`
    ago_s: float = 0.0
    progress: Progress = Progress()  # the furthest of its workers
    entered: dict[int, tuple[LastEntered, ...]] = {}  # by rank, where that was asked for
    parked: int = 0  # workers that wait for the next attempt in their processes
    unkept: int = 0  # that could have
    refusal: str = ""  # why another one cannot be kept, whatever happens


AgentFact = (
    NodeReady
    | NodeLeft
    | NodePreparing
    | NodeUnfit
    | WorkerExited
    | WorkersStarted
    | WorkersStopped
    | CheckpointCommitted
    | CheckpointFailed
    | HealthChanged
)


class Fact(Message, frozen=True, kw_only=True):
    """News of one node. `seq` counts from 1 per node; repeated until acknowledged.
    Ages inside the event are those at the moment of sending."""

    seq: Count
    event: AgentFact


SAVES = "saving"
"""The phase of a worker whose process has ended well, while its last snapshot is being saved."""


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The newest look at one worker's progress page."""

    rank: int
    pid: int
    progress: Progress
    milestones: dict[Milestone, float]  # age in seconds of each one reached
    restored_step: int = 0
    skipped: int = 0  # batches that the training which was restored has left out
    steps_total: int = 0  # after which its loop ends; 0: it has not said
    phase: str = ""  # what the worker says it does now
    section: str = ""  # name of the stretch of the script that it is in
    loss: float | None = None  # of the newest step; None: nothing was logged. May be no number
    grad_norm: float | None = None
    step_time_s: float | None = None
    tokens: int = 0
    garbage_s: float = 0.0  # that Python's garbage collector has taken in this attempt
    stage_s: float = 0.0  # of computing in its stages of a pipeline, likewise
    mfu: float | None = None  # this and the next: newest that the script logged, told by rank 0
    lr: float | None = None
    snapshot_step: int = 0
    snapshot_every: int = 0
    snapshot_ago_s: float | None = None  # since it was whole here; None: there is none yet
    snapshot_took_s: float | None = None  # that training waited for it
    snapshot_bytes: int = 0  # memory of all that are kept here, those of other nodes too
    tier_every_s: tuple[float, ...] = ()  # planned now, by tier; 0: not used. Told by rank 0
    broke: Broken | None = None  # the first step whose numbers were not finite
    spike: Spike | None = None
    # Of a script that reports no steps. They count from 1 in each attempt: they tell that it goes
    # on and how fast, not how far the training has come. 0: none seen, or they are not counted.
    optimizer_steps: int = 0
    optimizer_step_ago_s: float = 0.0  # since the end of the newest
    optimizer_step_time_s: float | None = None  # lately
    printed_step: int | None = None  # by the patterns of the job, whatever the script means by it
    printed_step_ago_s: float = 0.0  # since it became that
    printed_loss: float | None = None
    replica: ReplicaDigest | None = None  # its parameters, or those of others, are corrupt
    idle_s: float | None = None  # in which it did nothing, where no steps are seen of it
    asleep_s: float = 0.0  # in which no main thread of it and its processes woke up


class Report(Message, frozen=True, kw_only=True):
    """Telemetry of one node: when something has changed, at most every `Welcome.report_s`."""

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


class ApiSeen(Message, frozen=True, kw_only=True):
    """Answer to `LookForApi`: whether the cluster's API server answers this node."""

    answers: bool


class Stacks(Message, frozen=True, kw_only=True):
    """Answer to `TakeStacks`: what the workers of this node do, grouped by what is the same."""

    number: int
    groups: tuple[StackGroup, ...]
    collectives: tuple[UnreadLog, ...] = ()  # of more than one look: what they entered last
    reached: tuple[PeerReach, ...] = ()
    traffic: tuple[Traffic, ...] = ()  # of the node meanwhile, where it was to reach others


class EntryTimes(Message, frozen=True, kw_only=True):
    """Answer to `TakeEntryTimes`. Both times are of the clock that the workers' times are of."""

    number: int
    ranks: tuple[RankTimes, ...]
    asked_us: int  # when the question came
    told_us: int  # when this left


class EvidenceReply(Message, frozen=True, kw_only=True):
    """Answer to `TakeEvidence` with the same `number`."""

    number: int
    found: NodeEvidence
    reached: tuple[PeerReach, ...] = ()


class MachineChecked(Message, frozen=True, kw_only=True):
    """Answer to `CheckMachine` with the same `number`: why its machine may not train, or empty."""

    number: int
    why: str = ""
    digests: dict[str, str] = {}  # of what it has computed, by check and kind of device
    address: Annotated[str, Meta(max_length=300)] = ""  # HOST:PORT, for others' `peer`
    link: LinkFigures | None = None  # with that peer, where it was asked for and nothing trains


class GroupOpened(Message, frozen=True, kw_only=True):
    """First answer to `RepeatStep`, same `number`, by a group's first node: where it meets."""

    number: int
    store: Store


class StepRepeated(Message, frozen=True, kw_only=True):
    """Answer to `RepeatStep` with the same `number`: the state after the step, of each rank by its
    leaves, or why there is none."""

    number: int
    digests: dict[int, dict[str, str]] = {}
    why: str = ""
    first: str = ""  # what rank 0 had logged of the step in the attempt, where that is known
    again: str = ""  # and now


class VersionPrepared(Message, frozen=True, kw_only=True):
    """Answer to `PrepareVersion` with the same `number`: why it cannot be used; empty if its
    workers stand where they need their ranks."""

    number: int
    why: str = ""


class AskCode(Message, frozen=True, kw_only=True):
    """A version's bundle is not here: send the part from `offset` on; answered by `CodePart`."""

    code: Digest
    offset: Count = 0


# ── controller → agent ────────────────────────────────────────────────────────────────────────


class Welcome(Message, frozen=True, kw_only=True):
    """Answer to `Hello`: facts up to `acked` are safe. `known=False`: this life of the node was
    given up; it must kill its workers and end.

    `pulse_s`, `report_s` and `ping_s`: how often it is to give a sign of life, to report what
    changes, and to ask for a sign of life of the controller.
    """

    protocol: int
    acked: int
    known: bool
    term: int = 0
    pulse_s: float = 1.0
    report_s: float = 0.2
    ping_s: float = 4.0


class Ack(Message, frozen=True, kw_only=True):
    """All facts up to `seq` are on the controller's disk."""

    seq: int
    term: int = 0


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
    bad_steps: tuple[tuple[int, int], ...] = ()  # attempts, and from where on nothing
    skips: tuple[tuple[int, int], ...] = ()  # batches left out: first, and first after them
    committed: int | None = None  # newest step of this job in tiers that outlive its nodes
    version: Version = FIRST
    term: int = 0


class Stop(Message, frozen=True, kw_only=True):
    """End the workers of this attempt and all before it.

    `save`: within the grace time, bring one more snapshot to a durable tier first. `keeps`: to
    memory, here or elsewhere too. `look`: tell with `WorkersStopped` which collectives they had
    entered last. `hung`: of this rank, read first where it stands, in C as well. `park_s`, if not
    0: those that can be kept wait for the next attempt; who does not within that is killed."""

    attempt: int
    grace_s: float
    save: bool = False
    keeps: Keeps = ""
    look: bool = False
    hung: int | None = None
    park_s: float | None = None
    term: int = 0


class Leave(Message, frozen=True, kw_only=True):
    """End all workers at once, then the agent itself.

    At the end of the job `exit_code` says how the agent is to exit; None: it was only let go.
    """

    reason: str
    exit_code: int | None = None
    term: int = 0


class UseVersion(Message, frozen=True, kw_only=True):
    """Workers for the next attempt are made ready of this version, and of no other; what is ready
    of `beside`, an update that is not used yet, stays."""

    version: Version
    beside: Version | None = None
    term: int = 0


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


class LookForApi(Message, frozen=True, kw_only=True):
    """Ask the cluster's API server for anything; answered by `ApiSeen`."""


class TakeStacks(Message, frozen=True, kw_only=True):
    """Look what the workers do, and if these other nodes can be reached; answered by `Stacks`."""

    number: int
    looks: Annotated[int, Meta(ge=1, le=8)] = 1  # more, `apart_s` apart, tell if anything moves
    apart_s: float = 0.0
    peers: tuple[PeerAddress, ...] = ()
    native: bool = False  # one look, with frames of C
    rank: int | None = None  # at this one only


class TakeEntryTimes(Message, frozen=True, kw_only=True):
    """Tell when workers entered so many of their newest collectives, in `EntryTimes`."""

    number: int
    recent: Annotated[int, Meta(ge=1, le=RECENT_MAX)]


class TakeEvidence(Message, frozen=True, kw_only=True):
    """Tell how the node is and what its workers of this attempt did last, and whether these other
    nodes can be reached; answered by `EvidenceReply` with the same `number`."""

    number: int
    attempt: int
    since_s: float  # how long ago it began
    peers: tuple[PeerAddress, ...] = ()


class CheckMachine(Message, frozen=True, kw_only=True):
    """Check this machine as before it was ready; answered by `MachineChecked` with the same
    `number`, which may take minutes. `only`: that check, because the machine trains meanwhile."""

    number: int
    only: str = ""
    peer: str = ""  # instead, measure the link with the node at that address


class RepeatStep(Message, frozen=True, kw_only=True):
    """Be one node of a group that trains up to this step and ends there, and saves nothing.

    `start` says which node, of how many, and where the ranks meet; `opens`: it is the first, and
    says where with `GroupOpened`. Answered by `StepRepeated` with the same `number`; whatever
    starts or stops an attempt ends it."""

    number: int
    step: Annotated[int, Meta(ge=1)]
    start: Start
    opens: bool = False


class PrepareVersion(Message, frozen=True, kw_only=True):
    """Make workers of this version ready beside all others; answered by `VersionPrepared` with the
    same `number`, which may take minutes."""

    number: int
    version: Version


class CodePart(Message, frozen=True, kw_only=True):
    """Answer to `AskCode`. `size` is that of the whole bundle; 0: it is not here yet or, with
    `why`, never will be."""

    code: str
    offset: int = 0
    data: bytes = b""
    size: int = 0
    why: str = ""


# ── command line ↔ controller ─────────────────────────────────────────────────────────────────


class StopJob(Message, frozen=True, kw_only=True):
    """`holdfast stop`."""

    by: str
    now: bool


class ScaleJob(Message, frozen=True, kw_only=True):
    """`holdfast scale`."""

    by: str
    nodes: Annotated[int, Meta(ge=1, le=100_000)]


class UpdateJob(Message, frozen=True, kw_only=True):
    """`holdfast update`; see `UpdateRequested`. The bundle lies where the controller finds it."""

    by: str
    id: str
    code: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")] = ""
    args: tuple[str, ...] | None = None
    sets: dict[str, str] = {}
    image: Annotated[str, Meta(max_length=500, pattern=r"^\S*\Z")] = ""
    when: When = "next-step"
    canary: bool = False
    back: bool = False


class AskStatus(Message, frozen=True, kw_only=True):
    """`holdfast status`: answered by `StatusReply`."""


class StatusReply(Message, frozen=True, kw_only=True):
    """A `JobStatus` as JSON."""

    status: bytes


class AskStacks(Message, frozen=True, kw_only=True):
    """`holdfast stacks`: answered by `StacksReply`, after some seconds at most."""

    native: bool = False
    rank: int | None = None  # the only one to be paused for frames of C


class StacksReply(Message, frozen=True, kw_only=True):
    """What the workers of the job do, the smallest group first."""

    groups: tuple[StackGroup, ...]
    missing: tuple[str, ...] = ()  # members that were not connected, or have not answered in time
    collectives: tuple[GroupLog, ...] = ()


class AskChecks(Message, frozen=True, kw_only=True):
    """`holdfast check NAME`: answered by `ChecksReply`, after some minutes at most."""


class ChecksReply(Message, frozen=True, kw_only=True):
    """What the spares have found of their machines, by name: why one may not train, or empty."""

    found: dict[str, str]
    missing: tuple[str, ...] = ()  # that were not connected, or have not answered in time
    network: LinkReport = LinkReport()


class AskReplay(Message, frozen=True, kw_only=True):
    """`holdfast replay NAME` of a job in a cluster: answered by `ReplayReply` after minutes."""

    wish: StepsToRepeat  # its `others` are names of nodes


class ReplayReply(Message, frozen=True, kw_only=True):
    """What repetitions of a step have shown. `refused`: why there were none."""

    verdict: str = ""
    summary: str = ""
    nodes: tuple[str, ...] = ()  # names of those that are bad or, unless `sure`, one of which is
    sure: bool = False
    differing: tuple[str, ...] = ()
    refused: str = ""


class Done(Message, frozen=True, kw_only=True):
    """The request was taken."""


FromReplica = Kept | JournalCopy
ToReplica = Keep | GiveJournal
Question = (
    ToReplica
    | LookForApi
    | TakeStacks
    | TakeEntryTimes
    | TakeEvidence
    | CheckMachine
    | RepeatStep
    | PrepareVersion
    | CodePart
    | TakeProfile
    | TakeTracePart
    | TakeCompiled
)
Answer = (
    FromReplica
    | ApiSeen
    | Stacks
    | EntryTimes
    | EvidenceReply
    | MachineChecked
    | GroupOpened
    | StepRepeated
    | VersionPrepared
    | AskCode
    | ProfileTaken
    | TracePart
    | CompiledHere
)
FromClient = (
    StopJob | ScaleJob | UpdateJob | AskStatus | AskStacks | AskChecks | AskReplay | AskProfile
)
ToController = Hello | Fact | Report | Answer | FromClient
ToAgent = Welcome | Ack | Start | Stop | UseVersion | Leave
ToClient = StatusReply | StacksReply | ChecksReply | ReplayReply | ProfileReply | Done

# ── agent → worker (control socket, one JSON line) ────────────────────────────────────────────


class WorkerParking(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says on its parking socket: whether it can be kept when the attempt is broken,
    and that it does nothing of it any more. `moves`: also as another rank, or of more or fewer."""

    state: Literal["able", "unable", "parked"]
    why: str = ""
    moves: bool = False


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What a waiting worker is told when it gets a rank. `env` is merged into its environment."""

    attempt: int
    rank: int
    local_rank: int
    world_size: int
    redo_until: int
    env: dict[str, str]
