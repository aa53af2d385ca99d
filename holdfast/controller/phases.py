"""The phases of a job and the legal changes between them.

The table is the documentation: `diagram()` draws it for the docs, `may_move` is all the code asks.
"""

from enum import StrEnum

from holdfast.actions import Outcome


class Phase(StrEnum):
    """What the job as a whole is doing."""

    WAITING = "waiting"  # for nodes, or for the back-off between restarts
    STARTING = "starting"  # an attempt was ordered, training is not seen yet
    RUNNING = "running"
    RECOVERING = "recovering"  # a fault: the attempt is being stopped and explained
    CLOSING = "closing"  # the attempt is being stopped for good
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    GAVE_UP = "gave_up"
    STOPPED = "stopped"


MOVES: dict[Phase, frozenset[Phase]] = {
    Phase.WAITING: frozenset({Phase.STARTING, Phase.RECOVERING, Phase.GAVE_UP, Phase.STOPPED}),
    Phase.STARTING: frozenset({Phase.RUNNING, Phase.RECOVERING, Phase.CLOSING, Phase.SUCCEEDED}),
    Phase.RUNNING: frozenset({Phase.RECOVERING, Phase.CLOSING, Phase.SUCCEEDED}),
    Phase.RECOVERING: frozenset({Phase.WAITING, Phase.CLOSING, Phase.FAILED, Phase.GAVE_UP}),
    Phase.CLOSING: frozenset({Phase.STOPPED}),
    Phase.SUCCEEDED: frozenset(),
    Phase.FAILED: frozenset(),
    Phase.GAVE_UP: frozenset(),
    Phase.STOPPED: frozenset(),
}

FINAL: dict[Outcome, Phase] = {
    Outcome.SUCCEEDED: Phase.SUCCEEDED,
    Outcome.FAILED: Phase.FAILED,
    Outcome.GAVE_UP: Phase.GAVE_UP,
    Outcome.STOPPED: Phase.STOPPED,
}
ENDED = frozenset(FINAL.values())
TRAINING = (Phase.STARTING, Phase.RUNNING)


def may_move(source: Phase, target: Phase) -> bool:
    """Whether the table allows this change."""
    return target in MOVES[source]


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {Phase.WAITING}"]
    lines += [f"    {a} --> {b}" for a in Phase for b in Phase if b in MOVES[a]]
    lines += [f"    {phase} --> [*]" for phase in Phase if phase in ENDED]
    return "\n".join(lines)
