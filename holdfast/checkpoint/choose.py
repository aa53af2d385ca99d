"""Which snapshots all ranks could continue from, and from whom each one gets what it lacks.

A pure function of what every rank holds, so every rank computes the same answer from the same
gathered table, without another round of talk. A snapshot can be used when each rank gets both its
parts: the shared part from itself or any rank that has it (it is the same everywhere), the private
part from itself or from its buddy, the rank with the same place on the next node or replica.

Parts of different attempts are never put together.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from holdfast.checkpoint.key import Key


class Holding(NamedTuple):
    """What one rank has whole."""

    shared: frozenset[Key]
    private: frozenset[Key]
    buddy: frozenset[Key]  # private parts of the rank it keeps a copy for


class Snapshot(NamedTuple):
    """One snapshot, wherever its parts lie."""

    key: Key
    world_size: int  # ranks that have written it
    fingerprint: int = 0  # of what


class RestorePlan(NamedTuple):
    """The snapshot to restore; `shared_from[r]` and `private_from[r]` name the giver for rank r."""

    key: Key
    shared_from: tuple[int, ...]
    private_from: tuple[int, ...]


def copy_distance(local_world_size: int, world_size: int, nodes_each: int = 1) -> int:
    """How many ranks on a rank's buddy is: at the same place of the next node or, where replicas
    have several nodes and there are several replicas, of the next one, so that all nodes of a
    replica may be lost at once."""
    replica = local_world_size * nodes_each
    return replica if world_size > replica else local_world_size


def buddy_of(rank: int, distance: int, world_size: int) -> int | None:
    """Who keeps a copy of this rank's private part. None on one node."""
    buddy = (rank + distance) % world_size
    return buddy if world_size > distance else None


def assembled(
    shared: Iterable[Snapshot], private: Mapping[Snapshot, Collection[int]]
) -> list[Snapshot]:
    """Those that can be put together for any number of ranks: somebody has the shared part, and
    somebody the private part of each rank that there was. `private` says of which ranks."""
    return [one for one in shared if set(private.get(one, ())) >= set(range(one.world_size))]


def plan_for(key: Key, held: Sequence[Holding], distance: int) -> RestorePlan | None:
    """How every rank gets this snapshot whole; None where some rank cannot. `distance` is that of
    copies."""
    givers = [rank for rank, h in enumerate(held) if key in h.shared]
    shared = tuple(r if key in h.shared else givers[r % len(givers)] for r, h in enumerate(held))
    private = [_private_from(key, rank, held, distance) for rank in range(len(held))]
    known = tuple(source for source in private if source is not None)
    return RestorePlan(key, shared, known) if len(known) == len(held) else None


def _private_from(key: Key, rank: int, held: Sequence[Holding], distance: int) -> int | None:
    if key in held[rank].private:
        return rank
    buddy = buddy_of(rank, distance, len(held))
    return buddy if buddy is not None and key in held[buddy].buddy else None
