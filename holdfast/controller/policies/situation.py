"""What the ladder looks at, as plain data: what happened, the history, what is there, the costs.

`choices.py` reads it off the state; the rows of the ladder weigh it. Kept apart from the rows, so
that those can be read as one table.
"""

from enum import StrEnum
from typing import NamedTuple

import msgspec

from holdfast.controller.policies import replace
from holdfast.occurrences import Recurrence


class Rung(StrEnum):
    """The steps, from the one that changes least to the one that ends the job."""

    CARRY_ON = "carry-on"
    RESTART = "restart"
    REPLACE = "replace"
    ROLL_CODE = "roll-back-code"
    ROLL_BACK = "roll-back-state"
    CHECK = "check"
    REPLAY = "replay"
    ISOLATE = "isolate"
    WAIT = "wait"
    SHRINK = "shrink"
    GROW = "grow"
    GIVE_UP = "give-up"


MEANINGS = {
    Rung.CARRY_ON: "Continue training; the finding is recorded and reported.",
    Rung.RESTART: "Start the same nodes again, from the newest state in memory; after a wait where "
    "attempts in a row made no progress, or a dependency of the script is unavailable.",
    Rung.REPLACE: "A node is removed or lost, and another takes its rank: a spare, else a new one.",
    Rung.ROLL_CODE: "Start the same nodes again, with the version used before the update on trial.",
    Rung.ROLL_BACK: "Start the same nodes again, from a state older than what was restored.",
    Rung.CHECK: "All machines of the job check themselves while nothing trains; one that fails is "
    "replaced.",
    Rung.REPLAY: "Groups of nodes repeat a step while nothing trains, to find the one that "
    "produces wrong results or hangs only in a group; it is replaced.",
    Rung.ISOLATE: "A node that the verdict names repeatedly is replaced on suspicion; its machine "
    "remains available to other jobs.",
    Rung.WAIT: "Ranks are without a node: wait for the nodes that were requested. Or a node should "
    "be replaced, and too many were within an hour: wait until it may be.",
    Rung.SHRINK: "Start with fewer nodes, where the job is elastic.",
    Rung.GROW: "Stop at the end of a step, and start with more nodes.",
    Rung.GIVE_UP: "The job ends, with an account of why no other step is sufficient.",
}


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """What happened, by a verdict or by what was noticed while training goes on."""

    cause: str = ""
    summary: str = ""
    confidence: float = 1.0
    user_error: bool = False
    environment: bool = False
    final: bool = False  # not even a second attempt could change anything
    ended: bool = False  # an attempt has, and whether there will be another is asked
    trains: bool = False  # the attempt goes on so far
    harmless: str = ""  # why it may go on with what would be worth nothing else
    node: str = ""  # name of the member that it happened on
    faulty: bool = False  # that node has a fault that will not pass by itself
    bad_step: int | None = None  # what was saved from there on is worth nothing
    stops: bool = False  # somebody wants the job to end with it (`recovery.on_nan: stop`)
    alone: bool = False  # no more nodes will come


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What the job has been through."""

    faults: int = 0  # of that node lately, this one included
    again: bool = False  # an error of the script that is the last one again, without progress
    stuck_s: float | None = None  # likewise, for so long, on several nodes, and no step ever done
    bad_again: bool = False  # numbers were bad at this place before
    poisoned: bool = False  # two attempts went on from the same place and failed alike
    spent: bool = False  # an older checkpoint was tried for this failure
    restored: int | None = None  # step that the attempt went on after
    fruitless: int = 0  # attempts in a row without progress
    barren: int = 0  # restarts since the last progress
    restarts: int = 0  # within the window
    freed_s: float = 0.0  # until the first of them does not count any more
    trouble_s: float | None = None  # since the environment has kept the job from any progress
    growths: int = 0  # by itself, within the window
    unproven: str = ""  # how far the version is that an update has brought, and may be to blame
    recurs: Recurrence | None = None  # whose the error is, as far as places where it came tell
    checked: bool = False  # all machines were, since the last progress
    slowed: bool = False  # steps of this attempt had become slower, and no rank is to blame
    nameless: int = 0  # hangs and corruptions within the window whose verdict names no node
    named: int = 0  # attempts in a row without progress whose verdict names this node
    kept: int = 0  # restarts within an hour with a node that only a limit of removals kept
    stays: bool = False  # one of them was with this node


class Means(msgspec.Struct, frozen=True, kw_only=True):
    """What is there, and what the job description allows."""

    spares: int = 0  # sound and warm ones that wait
    cold: int = 0  # that wait, and whose workers are not ready yet
    waiting: int = 0  # nodes that could take a rank, sound or not
    vacant: int = 0  # ranks without a node
    size: int = 1
    fewest: int = 1
    target: int = 1
    older: int | None = None  # newest committed checkpoint before what was restored
    replace_after: int = replace.REPLACE_AFTER
    held: str = ""  # why no node is left for what it is blamed for: too many were just before
    held_s: float = 0.0  # until that is over
    skips: int = 0  # batches that may yet be left out
    skipped: int = 0  # that were
    checks: bool = False  # machines may be checked while nothing trains
    repeats: bool = False  # groups of nodes may repeat a step, and can
    stragglers: bool = False  # are replaced
    max_restarts: int = 20
    exact: bool = False  # that number was asked for
    window_s: float = 3600.0
    node_wait_s: float = 600.0
    replicas: bool = False  # the others go on without a node, at once
    nodes_each: int = 1  # that train together or not at all

    @property
    def left(self) -> int:
        """Nodes that could train now."""
        return self.whole(self.size - self.vacant + self.waiting)

    def whole(self, count: int) -> int:
        """How many of so many nodes can train."""
        return count - count % self.nodes_each

    @property
    def missing(self) -> int:
        """Ranks that nobody can take yet."""
        return max(0, self.vacant - self.waiting)


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that the phases of this job have taken; the defaults are assumed."""

    stop_s: float = 0.0
    start_s: float = 30.0  # in place, until it trains
    move_s: float = 30.0  # likewise, with a node that has just taken a rank
    arrival_s: float = 120.0  # of a node that was asked for
    expected_s: float | None = None  # until the missing ones come; None: nobody knows
    waited_s: float = 0.0  # for them so far
    since_change_s: float | None = None  # of the size
    change_s: float = 30.0  # of the size
    check_s: float = 30.0  # for all machines to check themselves
    step_s: float = 1.0
    redone: int = 1  # steps, after a restart
    behind: int = 0  # steps done since what a roll-back would go on from


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the choice rests on."""

    trouble: Trouble = Trouble()
    history: History = History()
    means: Means = Means()
    prices: Prices = Prices()


class Weighed(NamedTuple):
    """One step in a situation."""

    rung: Rung
    cost_s: float
    against: str  # why it would not do; empty if it would
    reason: str  # for it, if it is taken
