"""Which checkpoints belong to the story of the job, and which to a branch that was given up.

Attempts are numbered, and each writes down what it went on from. Training that went on from step
480 makes everything beyond 480 that older attempts saved void: another attempt has taken these
steps anew, perhaps on purpose without what came of them. So a node that was cut off and saves after
its attempt has been replaced cannot bring back what was left behind.

Attempts that went on from each other are one lineage. One that began from nothing starts another:
what is there from before has nothing to do with it, and is no less worth for it.

What an attempt has saved from its first bad step on (NaN, replicas that differ, what led to the
same failure each time) belongs to no story. The controller knows these steps: memory has no file
that says what was gone on from, and a spare, or a node that was away, may bring such a snapshot
long after.
"""

import os
from collections.abc import Collection, Iterable, Mapping

import msgspec

from holdfast.checkpoint.key import Key
from holdfast.checkpoint.manifest import Lineage, ParentSnapshot

BAD = "HOLDFAST_BAD_STEPS"


def bad_steps(environ: Mapping[str, str] = os.environ) -> dict[int, int]:
    """The first bad step of each attempt that had one, as far as the controller knows."""
    return dict(msgspec.json.decode(environ.get(BAD, "[]"), type=list[tuple[int, int]]))


def is_bad(key: Key, steps: Mapping[int, int]) -> bool:
    """Whether it was saved at the first bad step of its attempt, or after it."""
    return key.attempt in steps and key.step >= steps[key.attempt]


def valid(key: Key, attempts: Iterable[Lineage]) -> bool:
    """Whether no later attempt went on from before this checkpoint."""
    return left_by(key, attempts) is None


def left_by(key: Key, attempts: Iterable[Lineage]) -> int | None:
    """The first attempt that went on from before this checkpoint; None if none has."""
    later = (one for one in attempts if one.attempt > key.attempt and begun(one) < key.step)
    return min((one.attempt for one in later), default=None)


def begun(one: Lineage) -> int:
    """The step an attempt went on from; -1 if it began from nothing, as before every step."""
    return -1 if one.parent is None else one.parent.step


def implied(keys: Iterable[Key], attempts: Iterable[Lineage]) -> list[Lineage]:
    """What follows for attempts of which only checkpoints are known, because the file with their
    lineage cannot be read: each went on from before the first of them."""
    known = {one.attempt for one in attempts}
    first: dict[int, int] = {}
    for key in keys:
        if key.attempt not in known:
            first[key.attempt] = min(key.step, first.get(key.attempt, key.step))
    return [
        Lineage(
            attempt=number, parent=ParentSnapshot(max(0, number - 1), step - 1) if step else None
        )
        for number, step in first.items()
    ]


def lineages_of(attempts: Collection[Lineage], numbers: Iterable[int]) -> dict[int, int]:
    """The lineage of each of these attempts and numbers, named after its first attempt.

    An attempt that has saved nothing in a place has left no file there: then the nearest one
    before it is taken for the parent, if it is not from before the job began anew. A number of
    which nothing is known, and from which no other went on, is a lineage of its own.
    """
    known = {one.attempt: one for one in attempts}
    found: dict[int, int] = {}
    for number in sorted({*known, *numbers}):
        found[number] = found.get(_parent(known.get(number), known, found), number)
    return found


def _parent(one: Lineage | None, known: dict[int, Lineage], found: Collection[int]) -> int:
    """The number of its parent among `found`; -1 where it has none there."""
    if one is None or one.parent is None:
        return -1
    parent = one.parent.attempt
    if parent in found:
        return parent
    before = (n for n in found if n in known and n < parent and known[n].fresh == one.fresh)
    return max(before, default=-1)


def superseded(attempt: int, attempts: Iterable[int]) -> int | None:
    """The newest attempt after this one, which may then not write any more; None if it is the
    newest."""
    later = [number for number in attempts if number > attempt]
    return max(later) if later else None
