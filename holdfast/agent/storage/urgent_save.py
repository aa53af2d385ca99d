"""When a node is about to go: whether what was taken because of it is where it survives that.

The workers have seen the warning on their storage pages and agreed on one more snapshot, marked
urgent, at the end of a step. It is safe in a durable tier once that is committed; in the memory of
other nodes once these have the copies, as the shared state is there anyway. Copies that the workers
send to each other are known to have arrived when a later snapshot exists, because they meet before
each; where none comes, they have met after a while all the same.
"""

import time
from collections.abc import Sequence

from holdfast.agent.storage.protocol import UrgentSaved, Warn
from holdfast.checkpoint.arena import Arena, CellHeader, StatePart
from holdfast.checkpoint.key import Key
from holdfast.checkpoint.storage_page import StoragePage, WorkerInfo
from holdfast.checkpoint.tiers import SnapshotFlag, Tier

MET_S = 2.5  # workers meet about once a second


class UrgentSave:
    """The warning that counts, and when the snapshot for it was first seen."""

    def __init__(self) -> None:
        self._warning: Warn | None = None
        self._taken: tuple[Key, float] | None = None

    def warn(self, order: Warn) -> None:
        """The agent has warned, or said that all is well."""
        self._warning = order if order.within_s > 0 else None
        self._taken = None

    def look(
        self,
        arenas: Sequence[Arena],
        storage_pages: Sequence[StoragePage],
        infos: Sequence[WorkerInfo],
        committed: dict[Tier, Key | None],
        copies: int,
    ) -> UrgentSaved | None:
        """What to tell the agent once the snapshot is safe. `committed` are the tiers there are,
        `copies` how many nodes keep one of each private part."""
        order = self._warning
        key = urgent_key(arenas, infos[0].attempt) if order is not None else None
        if order is None or key is None:
            return None
        if self._taken is None or self._taken[0] != key:
            self._taken = (key, time.monotonic())
        where = in_tiers(key, order, committed)
        if where is None and not order.job_ends and copies:
            taken_s = time.monotonic() - self._taken[1]
            where = in_memory(key, arenas, storage_pages, infos, taken_s)
        if where is None:
            return None
        self._warning = None
        return UrgentSaved(attempt=key.attempt, step=key.step, where=where)


def urgent_key(arenas: Sequence[Arena], attempt: int) -> Key | None:
    """The newest urgent snapshot that all ranks of this node have whole."""
    marked = [
        frozenset(h.key for h in _private(arena, attempt) if h.flags & SnapshotFlag.URGENT)
        for arena in arenas
    ]
    return max(frozenset.intersection(*marked), default=None)


def in_tiers(key: Key, order: Warn, committed: dict[Tier, Key | None]) -> str | None:
    """The durable tier that has it and survives; `committed` are the tiers there are. Where only
    the attempt ends, it is safe as it lies here."""
    if not (order.node_goes or order.job_ends):
        return "the memory of this node"
    for tier, newest in committed.items():
        lost = tier is Tier.LOCAL and order.node_goes and len(committed) > 1
        if newest is not None and newest >= key and not lost:
            return f"tier {tier.name.lower()}"
    return None


def in_memory(
    key: Key,
    arenas: Sequence[Arena],
    storage_pages: Sequence[StoragePage],
    infos: Sequence[WorkerInfo],
    taken_s: float,
) -> str | None:
    """The other nodes, if their memory has all that only this node had; `taken_s` is how long ago
    the snapshot was seen to be whole here."""
    if any(info.world_size == info.local_world_size for info in infos):
        return None
    if all(info.peers for info in infos):
        copied = [storage_page.newest_copied for storage_page in storage_pages]
        there = all(newest is not None and newest >= key for newest in copied)
    else:
        later = [any(h.key > key for h in _private(arena, key.attempt)) for arena in arenas]
        there = all(later) or taken_s >= MET_S
    return "the memory of other nodes" if there else None


def _private(arena: Arena, attempt: int) -> list[CellHeader]:
    found = (cell.header() for cell in arena.cells(StatePart.PRIVATE))
    return [header for header in found if header is not None and header.attempt == attempt]
