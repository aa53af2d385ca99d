"""Whether there may be something newer than the best that can be read now. Pure.

Storage that does not answer for a moment must not cost steps, and a file that cannot be read for
good must not stop a job. So restore waits a little where there may be something. What it does then
depends on how much may be lost: go on with a warning, or leave it to the next attempt, which comes
when the storage may be back.

A tier that is quicker is saved to more often. What lies in it is at least as new as what a slower
one has, which therefore need not be seen. It is the other way round with a slower tier's checkpoint
while a quicker one cannot be looked at. A place where one checkpoint cannot be read and others can
is as good as ever; where more than one cannot, it is the place. The disk of a node is only one of
many: when it is broken that is like the loss of the node.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from holdfast.checkpoint.key import Key
from holdfast.train.candidates import Candidate, Counts, Location, RankInventory, Unread, worth


class PossiblyNewer(NamedTuple):
    """Something that may be newer. `firm`: nothing older is used in its place."""

    text: str
    firm: bool


def possibly_newer(
    one: Candidate | None,
    listed: Sequence[Candidate],
    inventories: Sequence[RankInventory],
    unread: Mapping[Candidate, str],
    counts: Counts,
) -> list[PossiblyNewer]:
    """What speaks against going on from this candidate, or (None) from nothing at all.

    `listed` are all that are known to be whole, `unread` those that could not be read just now.
    """
    found = [
        PossiblyNewer(away.text, one is None or away.where != Location.LOCAL)
        for inventory in inventories
        for away in inventory.away
        if one is None or Location(away.where) not in (one.where, Location.ELSEWHERE)
        if one is None or one.where > away.where
    ]
    withheld = list(_withheld(inventories, unread))
    for where, key, text in withheld:
        if counts(key, where) and (one is None or worth(key, where) > worth(one.key, one.where)):
            alone = [other for other, _, _ in withheld].count(where) == 1
            others = any(other.where is where and other not in unread for other in listed)
            here = one is not None and one.where is where
            passable = here or where is Location.LOCAL or (alone and others)
            found.append(PossiblyNewer(text, one is None or not passable))
    found += [
        PossiblyNewer(lineage.text, one is None)
        for lineage in _not_given(inventories)
        if lineage.step is None and one is not None and lineage.attempt > one.key.attempt
    ]
    return found


def _withheld(
    inventories: Sequence[RankInventory], unread: Mapping[Candidate, str]
) -> Iterator[tuple[Location, Key, str]]:
    """Checkpoints that are there and were not given."""
    yield from ((one.where, one.key, text) for one, text in unread.items())
    for manifest in _not_given(inventories):
        if manifest.step is not None:
            key = Key(manifest.attempt, manifest.step)
            yield Location(manifest.where), key, manifest.text


def _not_given(inventories: Sequence[RankInventory]) -> Iterator[Unread]:
    return (one for inventory in inventories for one in inventory.unread if not one.damaged)
