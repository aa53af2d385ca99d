"""Facts the controller hears, in the past tense.

Each is a small frozen struct with a tag, so that it can be sent, journaled and replayed. Times are
ages (`ago_s`): seconds between the fact and the moment it was handed to the controller, whose clock
they are turned into, so that clocks of different nodes never meet. One event per outcome of an
effect: whoever carries out an action reports one of its results.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Literal

import msgspec

from holdfast.digests import StepsToRepeat
from holdfast.evidence import NodeEvidence
from holdfast.occurrences import Occurrence
from holdfast.profiles import StepsProfiled, StepsSlowed
from holdfast.slow_ranks import Straggler
from holdfast.versions import FIRST, Version, When

Keeps = Literal["", "here", "elsewhere"]  # where a step's end is before its attempt is stopped
STORE_DIED_BEFORE = "it had died before the attempt began"  # `WorkerExited.store`, if so


class Store(msgspec.Struct, frozen=True):
    """Where the rendezvous store of one attempt listens; `hosted` when a store really serves there.
    With `hosted=False` only the port is reserved and rank 0 of the script is expected to serve."""

    host: str
    port: int
    hosted: bool


class LastEntered(msgspec.Struct, frozen=True, kw_only=True):
    """The newest collective that a rank has entered in one process group."""

    group: str  # its name
    number: int
    kind: str
    due: str  # by the period of those before it; empty where they have none
    described: str = ""


class WorkerError(msgspec.Struct, frozen=True, kw_only=True):
    """An uncaught Python exception of a worker, as the worker itself wrote it down."""

    type: str  # qualified name, e.g. "ValueError" or "torch.distributed.DistBackendError"
    message: str
    file: str = ""  # innermost frame of the user's own code
    line: int = 0
    traceback: str = ""
    entered: tuple[LastEntered, ...] = ()  # where a collective has failed


class Progress(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How far one worker (or, reduced, a whole attempt) has come.

    `step` counts completed steps: 0 before the first, None where the script does not report any.
    The `*_s` sums run from the start of the attempt."""

    step: int | None = None
    step_ago_s: float = 0.0  # since the end of step `step`
    data_wait_s: float = 0.0
    snapshot_s: float = 0.0
    paused_s: float = 0.0  # nothing of its node ran: all was stopped, or the machine slept
    finished: bool = False  # all steps done: an exit with status 0 is expected


class Quantity(StrEnum):
    """A number of each step that is watched; the value is the name under which it is logged."""

    LOSS = "loss"
    GRAD_NORM = "grad_norm"

    @property
    def words(self) -> str:
        """For people."""
        return "gradient norm" if self is Quantity.GRAD_NORM else "loss"


class Broken(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The first step of one rank in an attempt whose loss, or gradient with its parameter, or whose
    gradient norm for many steps in a row, was not finite. Told once: the rest are consequences."""

    step: int  # number of the step, from 1
    what: Quantity
    value: str  # nan, inf or -inf
    ago_s: float = 0.0  # since that step was over


class Spike(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The newest step of one rank whose loss or gradient norm was far above the usual."""

    step: int
    what: Quantity
    value: float
    usual: float  # the median of the steps before


class Milestone(StrEnum):
    """What every rank of an attempt has done, in this order. Reported once each per attempt. Of
    OUTPUT and STEPPED one rank is enough, because many scripts print on rank 0 only, and some have
    ranks without an optimizer."""

    STARTED = "started"  # worker process runs with its rank
    OUTPUT = "output"  # one rank has printed something; only of scripts that report no steps
    STEPPED = "stepped"  # one rank was seen to do a step; likewise
    ARRIVED = "arrived"  # called join()
    JOINED = "joined"  # process group ready
    RESTORED = "restored"  # state in place, or nothing to restore
    FIRST_STEP = "first_step"  # first step of the attempt done
    CAUGHT_UP = "caught_up"  # did a step that no earlier attempt had done
    FINISHED = "finished"  # all steps done


class NodeLostReason(StrEnum):
    """How a node was found to be gone."""

    SILENT = "silent"  # no heartbeat in time, or a machine that acknowledges nothing
    PROCESS = "process"  # the engine says it is dead: agent process or pod gone
    STUCK = "stuck"  # given up before, and a process of it cannot be killed


class Event(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The root of all facts."""


class JobSubmitted(Event, frozen=True, kw_only=True):
    """The job is to run. Always the first event.

    `term` is that of the controller that says so; see `shell/succession.py`. `version` is what a
    job runs that was stopped and begins a new journal.
    """

    term: int = 0
    version: Version = FIRST


class ControllerResumed(Event, frozen=True, kw_only=True):
    """A new controller process has replayed the journal and goes on.

    `existing` names the nodes the driver found alive. `term` is that of every line until the next
    one goes on, `obeyed` the newest attempt that an agent was told to start or stop, where known.
    """

    existing: tuple[str, ...]
    term: int = 0
    obeyed: int = 0
    diverged: str = ""  # where this version has decided otherwise than the journal says


Beginning = JobSubmitted | ControllerResumed  # what every controller hears first


class NodeJoined(Event, frozen=True, kw_only=True):
    """An agent registered for the first time. It is not usable before `NodeReady`."""

    node: str  # unique id of this life of the node (pod UID), never an index
    name: str
    address: str  # host under which other nodes reach it
    workers: int  # workers it will run
    rack: str = ""  # whose nodes share power, cooling or a switch; "" where that is not known


class OrdersLost(Event, frozen=True, kw_only=True):
    """A node has obeyed orders of which this journal, an older copy, does not tell."""

    node: str
    attempt: int  # the newest that it was told to start or to stop


class HandedOver(Event, frozen=True, kw_only=True):
    """This controller hears of no node on another machine, and gives its place away."""


class NodesMet(Event, frozen=True, kw_only=True):
    """A node on another machine is heard, after controllers that gave their place away."""


class NodeReady(Event, frozen=True, kw_only=True):
    """The node can start workers at once; `store` is the fresh store it offers. `attempt` is the
    newest one that the job's durable checkpoints know, 0 for none: a job that begins a new journal
    goes on counting there, or what it saves would not count."""

    node: str
    store: Store
    attempt: int = 0
    instrumented: bool = False  # the script uses holdfast.train, so progress will be reported
    warm: bool = True  # its workers only need their ranks; else that is told once they do


class NodePreparing(Event, frozen=True, kw_only=True):
    """The node cannot start workers yet, because it fetches data for them. Told again and again;
    `moved`: it has come further since the last time."""

    node: str
    what: str
    moved: bool


class NodeUnfit(Event, frozen=True, kw_only=True):
    """The machine of a node that waits has failed its checks (`recovery.check`)."""

    node: str
    why: str


class NodesChecked(Event, frozen=True, kw_only=True):
    """What their machines have found in themselves; empty: nothing. Answers `CheckNodes`."""

    found: dict[str, str]
    missing: tuple[str, ...] = ()  # that have not answered, or were gone
    attempt: int = 0  # that of the order
    told: str = ""  # what is known now of the step that they have repeated


class NodeLost(Event, frozen=True, kw_only=True):
    """The node is gone or unreachable; whatever it runs must not count any more."""

    node: str
    reason: NodeLostReason
    ago_s: float = 0.0  # since the last sign of life
    detail: str = ""
    planned: bool = False  # somebody took it: a drain, a preemption, a deletion; no fault of its


class NodeLeft(Event, frozen=True, kw_only=True):
    """The agent ended in an orderly way: dismissed, asked by its engine, or of no use any more."""

    node: str
    detail: str = ""  # what the driver knows of who asked
    failed: str = ""  # what of its own does not work, if it ended for that


class WorkerExited(Event, frozen=True, kw_only=True):
    """One worker process ended by itself (not by our stop order)."""

    node: str
    attempt: int
    rank: int
    exit_code: int | None  # None when a signal ended it
    signal: int | None = None
    ago_s: float = 0.0
    progress: Progress = Progress()
    error: WorkerError | None = None
    log: str = ""  # path of the worker's log, relative to the job's folder
    forkserver: str = ""  # how its node's forkserver had died just before, if it had
    store: str = ""  # likewise, the rendezvous store of its attempt, where that was on its node
    oom: str = ""  # what limits the memory, if the kernel has killed a process of the node for it
    broke: Broken | None = None  # its numbers had been no numbers before it ended
    clue: str = ""  # line of its output that explains why native code aborted it


Ranks = tuple[tuple[int, int], ...]  # ascending: first and last of each row without a gap


def in_rows(ranks: Iterable[int]) -> Ranks:
    """Ranks in the form in which many of them are small."""
    rows: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if rows and rank == rows[-1][1] + 1:
            rows[-1][1] = rank
        else:
            rows.append([rank, rank])
    return tuple((first, last) for first, last in rows)


def each_of(ranks: Ranks) -> Iterator[int]:
    """The single ranks, ascending."""
    return (rank for first, last in ranks for rank in range(first, last + 1))


class ExitGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Workers whose exits a verdict need not tell apart."""

    kind: str  # the cause and, after a space, what sets it apart from others with that cause
    first: WorkerExited  # the earliest; among equals the one with the lowest rank
    others: Ranks = ()


class WorkersExited(Event, frozen=True, kw_only=True):
    """Workers ended by themselves, and that decides nothing at once: evidence of a failure that is
    known already, or exits with status 0 while others train. Told together, however many."""

    attempt: int
    groups: tuple[ExitGroup, ...]
    last_ago_s: float  # since the newest of these exits
    progress: Progress = Progress()  # the furthest step, the newest end of one, the largest sums


class AttemptStopped(Event, frozen=True, kw_only=True):
    """No process of the attempt acts on any member that still lives. Answers `StopAttempt`. `store`
    is the next fresh store of the node with rank 0, None while it has none. `unready` are members
    that cannot start workers yet, because their forkserver has died; `NodeReady` follows."""

    attempt: int
    store: Store | None
    unready: tuple[str, ...] = ()
    progress: Progress = Progress()  # the furthest of its workers
    parked: int = 0  # workers that wait for the next attempt in their processes
    unkept: int = 0  # that could have
    refusal: str = ""  # why another one cannot be kept, whatever happens


class MilestoneReached(Event, frozen=True, kw_only=True):
    """Every rank of the attempt has reached a milestone; `ago_s` since the last of them did."""

    attempt: int
    milestone: Milestone
    ago_s: float = 0.0
    step: int | None = None  # RESTORED: the step training continues after; CAUGHT_UP: its step
    skipped: int = 0  # RESTORED: batches that the training up to there has left out


class Progressed(Event, frozen=True, kw_only=True):
    """Progress of the whole attempt, every few seconds: lowest step of all ranks, largest sums."""

    attempt: int
    progress: Progress


class NumbersBroke(Event, frozen=True, kw_only=True):
    """The loss of the attempt was not finite, or its gradient norm for many steps in a row. Told
    once for each attempt, by the first report that says so; the verdict looks at all ranks."""

    attempt: int
    rank: int  # who reports it: of one report the earliest step, of those the lowest rank
    broke: Broken


class NumbersSpiked(Event, frozen=True, kw_only=True):
    """The loss or gradient norm of a step was far above the usual and finite: only noted."""

    attempt: int
    rank: int
    spike: Spike


class LossPlateaued(Event, frozen=True, kw_only=True):
    """The loss has not fallen by `share` of itself within `steps`: only noted."""

    attempt: int
    rank: int  # whose loss it is
    step: int
    steps: int
    share: float
    loss: float  # median of the last half of them
    before: float  # of those before


class ReplicasDiffer(Event, frozen=True, kw_only=True):
    """Parameters that ranks should hold alike differ between them. Told once for each attempt."""

    attempt: int
    step: int  # completed steps after which that was seen
    agreed: int  # after which all were last the same
    compared: int  # ranks that should be the same
    alike: tuple[Ranks, ...]  # ranks with the same digest, the largest number of them first
    ranks: Ranks  # that differ from the majority; empty where there is none
    ago_s: float = 0.0  # since the step `agreed` was over


class CollectivesShifted(Event, frozen=True, kw_only=True):
    """By the end of the same step of their optimizers, ranks of a process group have entered
    different numbers of collectives: those of different steps meet. Told once for each attempt."""

    attempt: int
    group: str
    agreed: int  # newest step by the end of which all had entered as many
    step: int  # by the end of which they still differed by the same
    compared: int  # ranks
    ranks: Ranks  # that are wrong; empty where that cannot be told
    by: int  # how many more collectives than the others they have entered; mostly negative
    ago_s: float = 0.0  # since they agreed


class CheckpointCommitted(Event, frozen=True, kw_only=True):
    """A checkpoint is whole in a durable tier and can be gone on from. Told by the node of rank 0;
    for the tier on the disks of nodes it stands for all of them."""

    node: str
    tier: str  # local, shared, archive
    attempt: int  # that took it
    step: int
    seconds: float  # that saving took
    bytes: int  # that were new
    name: str = ""


class CheckpointFailed(Event, frozen=True, kw_only=True):
    """A node could not save its part; training goes on, and it is tried again. Told of one node for
    each snapshot, and more and more rarely while that goes on."""

    node: str
    tier: str
    attempt: int
    step: int
    why: str
    failures: int = 1  # in a row


class Diagnosed(Event, frozen=True, kw_only=True):
    """What the evidence of an attempt's failure says. The answer to `Diagnose`."""

    attempt: int
    cause: str  # slug, see holdfast.diagnosis
    summary: str  # one sentence for a person
    confidence: float
    rank: int | None = None  # that failed first and not because of a peer, or stood still
    user_error: bool = False  # the script's
    environment: bool = False  # of something the script depends on: later it may be well again
    final: bool = False  # not even a second attempt could change anything
    signature: str | None = None  # exception type and place: equal for the same bug
    also_failed: int = 0  # workers that failed after it, as a consequence
    step: int | None = None  # the first of any rank whose numbers were not finite
    occurrence: Occurrence | None = None  # as it is compared with others of the same error


class HangSuspected(Event, frozen=True, kw_only=True):
    """Some ranks have made no progress for longer than they may, and are to be looked at."""

    attempt: int
    ago_s: float  # since the last progress of the rank that has stood still the longest
    budget_s: float  # that it had
    step: int | None  # that these ranks have completed, where the script reports it
    counted: int | None = None  # else: of its optimizers in this attempt, or that it printed last
    step_s: float  # a median step; 0: unknown
    trained: bool  # each of them has done its first step in this attempt
    reported: bool = True  # by the script; else only steps of its optimizers are seen
    overdue: bool = False  # nothing is named that might take so long (`recovery.step_timeout_s`)
    idle_limit_s: float | None = None  # where no steps are seen: after which a deadlock is believed
    ranks: Ranks  # that have come least far, some of them


class Judgement(StrEnum):
    """What a look at workers without progress has shown."""

    HANG = "hang"  # they will make none any more
    SLOW = "slow"  # they work, or may
    PAUSED = "paused"  # all were stopped, or one is being debugged: somebody wants that
    OVER = "over"  # those that were idle do something again
    UNKNOWN = "unknown"  # not all could be looked at


class HangJudged(Event, frozen=True, kw_only=True):
    """What became of a suspicion. The answer to `CollectEvidence`."""

    attempt: int
    judgement: Judgement
    summary: str  # one sentence for a person
    confidence: float
    ago_s: float  # since the last progress
    ranks: Ranks = ()  # that the others wait for; empty: nobody stands out
    evidence: tuple[str, ...] = ()  # lines: who stands where
    ended: bool = False  # all scripts have, but for `destroy_process_group`; processes have not


class StragglersFound(Event, frozen=True, kw_only=True):
    """Other ranks are slow than before; empty: none is any more."""

    attempt: int
    stragglers: tuple[Straggler, ...]


class Severity(StrEnum):
    """What a condition of a node asks for."""

    OK = "ok"  # it is over
    WARN = "warn"  # to be told
    ALERT = "alert"  # may pass; twice within minutes is a fault
    FATAL = "fatal"  # will not pass by itself: nothing should train there
    LEAVES = "leaves"  # no fault: somebody has announced that the node will be taken away


ENVIRONMENT = "environment"
COMMON_CONDITIONS = frozenset(("share-read-only", "folder-denied", ENVIRONMENT))
"""Of `HealthChanged`: storage that nodes share, rights and settings, the same on every machine."""


class HealthChanged(Event, frozen=True, kw_only=True):
    """A condition of a node's GPUs, machine or network has begun, has changed, or is over."""

    node: str
    condition: str  # slug: see holdfast.detection.health
    severity: Severity
    device: str = ""  # which GPU, interface or folder, where there are several
    detail: str = ""  # one sentence for a person
    advice: str = ""  # what to do about it
    ago_s: float = 0.0  # since it was seen


class EvidenceTaken(Event, frozen=True, kw_only=True):
    """How some nodes were when an incident began; told once they have answered, or had the time to.
    `missing` are those that did not, `network` says who could not reach whom."""

    incident: int
    found: tuple[NodeEvidence, ...]
    missing: tuple[str, ...] = ()
    network: tuple[str, ...] = ()


class StopRequested(Event, frozen=True, kw_only=True):
    """Somebody wants the job to end; `now` skips the grace time."""

    by: str
    now: bool = False


class ScaleRequested(Event, frozen=True, kw_only=True):
    """Somebody wants so many nodes to train."""

    by: str
    nodes: int


class UpdateRequested(Event, frozen=True, kw_only=True):
    """Somebody wants another version of the job to train; see `versions.py`."""

    by: str
    id: str  # of this wish, which may be told twice
    code: str = ""  # SHA-256 of the new bundle; empty: the code stays
    args: tuple[str, ...] | None = None  # in place of those that it has, with what was set of them
    sets: dict[str, str] = {}  # in addition to what was set before
    when: When = "next-step"
    canary: bool = False  # one node prepares it before all others
    image: str = ""  # of the containers of its nodes; empty: it stays
    back: bool = False  # to the previous version; the keys above count for nothing


class UpdatePrepared(Event, frozen=True, kw_only=True):
    """Nodes have made the workers of a version ready, or one could not. Answers `PrepareUpdate`."""

    version: int
    ready_count: int  # nodes that have; 0 where none could be asked
    why: str = ""  # it cannot be used
    node: str = ""  # the name of the node that says so
    missing: tuple[str, ...] = ()  # names of nodes that have not answered


class Surveyed(Event, frozen=True, kw_only=True):
    """How many ranks are in their steps at this moment, by what they report. Answers `Survey`. One
    that has left its loop, or the process, is not; nor is one that was not heard yet."""

    attempt: int
    training_count: int


class RepetitionRequested(Event, frozen=True, kw_only=True):
    """Somebody wants the nodes of the job to repeat a step, once nothing disturbs."""

    wish: StepsToRepeat


class DeadlinePassed(Event, frozen=True, kw_only=True):
    """The time that `next_deadline()` named has come."""


AnyEvent = (
    JobSubmitted
    | ControllerResumed
    | NodeJoined
    | OrdersLost
    | HandedOver
    | NodesMet
    | NodeReady
    | NodePreparing
    | NodeUnfit
    | NodesChecked
    | NodeLost
    | NodeLeft
    | WorkerExited
    | WorkersExited
    | AttemptStopped
    | MilestoneReached
    | Progressed
    | NumbersBroke
    | NumbersSpiked
    | LossPlateaued
    | StepsSlowed
    | StepsProfiled
    | ReplicasDiffer
    | CheckpointCommitted
    | CheckpointFailed
    | Diagnosed
    | HangSuspected
    | HangJudged
    | CollectivesShifted
    | StragglersFound
    | HealthChanged
    | EvidenceTaken
    | StopRequested
    | ScaleRequested
    | UpdateRequested
    | UpdatePrepared
    | RepetitionRequested
    | Surveyed
    | DeadlinePassed
)
