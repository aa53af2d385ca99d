"""Orders the controller gives. Idempotent, each with the reason it was given.

Orders about membership are deltas (`AssignRank`, `Dismiss`), never the whole roster, so that their
size does not grow with the job. A driver turns them into effects and answers with events.
"""

from enum import StrEnum

import msgspec

from holdfast.digests import StepsToRepeat
from holdfast.events import AnyEvent, HangSuspected, Keeps, Ranks, Store, WorkerExited
from holdfast.status import Choice
from holdfast.versions import FIRST, Version


class Outcome(StrEnum):
    """How a job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"  # the user's code is at fault
    GAVE_UP = "gave_up"  # Holdfast ran out of ways to keep it going
    STOPPED = "stopped"  # somebody asked


class Action(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The root of all orders."""

    reason: str


class AskNodes(Action, frozen=True, kw_only=True):
    """Get `count` more nodes from the engine. Answered by `NodeJoined` for each."""

    count: int


class AssignRank(Action, frozen=True, kw_only=True):
    """The node becomes a member with this node rank, from the next attempt on."""

    node: str
    node_rank: int


class StartAttempt(Action, frozen=True, kw_only=True):
    """Every member starts its workers. Answered by milestones or `WorkerExited`."""

    attempt: int
    node_count: int
    workers_per_node: int
    store: Store
    redo_until: int  # steps up to this one have been done before: redoing them is replay
    restarts: int  # attempts before this one
    restore_below: int | None = None  # only what was saved before this step may be gone on from
    bad_steps: tuple[tuple[int, int], ...] = ()  # attempts, and from where on nothing
    skips: tuple[tuple[int, int], ...] = ()  # batches left out: first, and first after them
    committed: int | None = None  # newest step of this job in tiers that outlive its nodes
    version: Version = FIRST  # that all of its workers run


class StopAttempt(Action, frozen=True, kw_only=True):
    """Every member ends its workers: SIGTERM, then SIGKILL after `grace_s`.

    `save`: one more snapshot goes to a durable tier first, within the grace time. `keeps`: it is in
    memory first, as it was at the end of a step: on its own node, or on others too. Answered by
    `AttemptStopped` once all have. `look`: ranks that live are asked first which collectives they
    have entered, for a moment, because that tells whose fault it is. `park_s`: workers that can be
    kept wait for the next attempt instead of ending, if they come to that within this time; 0: it
    would take too long.
    """

    attempt: int
    grace_s: float
    save: bool = False
    keeps: Keeps = ""
    look: bool = False
    park_s: float | None = None


class Diagnose(Action, frozen=True, kw_only=True):
    """Weigh the exits of an attempt that is known to be stopped. Answered by `Diagnosed`.

    `others` are ranks that ended in the same way as a rank in `exits`, by that rank.
    """

    attempt: int
    exits: tuple[WorkerExited, ...]
    others: dict[int, Ranks] = {}


class CollectEvidence(Action, frozen=True, kw_only=True):
    """Look what the workers of an attempt do that makes no progress. Answered by `HangJudged`."""

    suspicion: HangSuspected


class PrepareUpdate(Action, frozen=True, kw_only=True):
    """Every node makes workers of this version ready, up to where they need their ranks, beside
    those that train. `canary`: one node before all others. Answered by `UpdatePrepared`."""

    version: Version
    canary: bool = False


class KeepVersion(Action, frozen=True, kw_only=True):
    """Every node drops what it has ready of any other version."""

    version: Version


class Survey(Action, frozen=True, kw_only=True):
    """Look which ranks are in their steps. Answered by `Surveyed`."""

    attempt: int


class CheckNodes(Action, frozen=True, kw_only=True):
    """The machines of these nodes check themselves. Answered by `NodesChecked`.

    `attempt` has ended and nobody knows why; 0: spares are looked at. Members among these, which
    train, run only the check `beside`, to compare. `repeat`: instead, groups of these nodes, in the
    order of their ranks, repeat a step.
    """

    nodes: tuple[str, ...]
    attempt: int = 0
    beside: str = ""
    repeat: StepsToRepeat | None = None


class ProfileSteps(Action, frozen=True, kw_only=True):
    """Profile some steps of rank 0 and of the slowest. Answered by `StepsProfiled`."""

    attempt: int
    step: int  # at which it was decided


class Fence(Action, frozen=True, kw_only=True):
    """Make sure that nothing of this lost node runs any more, by every means the driver has.

    `blamed`: its devices failed again and again, so nothing should run on its machine either.
    """

    node: str
    blamed: bool = False


class Dismiss(Action, frozen=True, kw_only=True):
    """The node is not needed any more: its agent ends. Answered by `NodeLeft` or `NodeLost`."""

    node: str


class EndJob(Action, frozen=True, kw_only=True):
    """The job is over: dismiss every node, close the journal."""

    outcome: Outcome


AnyAction = (
    AskNodes
    | AssignRank
    | StartAttempt
    | StopAttempt
    | Diagnose
    | CollectEvidence
    | PrepareUpdate
    | KeepVersion
    | Survey
    | CheckNodes
    | ProfileSteps
    | Fence
    | Dismiss
    | EndJob
)


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the journal: a fact, when it was handled, and what was decided, of what else."""

    seq: int  # from 1, without gaps
    at: float  # seconds since the epoch by the controller's clock; never decreases
    event: AnyEvent
    actions: tuple[AnyAction, ...]
    choices: tuple[Choice, ...] = ()  # none in journals of earlier versions
    ahead_s: float | None = None  # of the wall clock, once it was set or the machine has slept
