"""What you get: the shapes behind every `--json` and, later, the API.

Fields are only ever added. Times are seconds since the epoch (UTC), durations end in `_s`. JSON has
no numbers that are not finite: where one may be so, it is null and a field beside it says which.
"""

import msgspec

from holdfast.evidence import NodeEvidence


class NodeCondition(msgspec.Struct, frozen=True, kw_only=True):
    """A problem with a node's GPUs, machine or network."""

    condition: str  # slug: see docs/concepts/diagnosis.md
    severity: str  # warn, alert, fatal or leaves
    device: str  # which GPU, interface or folder
    detail: str  # one sentence for a person
    advice: str
    since: float
    fault: bool  # permanent: the node is replaced if a healthy spare is available


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One node as the controller sees it. `rank` is its node rank, None unless it trains."""

    name: str
    state: str
    rank: int | None
    node: str  # unique id of this life of the node
    pids: tuple[int, ...] = ()  # its workers by local rank, on that node
    conditions: tuple[NodeCondition, ...] = ()  # the most severe first


class TierStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One durable tier that has been saved to, or could not be."""

    tier: str  # local, shared, archive
    step: int | None  # of the newest committed checkpoint
    attempt: int
    age_s: float | None  # since it was committed
    every_s: float | None  # as planned now, else (nothing runs) between the last two
    seconds: float  # that the last save took
    bytes: int  # that were new in it
    commits_count: int
    failures: int  # in a row
    failures_count: int
    why: str | None = None  # the last save failed
    name: str | None = None


class Copies(msgspec.Struct, frozen=True, kw_only=True):
    """Which losses of nodes memory alone survives: state of a single rank is on `holders` nodes."""

    holders: int
    survives: int  # nodes lost at once, whichever they are
    next_loss: float | None = None  # probability to survive one more than that, at least


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """An observation that does not stop training, such as a spike of the loss."""

    at: float
    attempt: int
    step: int
    rank: int
    text: str


def waiting(what: str) -> str:
    """What is waited for as a part of a sentence; nodes in a cluster tell a whole one."""
    whole = " wait for " in what or " waits for " in what
    return what if whole else f"waiting for {what}"


class UpdateStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One update that was asked for."""

    version: int
    id: str  # of the request
    by: str
    at: float
    when: str  # now, next-step or next-failure
    stage: str  # preparing, waiting, used, refused, replaced or reverted
    why: str | None  # it has come to that
    code: str | None  # SHA-256 of its bundle; null: the code as the job was started
    sets: dict[str, str]  # options and, after `env.`, variables: what they were set to
    back: bool  # to a version that was used before
    attempt: int | None  # the first that ran it
    incidents: tuple[int, ...]  # of attempts that ran it
    image: str | None = None  # of nodes made since; null: that of the job as it was started
    args: tuple[str, ...] | None = None  # in place of those that the job had; null: those, `sets`


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `holdfast status`."""

    job: str
    phase: str
    attempt: int
    step: int | None
    ettr: float
    nodes: tuple[NodeStatus, ...]
    incidents_count: int
    restarts_count: int
    waiting_for: str | None
    started_at: float
    wall_s: float
    loss: float | None = None
    step_time_s: float | None = None
    snapshot_step: int | None = None  # newest snapshot that all ranks have
    snapshot_every: int | None = None  # steps between snapshots
    snapshot_age_s: float | None = None  # since the last rank had the newest
    snapshot_took_s: float | None = None  # that training waited for the newest
    snapshot_bytes: int | None = None  # memory that snapshots take on all nodes, with copies
    controller: str = "alive"  # or: starting, unreachable, away (died, job may continue), ended
    outcome: str | None = None
    why: str | None = None  # one sentence: why it is in this phase
    checkpoints: tuple[TierStatus, ...] = ()
    copies: Copies | None = None  # None: a single node, or none are kept
    training_count: int | None = None  # nodes with a rank; set where `nodes` are stored elsewhere
    recorded_at: float | None = None  # when the record in a cluster was written
    incomplete: str | None = None  # why not all that there was could be read
    loss_is: str | None = None  # nan, inf or -inf, where `loss` is null because of that
    notes: tuple[Note, ...] = ()  # the newest ones
    optimizer_steps: int | None = None  # in this attempt, of a script that reports no steps
    optimizer_step_ago_s: float | None = None  # since the newest of them
    optimizer_step_time_s: float | None = None  # lately
    printed_step: int | None = None  # newest in its output, by the patterns of the job
    printed_step_ago_s: float | None = None  # since it became that
    size: int | None = None  # nodes of this attempt, or of the next; None: it cannot change
    target: int | None = None  # nodes that should train
    size_why: str | None = None  # it has that size, or had to change it last
    spares_why: str | None = None  # how `spares: auto` was computed
    version: int = 1  # that the newest attempt runs, or the next one
    updates: tuple[UpdateStatus, ...] = ()  # that were asked for
    metrics: str | None = None  # where its controller is scraped, of a local job
    steps_total: int | None = None  # after which training ends, if the script has said


class TrialStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One trial of a sweep."""

    number: int
    job: str
    values: dict[str, str]  # by the name of the option
    phase: str  # waiting, running, or how it ended: succeeded, failed, gave_up, stopped
    metric: float | None = None  # the newest value that it has reported, if that is finite


class SweepStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `holdfast sweep`."""

    sweep: str
    phase: str  # running, away (its command has ended before the last trial), stopped or ended
    metric: str  # name of what trials are compared by
    goal: str  # min or max
    trials: tuple[TrialStatus, ...]  # the best first


class ActionTaken(msgspec.Struct, frozen=True, kw_only=True):
    """One thing Holdfast did about an incident."""

    at: float
    action: str
    reason: str


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the ladder that was weighed: what it would cost, and why it was taken or not."""

    step: str  # see docs/concepts/recovery.md
    cost_s: float  # expected, seconds of the whole job
    sufficient: bool  # it is possible and would do; the cheapest of these is taken
    why: str


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What to do next was chosen among all steps of the ladder."""

    at: float
    about: str  # the attempt, or the name of a node
    cause: str  # slug of what it was chosen for
    step: str
    reason: str
    alternatives: tuple[Alternative, ...] = ()  # empty in old incidents: only the step is kept


class TimedFact(msgspec.Struct, frozen=True, kw_only=True):
    """Something that became known in an incident."""

    at: float
    kind: str  # suspected, looked, judged, exited, lost, stopped, verdict, evidence, restored, ...
    text: str


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """From the first evidence of a fault until training was productive again (`ended_at`), or until
    the next fault if that came first (`overtaken`)."""

    id: int
    cause: str
    summary: str  # one sentence for a person
    node: str  # name of the node
    rank: int | None
    attempt: int
    step: int | None
    started_at: float
    ended_at: float | None
    lost_s: float
    steps_lost: int
    bill: dict[str, float]  # bucket → seconds; sums to lost_s
    actions: tuple[ActionTaken, ...]
    also_failed: int = 0  # ranks that failed after, as a consequence
    exit_code: int | None = None
    signal: int | None = None
    error_type: str | None = None
    traceback: str | None = None
    log: str | None = None  # path of the log of the rank that failed first
    nodes: tuple[str, ...] = ()  # names of all nodes that it was about, `node` first
    evidence: tuple[str, ...] = ()  # of a hang: where each rank was blocked
    health: tuple[str, ...] = ()  # conditions of the node, where they are the cause
    collected: tuple[NodeEvidence, ...] = ()  # how nodes were then; of the newest incidents
    missing: tuple[str, ...] = ()  # nodes that did not report
    network: tuple[str, ...] = ()  # who could not reach whom
    detected_at: float | None = None
    confidence: float | None = None  # of the verdict, 0 to 1; None: there was none
    version: int = 1  # that the attempt ran
    overtaken: bool = False  # the next incident began before training was productive again
    choices: tuple[Choice, ...] = ()  # what was done next, and what else was weighed
    trace_id: str | None = None  # of its trace, where the job exports to OpenTelemetry (`otlp`)
    facts: tuple[TimedFact, ...] = ()  # that became known, in order; of the newest incidents
    ahead_s: float = 0.0  # of the wall clock; to be added to these times, which are not set by it


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `holdfast goodput`. `buckets` sum to `wall_s` to the millisecond."""

    job: str
    wall_s: float
    ettr: float
    ettr_1h: float
    buckets: dict[str, float]
    observed: bool  # False: no steps reported, so all the time its workers ran counts as productive
    incomplete: str | None = None  # why not all that there was could be read
