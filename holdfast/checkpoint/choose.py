"""Which snapshot all ranks continue from, and from whom each one gets what it lacks.

A pure function of what every rank holds, so every rank computes the same answer from the same
gathered table, without another round of talk. A snapshot can be used when each rank gets both its
parts: the shared part from itself or any rank that has it (it is the same everywhere), the private
part from itself or from its buddy, the rank with the same place on the next node.

The furthest step wins, then the newest attempt: a later attempt may have gone on from an older
snapshot, so its number alone says nothing. Parts of different attempts are never put together.
"""

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.checkpoint.key import Key, newest_first


class Holding(NamedTuple):
    """What one rank has whole."""

    shared: frozenset[Key]
    private: frozenset[Key]
    buddy: frozenset[Key]  # private parts of the rank it keeps a copy for


class RestorePlan(NamedTuple):
    """The snapshot to restore; `shared_from[r]` and `private_from[r]` name the giver for rank r."""

    key: Key
    shared_from: tuple[int, ...]
    private_from: tuple[int, ...]


def buddy_of(rank: int, local_world_size: int, world_size: int) -> int | None:
    """Who keeps a copy of this rank's private part: same place, next node. None on one node."""
    buddy = (rank + local_world_size) % world_size
    return buddy if world_size > local_world_size else None


def choose(held: Sequence[Holding], local_world_size: int) -> RestorePlan | None:
    """The newest snapshot that every rank can get whole; None where there is none."""
    keys = frozenset[Key]().union(*(h.shared for h in held))
    for key in newest_first(keys):
        plan = plan_for(key, held, local_world_size)
        if plan is not None:
            return plan
    return None


def plan_for(key: Key, held: Sequence[Holding], local_world_size: int) -> RestorePlan | None:
    """How every rank gets this snapshot whole; None where some rank cannot."""
    givers = [rank for rank, h in enumerate(held) if key in h.shared]
    shared = tuple(r if key in h.shared else givers[r % len(givers)] for r, h in enumerate(held))
    private = [_private_from(key, rank, held, local_world_size) for rank in range(len(held))]
    known = tuple(source for source in private if source is not None)
    return RestorePlan(key, shared, known) if len(known) == len(held) else None


def _private_from(key: Key, rank: int, held: Sequence[Holding], local: int) -> int | None:
    if key in held[rank].private:
        return rank
    buddy = buddy_of(rank, local, len(held))
    return buddy if buddy is not None and key in held[buddy].buddy else None
