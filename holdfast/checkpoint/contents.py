"""What a snapshot or checkpoint consists of, over all its ranks, wherever it lies.

Made from the indexes of its parts: the tree of each rank, with a `Ref` in the place of each leaf,
and for each tensor that is more than one rank's the pieces that it was cut into. Pure, so that all
ranks that have gathered the same indexes plan the same reads.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from holdfast.checkpoint.arena import StatePart
from holdfast.checkpoint.codec import unflatten
from holdfast.checkpoint.index import Index, Leaf

RANDOM = "(random numbers)"  # not a name that an object can be given
GRADIENTS = "(gradients)"  # of parameters, by path; None: zero everywhere. Only where there are any
LOOP = "(loop)"  # what the script did with its loop. Only where it ended it


class Ref(NamedTuple):
    """One leaf: which of the part of which rank."""

    rank: int
    part: StatePart
    number: int
    leaf: Leaf


def buffers_of(module: str) -> str:
    """The name under which a module's buffers are kept."""
    return f"{module} (buffers)"


Pieces = dict[tuple[int, ...], list[Ref]]  # by where they begin; each from all who have it alike


class Contents:
    """The trees and the pieces of one snapshot or checkpoint."""

    def __init__(
        self,
        world_size: int,
        indexes: Mapping[tuple[int, StatePart], Index],
        has: Callable[[Ref], bool] = lambda _: True,
    ) -> None:
        """`has` says whether the bytes of a leaf are there and not only with another rank."""
        self.world_size = world_size
        self.pieces: dict[str, Pieces] = {}
        self.trees: dict[int, dict[str, Any]] = {}
        self._indexes = indexes
        own: dict[tuple[int, StatePart], dict[str, Any]] = {}
        for (rank, part), index in sorted(indexes.items()):
            refs = [Ref(rank, part, n, leaf) for n, leaf in enumerate(index.leaves)]
            own[rank, part] = unflatten(index.tree, refs)
            for ref in refs:
                if not ref.leaf.own and has(ref):
                    self._add(ref)
        shared = [tree for (_, part), tree in own.items() if part is StatePart.SHARED]
        for (rank, part), tree in own.items():
            if part is StatePart.PRIVATE:
                self.trees[rank] = {**(shared[0] if shared else {}), **tree}

    @property
    def complete(self) -> bool:
        """Whether there is a part of every rank."""
        return set(self.trees) == set(range(self.world_size))

    def leaf(self, rank: int, part: StatePart, number: int) -> Leaf:
        """One leaf."""
        return self._indexes[rank, part].leaves[number]

    def order_for(self, rank: int) -> list[int]:
        """Ranks whose private state serves this rank, the best first: its own, then that of the
        rank with the same number modulo the number of ranks, then any."""
        first = rank % self.world_size
        return [first, *(r for r in sorted(self.trees) if r != first)]

    def _add(self, ref: Ref) -> None:
        if ref.leaf.length or not ref.leaf.whole:
            at = self.pieces.setdefault(ref.leaf.name, {})
            at.setdefault(tuple(ref.leaf.at), []).append(ref)
