"""Everything the controller knows, as plain data.

One struct that can be written to disk and read back, so that a new controller process goes on where
the old one died. Only `controller/` changes it; everybody else reads.
"""

from enum import StrEnum

import msgspec

from holdfast.actions import Outcome, StartAttempt, StopAttempt
from holdfast.controller.phases import ENDED, Phase, may_move
from holdfast.controller.policies.replace import REPLACE_AFTER
from holdfast.controller.policies.situation import History, Trouble
from holdfast.digests import StepsToRepeat
from holdfast.dimensions import PLAIN, Layout
from holdfast.events import (
    Diagnosed,
    Milestone,
    Ranks,
    Severity,
    Store,
    WorkerError,
    WorkerExited,
    each_of,
)
from holdfast.evidence import NodeEvidence
from holdfast.occurrences import Occurrence
from holdfast.slow_ranks import Straggler
from holdfast.spec import Job
from holdfast.status import ActionTaken, Choice, Note
from holdfast.versions import FIRST, Version, When

STORY_LENGTH = 40
NOTES_MAX = 20
CHECKS = {"auto": "", "off": "", "spares": "spares", "quick": "all"}  # `recovery.check`


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the controller needs of the job description."""

    node_count: int = 1
    min_nodes: int = 0  # that may train; 0: `node_count`
    max_nodes: int = 0  # likewise
    spare_count: int = 0
    spares_why: str = ""  # there are to be so many
    lets_go: bool = True  # nodes beyond what is wanted; False: others would be made in their place
    max_restarts: int = 20
    exact: bool = False  # that number was asked for: as many restarts as that, and no more
    window_s: float = 3600.0
    restart_grace_s: float = 2.0
    stop_grace_s: float = 15.0
    node_wait_s: float = 600.0
    replace_after: int = REPLACE_AFTER  # device faults of one node; 0: never for that
    batch: str = ""  # what another size means for it: see `Elasticity.batch`
    copies: int = 0  # of private state on other nodes
    in_process: bool = False  # workers that can be are kept over attempts
    replicas: bool = False  # also when the number of nodes changes, and nobody waits for a node
    nodes_each: int = 1  # of a replica: they train together or not at all
    hang_timeout_s: float = 0.0  # without progress; 0: hangs are not looked for
    step_timeout_s: float = 0.0  # outside of named sections; 0: nothing was promised
    on_nan: str = "restart"  # or "stop", "ignore"
    skip_batches: int = 0  # that may be left out, in all
    stragglers: str = "off"  # or "tell", "replace"
    plateau_steps: int = 0  # within which the loss should fall; 0: whatever it does
    plateau_share: float = 0.01  # by so much of itself
    profile_slowdown: float = 0.0  # share by which slower steps are profiled; 0: never
    checks: str = (
        ""  # machines are checked: "all" before they train or wait; "spares" while they wait
    )
    trial_steps: int = 100  # after an update, within which a failure goes back
    group_tests: bool = False  # groups of nodes may repeat a step, to find the bad one
    replica_ranks: int = 1  # of one data-parallel replica; 0: there is but one
    layout: Layout = PLAIN  # that ranks are in; a state that was saved earlier has only the above

    @staticmethod
    def of(job: Job) -> "Limits":
        """The limits that a job description sets."""
        recovery, elastic = job.recovery, job.elasticity
        deals = elastic is not None and job.trains_with == "pytorch"  # nobody else asks for it
        return Limits(
            node_count=job.nodes.count,
            min_nodes=elastic.min_nodes if elastic is not None else 0,
            max_nodes=(elastic.max_nodes or 0) if elastic is not None else 0,
            spare_count=job.nodes.spare_count,
            spares_why=job.nodes.spares_why,
            max_restarts=recovery.restarts,
            exact=recovery.max_restarts is not None,
            window_s=recovery.window_s,
            restart_grace_s=recovery.restart_grace_s,
            stop_grace_s=recovery.stop_grace_s,
            node_wait_s=recovery.node_wait_s,
            copies=job.snapshots.copies,
            batch=elastic.batch if deals and elastic is not None else "",
            hang_timeout_s=recovery.hang_timeout_s if recovery.hangs == "auto" else 0.0,
            step_timeout_s=recovery.step_timeout_s or 0.0,
            in_process=job.recovery.keeps_processes,
            replicas=job.recovery.mode == "replicas",
            nodes_each=job.recovery.nodes_each,
            on_nan=job.recovery.on_nan,
            skip_batches=job.recovery.skip_batches,
            stragglers=job.recovery.stragglers,
            plateau_steps=job.recovery.plateau_steps,
            plateau_share=job.recovery.plateau_share,
            profile_slowdown=job.monitoring.profile_slowdown,
            checks=CHECKS[job.recovery.check],
            trial_steps=job.recovery.update_trial_steps,
            group_tests=job.recovery.group_tests == "auto",
            replica_ranks=job.parallel.layout.replica_ranks if job.parallel is not None else 1,
            layout=job.parallel.layout if job.parallel is not None else PLAIN,
        )

    @property
    def fewest(self) -> int:
        """Nodes below which nothing is trained."""
        return self.min_nodes or self.node_count

    @property
    def most(self) -> int:
        """Nodes that may train at once."""
        return self.max_nodes or self.node_count

    @property
    def elastic(self) -> bool:
        """Whether the number of nodes may change."""
        return self.fewest < self.most

    def whole(self, count: int) -> int:
        """How many of so many nodes can train: those that make whole replicas."""
        return count - count % self.nodes_each


class NodeState(StrEnum):
    """What a node is to the job."""

    JOINING = "joining"  # registered, cannot start workers yet
    SPARE = "spare"  # warm, waits
    MEMBER = "member"  # has a node rank


class Node(msgspec.Struct, kw_only=True):
    """One live node. Lost nodes are removed; their ids stay in `State.lost`."""

    node: str
    name: str
    address: str
    workers: int
    state: NodeState = NodeState.JOINING
    node_rank: int | None = None
    due: int | None = None  # the rank that it is to have next, with the others of its replica
    store: Store | None = None  # fresh store it offers for the next attempt
    rack: str = ""  # "" if it is not known
    warm: bool = True  # its workers only need their ranks
    checked: bool = False  # its machine has passed its checks
    asked: bool = False  # to check it
    joined_at: float = 0.0
    ready_at: float | None = None  # for the first time
    in_a_row: int = 0  # new nodes before it that failed


class HealthRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One condition of a node."""

    condition: str
    device: str
    severity: Severity  # OK: an alert that is over, and may come again
    detail: str
    advice: str
    at: float  # when it was seen last to begin
    alerts: list[float] = []  # when it was an alert, lately
    fault: bool = False  # it will not pass by itself

    @property
    def over(self) -> bool:
        """Whether it is only remembered."""
        return self.severity is Severity.OK


class IncidentRecord(msgspec.Struct, kw_only=True):
    """What the controller keeps of an incident. Cost is added by the ledger."""

    id: int
    cause: str
    summary: str
    node: str  # name
    nodes: list[str] = []  # names of all that were lost, in that order
    rank: int | None
    attempt: int
    step: int | None
    started_at: float
    detected_at: float
    version: int = 1  # that the attempt ran
    ended_at: float | None = None
    overtaken: bool = False  # it ended with the next fault, before training was productive again
    steps_lost: int = 0
    actions: list[ActionTaken] = []
    also_failed: int = 0
    exit_code: int | None = None
    signal: int | None = None
    error: WorkerError | None = None
    log: str | None = None
    evidence: list[str] = []  # who stood where
    hung_after: int | None = None  # steps, as they are counted where the script reports none
    health: list[str] = []  # conditions of the node, where they are the cause
    confidence: float | None = None  # of the verdict
    collected: list[NodeEvidence] = []  # how nodes were; of the newest incidents only
    missing: list[str] = []  # names of nodes that have not told how they were
    network: list[str] = []  # who could not reach whom
    choices: list[Choice] = []  # what was done next, and what else was weighed


class DatedExit(msgspec.Struct, frozen=True):
    """An exit and when it happened, by the controller's clock; later ones of its kind with it."""

    at: float
    exited: WorkerExited
    kind: str = ""  # see `ExitGroup`; empty where it was told alone
    others: Ranks = ()

    @property
    def ranks(self) -> set[int]:
        """All that died like this."""
        return {self.exited.rank, *each_of(self.others)}

    def has(self, rank: int) -> bool:
        """Whether this rank did."""
        return rank == self.exited.rank or any(a <= rank <= b for a, b in self.others)


class Failure(msgspec.Struct, frozen=True):
    """The last user error: the same one again without progress ends the job."""

    signature: str
    step: int | None
    since: float = 0.0  # when it came first, in a row
    nodes: tuple[str, ...] = ()  # names of those that had it since


class Trial(msgspec.Struct, frozen=True):
    """How an attempt ended: what it had restored, how it failed, how far it had come."""

    restored: int
    failure: str  # signature of the exception, else the cause
    step: int | None


class Skip(msgspec.Struct, frozen=True):
    """Batches that are left out, by their numbers: the first, and the first after them."""

    first: int
    end: int
    settled: bool = False  # else: from where the next attempt goes on, or from `first` if later


class TierRecord(msgspec.Struct, kw_only=True):
    """What is known of one durable tier."""

    attempt: int = 0
    step: int | None = None  # of the newest committed checkpoint
    at: float = 0.0  # when it was
    every_s: float | None = None  # since the one before
    seconds: float = 0.0
    bytes: int = 0
    name: str = ""
    commits_count: int = 0
    failures: int = 0  # in a row
    failures_count: int = 0
    why: str = ""  # the last one failed
    told: bool = False  # that saving fails, in a note


class LeftNode(msgspec.Struct, frozen=True):
    """A node was left because it was blamed."""

    at: float
    rack: str = ""


class KeptNode(msgspec.Struct, frozen=True):
    """A member that is to be left once a limit of removals lets it, and for what."""

    node: str
    trouble: Trouble
    history: History


class FailedCheck(msgspec.Struct, frozen=True):
    """A machine that has failed its checks."""

    at: float
    node: str
    name: str
    checks: tuple[str, ...] = ()  # that failed


class UnclearFailure(msgspec.Struct, frozen=True):
    """A check has failed on a node, and another one repeats it."""

    why: str
    witness: str  # that node


class Sizing(msgspec.Struct, kw_only=True):
    """How many nodes train, of a job whose number of nodes may change."""

    size: int | None = None  # of this attempt, or of the next; None: `Limits.node_count`
    target: int | None = None  # that somebody has asked for; None: `Limits.node_count`
    why: str = ""  # it has this size
    changing_to: int | None = None  # the attempt is being stopped for that
    changed_at: float | None = None
    growths: list[float] = []  # when it grew by itself, within the window
    short_since: float | None = None  # nodes are missing since then
    asked_at: float | None = None  # for nodes that have not come yet
    arrival_s: float | None = None  # that the last node took from there until it was ready
    stop_s: float | None = None  # that the last attempt took to stop
    start_s: float | None = None  # that the last one took until it trained
    stop_at: float | None = None  # when it was ordered
    arrived_at: float | None = None  # when the first workers of the job needed their ranks
    shrink_deadline: float | None = None
    grow_deadline: float | None = None


class Stage(StrEnum):
    """What has become of an update."""

    PREPARING = "preparing"  # nodes make its workers ready
    WAITING = "waiting"  # they are; it is used from the next attempt on
    USED = "used"
    REFUSED = "refused"  # a node could not
    REPLACED = "replaced"  # by a later one, before it was used
    REVERTED = "reverted"  # it was used and given up, by itself or because somebody asked


class UpdateRecord(msgspec.Struct, kw_only=True):
    """One request for another version."""

    id: str
    version: Version
    by: str
    at: float
    when: When
    canary: bool = False
    back: bool = False  # to a version that was used before
    stage: Stage = Stage.PREPARING
    why: str = ""  # it has come to that
    asked: bool = True  # nodes have been
    used_at: float | None = None
    attempt: int | None = None  # the first that ran it


class Updating(msgspec.Struct, kw_only=True):
    """Which versions there are. Only the last update can be one that is not used yet."""

    records: list[UpdateRecord] = []
    used: list[Version] = []  # after the first, in that order; the last is that of the next attempt
    begun: int = 1  # the newest version that an attempt has run
    trial_until: int | None = None  # step before which a failure goes back to the version before
    trial_since: float = 0.0
    look_deadline: float | None = None  # the last update is looked at again


class PhaseTimes(msgspec.Struct, kw_only=True):
    """How fast this job is: what steps cost that the ladder weighs."""

    restart_s: float | None = None  # the last restart in place, until it trained
    move_s: float | None = None  # likewise, with a node that had just taken a rank
    moved: bool = False  # some node has, for the next attempt
    fresh_s: float | None = None  # the last start for which no process was kept, until it trained
    kept: bool = False  # some were, for the next attempt
    step_s: float | None = None  # a step lately
    mark: tuple[int, float] | None = None  # a step of this attempt, and when it was over


class State(msgspec.Struct, kw_only=True):
    """The controller's memory."""

    limits: Limits
    phase: Phase = Phase.WAITING
    why: str = "the job was submitted"  # one sentence: why it is in this phase
    outcome: Outcome | None = None
    now: float = 0.0
    started_at: float = 0.0
    ended_at: float | None = None

    nodes: dict[str, Node] = {}
    ranks: dict[int, str] = {}  # node rank → node
    spares: list[str] = []  # nodes that can take a rank, longest waiting first
    vacant: list[int] | None = None  # node ranks nobody has, ascending; None: all of them
    lost: dict[str, str] = {}  # node → why; never taken back
    asked: int = 0  # nodes asked for that have not joined yet
    preparing: dict[str, str] = {}  # node → what it does before it can start workers
    failed_checks: list[FailedCheck] = []  # since a machine has passed
    doubted: dict[str, UnclearFailure] = {}  # by the node whose check has failed
    recheck_at: float | None = None  # of spares that have failed them and stay
    handed_over: int = 0  # by controllers in a row, since one of them has met a node
    stillborn: int = 0  # new nodes in a row that died before they were of use, or did not fit
    node_failed_at: float = 0.0  # when the last of them did
    ask_at: float | None = None  # no node is asked for before that
    held_back: str = ""  # why
    faults: dict[str, list[float]] = {}  # node → recent device faults
    cordoned: list[float] = []  # when machines were, lately
    cordoned_there: dict[str, list[float]] = {}  # likewise, by rack
    removals: list[LeftNode] = []  # the newest
    held_until: float | None = None  # a member stays till then because of them
    kept_node: KeptNode | None = None  # the next attempt waits for that
    kept_restarts: dict[str, list[float]] = {}  # member → those within an hour that this led to
    workers_per_node: int = 0  # of the first node; all must agree
    instrumented: bool = False  # progress will be reported
    steps_seen: bool = False  # no, but steps of its optimizer, or in its output, are seen

    attempt: int = 0
    attempt_started_at: float = 0.0
    start: StartAttempt | None = None  # the order for this attempt, to repeat it if need be
    stop: StopAttempt | None = None  # likewise, the newest to end one
    milestones: list[Milestone] = []
    finished: set[int] = set()  # ranks that exited well
    stopped: bool = True  # nothing of this attempt is left anywhere
    deaths: list[DatedExit] = []  # workers that did not finish in this attempt
    max_step: int | None = None  # furthest step ever completed

    restarts: list[float] = []  # times, within the window
    restarts_count: int = 0
    fruitless: int = 0  # attempts in a row that made no progress
    barren: int = 0  # restarts since the last progress
    named: list[str] = []  # nodes that their verdicts name, one after the other
    nameless: list[float] = []  # hangs and corruptions, lately, that name no node
    checked: bool = False  # all machines were, since the last progress
    slowed: int = 0  # attempt whose steps have become slower, and no rank is to blame
    suspicion: Diagnosed | None = None  # verdict that waits for that
    repeating: StepsToRepeat | None = None  # groups of nodes do, or will once nothing disturbs
    repeat_wishes: list[str] = []  # that were heard; the newest
    repeated_at: float | None = None  # the controller has had that done by itself
    trouble_since: float | None = None  # errors of the environment have kept it from any progress
    progress_mark: int | None = None  # max_step when the attempt began
    last_failure: Failure | None = None
    occurrences: list[Occurrence] = []  # of errors, the newest
    restored: int | None = None  # step that this attempt went on after
    kept: int | None = None  # the same of the newest attempt of which it is known
    falls: int = 0  # how often that was less than before, since the last progress
    reached: int | None = None  # furthest step of this attempt
    last_trial: Trial | None = None
    restore_below: int | None = None  # nothing saved from this step on may be gone on from
    poison_step: int | None = None  # training has to pass it for that to be over
    rolled_back: str | None = None  # failure for which an older checkpoint was tried last
    tiers: dict[str, TierRecord] = {}  # durable tiers that have been heard of
    committed: list[int] = []  # steps of committed checkpoints, in the order of their commits
    bad_step: int | None = None  # the first of this attempt whose numbers are worth nothing
    corrupt_step: int | None = None  # likewise, because replicas have differed from it on at most
    bad_steps: tuple[tuple[int, int], ...] = ()  # attempts that had one, and which
    last_bad_step: int | None = None  # where that began the last time
    skips: list[Skip] = []  # batches left out
    skipped: int = 0  # how many were, in what this attempt restored
    notes: list[Note] = []  # what was noticed and is no fault; the newest ones
    known_attempt: int = 0  # the newest that durable tiers know, whoever counted it
    earlier_attempts: int = 0  # of the numbers up to `attempt`, those that this journal did not use
    incidents: list[IncidentRecord] = []
    standstill: str = ""  # why no step is made, while workers were seen to work or to be paused
    stood_after: int | None = None  # `HangSuspected.counted` of the last look
    # verdict for which this attempt is being stopped; saved by its first name
    stopped_for: Diagnosed | None = msgspec.field(name="hang", default=None)
    profiled: tuple[int, float] | None = None  # attempt and time of the last own profile
    profiling: int = 0  # step from which that was wanted, as long as nothing has come of it
    stragglers: tuple[Straggler, ...] = ()  # of this attempt, at this moment
    health: dict[str, dict[str, HealthRecord]] = {}  # node → condition and device → how it is

    scaled_by: str = ""  # who asked for `sizing.target`
    sizing: Sizing = msgspec.field(default_factory=Sizing)
    updating: Updating = msgspec.field(default_factory=Updating)
    start_deadline: float | None = None  # back-off: not before
    wait_deadline: float | None = None
    leave_deadline: float | None = None  # a rank has left early: the others are looked at
    quiet_deadline: float | None = None  # a script that reports no steps trains, if it lives then
    spoke_at: float | None = None  # when it said something
    times: PhaseTimes = msgspec.field(default_factory=PhaseTimes)
    choices: list[Choice] = []  # while a fact is handled: what was chosen about it
    story: list[str] = []

    @property
    def world_size(self) -> int:
        """Workers of an attempt."""
        return self.size * self.workers_per_node

    @property
    def size(self) -> int:
        """Nodes of this attempt; where none trains, of the next."""
        size = self.sizing.size
        return self.limits.node_count if size is None else size

    @property
    def target(self) -> int:
        """Nodes that should train."""
        target = self.sizing.target
        return self.limits.node_count if target is None else target

    @property
    def version(self) -> Version:
        """What the next attempt runs."""
        return self.updating.used[-1] if self.updating.used else FIRST

    @property
    def wanted(self) -> int:
        """Nodes that should exist: those that train and those that wait."""
        return self.target + self.limits.spare_count

    @property
    def exits(self) -> tuple[WorkerExited, ...]:
        """The deaths of this attempt, all ages counted to now."""
        return tuple(
            msgspec.structs.replace(death.exited, ago_s=self.now - death.at)
            for death in self.deaths
        )

    @property
    def others(self) -> dict[int, Ranks]:
        """Who died in the same way as a rank in `exits`, by that rank."""
        return {death.exited.rank: death.others for death in self.deaths if death.others}

    @property
    def deadlines(self) -> list[float]:
        """When something is due if nothing happens before."""
        known = (
            self.start_deadline, self.wait_deadline, self.leave_deadline, self.quiet_deadline,
            self.sizing.shrink_deadline, self.sizing.grow_deadline,
            self.updating.look_deadline, self.recheck_at, self.ask_at, self.held_until,
        )  # fmt: skip
        return [at for at in known if at is not None]

    @property
    def ended(self) -> bool:
        """Nothing will change any more."""
        return self.phase in ENDED

    @property
    def open_incident(self) -> IncidentRecord | None:
        """The incident that training has not recovered from yet."""
        last = self.incidents[-1] if self.incidents else None
        return last if last is not None and last.ended_at is None else None

    def tell(self, line: str) -> None:
        """Add a line to the story, which is shown when something impossible happens."""
        self.story.append(f"{self.now:.3f} {line}")
        del self.story[:-STORY_LENGTH]

    def note(self, step: int, rank: int, text: str) -> None:
        """Write down what was noticed at a step of a rank and stops nothing."""
        note = Note(at=self.now, attempt=self.attempt, step=step, rank=rank, text=text)
        self.notes = [*self.notes, note][-NOTES_MAX:]

    def move(self, phase: Phase, why: str) -> None:
        """Change the phase; raises `IllegalMoveError` with the story if the table forbids it."""
        if not may_move(self.phase, phase):
            raise IllegalMoveError(self, f"phase {self.phase} -> {phase} ({why})")
        self.tell(f"{self.phase} -> {phase}: {why}")
        self.phase, self.why = phase, why


class IllegalMoveError(AssertionError):
    """The controller broke a rule of its own; the message is the story that led there."""

    def __init__(self, state: State, what: str) -> None:
        story = "\n  ".join(state.story)
        super().__init__(f"{what}\nattempt {state.attempt}, story:\n  {story}")
