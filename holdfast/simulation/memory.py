"""What the memory of simulated nodes holds of snapshots, written by whichever number of ranks.

A part says of which rank of how many it is, and where the loader of that rank stood. Which snapshot
is gone on from is decided by the production code: in place, where every rank has or gets its own
parts, or put together anew from the parts of all ranks that there were.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from holdfast.checkpoint import choose
from holdfast.checkpoint.choose import Holding, RestorePlan, Snapshot
from holdfast.checkpoint.dealing import next_turn, share
from holdfast.checkpoint.key import Key, progress

ENDLESS = 1 << 60  # samples: one epoch does
BATCH = 4  # samples of a rank at a time


class WrittenPart(NamedTuple):
    """What one rank has written of a snapshot."""

    key: Key
    rank: int
    size: int  # ranks that there were
    at: int = 0  # samples that all of them together had used

    @property
    def snapshot(self) -> Snapshot:
        """What it is a part of."""
        return Snapshot(self.key, self.size)


class NodeMemory(NamedTuple):
    """Of one worker's place on a node, whole."""

    shared: frozenset[WrittenPart] = frozenset()
    private: frozenset[WrittenPart] = frozenset()
    buddy: frozenset[WrittenPart] = frozenset()  # private parts of another rank

    def only(self, wanted: Callable[[Key], bool]) -> "NodeMemory":
        """The parts of these snapshots."""
        return NodeMemory(*(frozenset(p for p in parts if wanted(p.key)) for parts in self))


class ResumedFrom(NamedTuple):
    """What is gone on from; `plan` where that is in place."""

    snapshot: Snapshot
    plan: RestorePlan | None


def holdings(memories: Sequence[NodeMemory], distance: int) -> list[Holding]:
    """What each rank has of its own, and of its ward, in this layout."""
    size = len(memories)

    def keys(parts: frozenset[WrittenPart], rank: int | None) -> frozenset[Key]:
        return frozenset(p.key for p in parts if p.size == size and rank in (None, p.rank))

    return [
        Holding(
            keys(one.shared, None),
            keys(one.private, rank),
            keys(one.buddy, (rank - distance) % size),
        )
        for rank, one in enumerate(memories)
    ]


def restorable(memories: Sequence[NodeMemory], distance: int) -> ResumedFrom | None:
    """The newest snapshot that all ranks can get, in place if that is as new as any."""
    held, size = holdings(memories, distance), len(memories)
    there: dict[Snapshot, set[int]] = {}
    for part in _parts(memories):
        there.setdefault(part.snapshot, set()).add(part.rank)
    shared = {p.snapshot for one in memories for p in one.shared}
    keys = {key for one in held for key in one.shared}
    plans = {key: choose.plan_for(key, held, distance) for key in keys}
    found = [
        ResumedFrom(Snapshot(key, size), plan) for key, plan in plans.items() if plan is not None
    ]
    found += [ResumedFrom(one, None) for one in choose.assembled(shared, there)]
    return max(found, key=lambda one: (progress(one.snapshot.key), bool(one.plan)), default=None)


def positions(found: ResumedFrom | None, memories: Sequence[NodeMemory]) -> list[int]:
    """Where the loader of each rank goes on: the state of a rank that there is no more, or was not
    yet, is that of the rank with the same number modulo the number of ranks."""
    if found is None:
        return [0] * len(memories)
    at = {p.rank: p.at for p in _parts(memories) if p.snapshot == found.snapshot}
    return [at.get(rank % found.snapshot.world_size, 0) for rank in range(len(memories))]


def dealt(at: Sequence[int], whole: int) -> list[range]:
    """What each rank takes for its next step of `whole` samples."""
    ranks = len(at)
    turns = [next_turn(0, used, count=ENDLESS, whole=whole, least=ranks) for used in at]
    return [share(turn, rank, ranks) for rank, turn in enumerate(turns)]


def _parts(memories: Sequence[NodeMemory]) -> Iterator[WrittenPart]:
    for one in memories:
        yield from one.private
        yield from one.buddy
