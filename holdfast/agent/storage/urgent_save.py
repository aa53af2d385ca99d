"""When a node is about to go: whether what was taken because of it is where it survives that.

The workers have seen the warning on their storage pages and agreed on one more snapshot, marked
urgent, at the end of a step. It is safe in a durable tier once that is committed; in the memory of
other nodes once these have the copies, as the shared state is there anyway; where only the attempt
ends, once it is whole on all ranks. That is so, and copies that the workers send to each other have
arrived, once the workers have met after it; where they do not say so, after a while all the same.
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

    @property
    def waits(self) -> bool:
        """Whether somebody waits for it to be safe."""
        return self._warning is not None

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
        if where is None and not order.job_ends and (copies or not order.node_goes):
            met = time.monotonic() - self._taken[1] >= MET_S or all(
                page.newest_met is not None and page.newest_met >= key for page in storage_pages
            )
            where = in_memory(key, order, storage_pages, infos, met=met)
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
    """The durable tier that has it and survives; `committed` are the tiers there are."""
    for tier, newest in committed.items():
        lost = tier is Tier.LOCAL and order.node_goes and len(committed) > 1
        if newest is not None and newest >= key and not lost:
            return f"tier {tier.name.lower()}"
    return None


def in_memory(
    key: Key,
    order: Warn,
    storage_pages: Sequence[StoragePage],
    infos: Sequence[WorkerInfo],
    *,
    met: bool,
) -> str | None:
    """The nodes whose memory has it, if it survives there; `met`: the workers have met after it."""
    if not order.node_goes:
        return "the memory of this node" if met else None
    if any(info.world_size == info.local_world_size for info in infos):
        return None
    if all(info.peers for info in infos):
        copied = [storage_page.newest_copied for storage_page in storage_pages]
        there = all(newest is not None and newest >= key for newest in copied)
    else:
        there = met
    return "the memory of other nodes" if there else None


def _private(arena: Arena, attempt: int) -> list[CellHeader]:
    found = (cell.header() for cell in arena.cells(StatePart.PRIVATE))
    return [header for header in found if header is not None and header.attempt == attempt]
