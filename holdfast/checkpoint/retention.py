"""Which checkpoints are kept: the newest few, then fewer and fewer, and what has a name.

The newest `newest` are kept for a quick return. Before these the ages, in steps, are cut into spans
that double in length, and of each span the oldest checkpoint stays: a history of a few dozen
however long the job runs, in which there is always one from before a fault that shows late. Keeping
the oldest and not the newest of a span is what makes this hold when it is applied after every save:
it is the next to move into the following span.

Never to go: one with a name, the one from which the job went on last, because it is known to be
good, and the last two.

All of this holds for each lineage by itself: one in which the job does not go on any more is kept
as it was. Within a lineage a branch that was left, because a later attempt went on from before it,
is thinned in the same way until training has gone past it; then its newest checkpoint stays. Of
many such branches the latest few keep that one, and one for each doubling of age.
"""

from collections.abc import Collection, Iterable

from holdfast.checkpoint.key import Key, newest_first
from holdfast.checkpoint.lineage import left_by, lineages_of
from holdfast.checkpoint.manifest import Lineage

LEAST = 2  # an older one may be referred to by a save that is just under way


def kept(keys: Iterable[Key], *, newest: int, firm: Collection[Key] = ()) -> frozenset[Key]:
    """Those of `keys` that stay; `firm` ones do in any case."""
    ordered = newest_first(keys)
    first = max(newest, LEAST)
    stay = {*ordered[:first], *(key for key in ordered if key in firm)}
    stay.update(_thinned(ordered, first))
    return frozenset(stay)


def _thinned(ordered: list[Key], first: int) -> Iterable[Key]:
    if len(ordered) <= first:
        return []
    last = ordered[0].step
    unit = max(1, last - ordered[first - 1].step)
    spans = {((last - key.step) // unit).bit_length(): key for key in ordered[first:]}
    return spans.values()  # the oldest of each, because it comes last


def surplus(
    keys: Collection[Key], attempts: Collection[Lineage], *, newest: int, named: Collection[Key]
) -> dict[Key, str]:
    """Those of the checkpoints of a place that may go, and why; `named` ones never do."""
    lineage = lineages_of(attempts, (key.attempt for key in keys))
    gone: dict[Key, str] = {}
    for first in sorted(set(lineage.values())):
        mine = [key for key in keys if lineage[key.attempt] == first]
        theirs = [one for one in attempts if lineage[one.attempt] == first]
        gone |= _surplus_of_lineage(mine, theirs, newest, named)
    return gone


def _surplus_of_lineage(
    keys: Collection[Key], attempts: Collection[Lineage], newest: int, named: Collection[Key]
) -> dict[Key, str]:
    left = {key: left_by(key, attempts) for key in keys}
    live = [key for key, attempt in left.items() if attempt is None]
    last = max(attempts, key=lambda one: one.attempt, default=None)
    proven = [last.parent.key] if last is not None and last.parent is not None else []
    stay = kept(live, newest=newest, firm=[*named, *proven])
    gone = dict.fromkeys((key for key in live if key not in stay), "thinned out")
    leavers = {attempt for attempt in left.values() if attempt is not None}
    remembered = kept((Key(0, attempt) for attempt in leavers), newest=newest)
    reached = max((key.step for key in live), default=-1)
    for leaver in leavers:
        branch = newest_first(key for key in keys if left[key] == leaver)
        gone_past = branch[0].step <= reached
        why = f"superseded by attempt {leaver}" + ("" if gone_past else ", thinned out")
        stay = frozenset(branch[:1]) if gone_past else kept(branch, newest=newest)
        if Key(0, leaver) not in remembered:
            stay, why = frozenset(), f"on an old branch, superseded by attempt {leaver}"
        gone |= dict.fromkeys((k for k in branch if k not in stay and k not in named), why)
    return gone
