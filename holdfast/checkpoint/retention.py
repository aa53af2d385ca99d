"""Which checkpoints are kept: the newest few, then fewer and fewer, and what has a name.

The newest `newest` are kept for a quick return. Before these the ages, in steps, are cut into spans
that double in length, and of each span the oldest checkpoint stays: a history of a few dozen
however long the job runs, in which there is always one from before a fault that shows late. Keeping
the oldest and not the newest of a span is what makes this hold when it is applied after every save:
it is the next to move into the following span.

Never to go: one with a name, the one from which the job went on last, because it is known to be
good, and the last two.
"""

from collections.abc import Collection, Iterable

from holdfast.checkpoint.key import Key, newest_first

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
