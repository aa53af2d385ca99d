"""Which checkpoints belong to the story of the job, and which to a branch that was given up.

Attempts are numbered, and each writes down what it went on from. Training that went on from step
480 makes everything beyond 480 that older attempts saved void: another attempt has taken these
steps anew, perhaps on purpose without what came of them. So a node that was cut off and saves after
its attempt has been replaced cannot bring back what was left behind.
"""

from collections.abc import Iterable

from holdfast.checkpoint.key import Key
from holdfast.checkpoint.manifest import Lineage


def valid(key: Key, attempts: Iterable[Lineage]) -> bool:
    """Whether no later attempt went on from before this checkpoint."""
    return all(begun(one) >= key.step for one in attempts if one.attempt > key.attempt)


def begun(one: Lineage) -> int:
    """The step an attempt went on from; -1 if it began from nothing, as before every step."""
    return -1 if one.parent is None else one.parent.step


def superseded(attempt: int, attempts: Iterable[int]) -> int | None:
    """The newest attempt after this one, which may then not write any more; None if it is the
    newest."""
    later = [number for number in attempts if number > attempt]
    return max(later) if later else None
