"""Snapshots made by hand, without torch, and places to save them in."""

import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from holdfast.checkpoint.arena import Arena, Cell, CellHeader, StatePart
from holdfast.checkpoint.bandwidth_limit import BandwidthLimit
from holdfast.checkpoint.index import Index, Leaf
from holdfast.checkpoint.key import Key
from holdfast.checkpoint.manifest import Lineage, Manifest, ParentSnapshot, RankPart
from holdfast.checkpoint.save import begin, commit, save_rank
from holdfast.checkpoint.stores import CheckpointStore
from holdfast.checkpoint.tiers import Tier

NOW = 1_700_000_000.0
ALIGN = 64


class Held(NamedTuple):
    """One leaf of a snapshot that is made: its bytes, and how `Leaf` describes it."""

    data: bytes
    own: bool = True
    save: int = 3


class Snapshot:
    """The arena of one rank."""

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.rank = rank
        self.world_size = world_size
        self._fd = Arena.create()
        self._arena = Arena(self._fd)

    def close(self) -> None:
        """Give the memory back."""
        os.close(self._fd)

    def take(
        self,
        key: Key,
        *,
        private: Mapping[str, Held | bytes] | None = None,
        shared: Mapping[str, Held | bytes] | None = None,
        name: str = "",
        sealed: bool = True,
    ) -> dict[StatePart, Cell]:
        """Both cells of a snapshot of these leaves."""
        state = {StatePart.SHARED: shared or {}, StatePart.PRIVATE: private or {}}
        return {part: self._fill(part, key, told, name, sealed) for part, told in state.items()}

    def _fill(
        self, part: StatePart, key: Key, told: Mapping[str, Held | bytes], name: str, sealed: bool
    ) -> Cell:
        held = {leaf: one if isinstance(one, Held) else Held(one) for leaf, one in told.items()}
        leaves, data = _laid_out(held)
        tree = ["d", *(item for n, leaf in enumerate(held) for item in (leaf, ["#", n]))]
        index = msgspec.msgpack.encode(Index(tree, leaves, name))
        cell = self._arena.target(part, frozenset())
        assert cell is not None
        cell.reserve(len(data) + len(index))
        cell.begin()
        cell.payload[: len(data)] = data
        cell.payload[len(data) : len(data) + len(index)] = index
        cell.commit(CellHeader(*key, self.rank, self.world_size, 7, len(data), len(index)))
        if sealed:
            cell.seal()
        return cell


def _laid_out(held: Mapping[str, Held]) -> tuple[list[Leaf], bytes]:
    leaves, data = [], bytearray()
    for name, one in held.items():
        size = len(one.data)
        at = len(data)
        leaf = Leaf("a", "|u1", (size,), (0,), at, size, name, (), (), one.own, one.save)
        leaves.append(leaf)
        data += one.data
        data += b"\xa5" * (-len(data) % ALIGN)  # what was there before, in a real cell
    return leaves, bytes(data)


def saved(
    store: CheckpointStore,
    snapshot: Snapshot,
    key: Key,
    *,
    previous: RankPart | None = None,
    tier: Tier = Tier.SHARED,
    limit: BandwidthLimit | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    **private: Held | bytes,
) -> RankPart:
    """A rank's part of a snapshot of these leaves, saved."""
    cells = snapshot.take(key, private=private)
    return save_rank(
        store, cells, job="job", tier=tier, previous=previous, limit=limit, cancelled=cancelled
    )


def committed_step(
    store: CheckpointStore, key: Key, *, name: str = "", **private: Held | bytes
) -> Manifest:
    """A checkpoint of one rank with these leaves."""
    snapshot = Snapshot()
    try:
        cells = snapshot.take(key, private=private, name=name)
        save_rank(store, cells, job="job", tier=Tier.SHARED)
    finally:
        snapshot.close()
    return commit(store, key, ranks=[0], now=NOW)


def began(store: CheckpointStore, attempt: int, parent: Key | None = None) -> None:
    """An attempt that goes on from there."""
    origin = None if parent is None else ParentSnapshot(*parent)
    begin(store, Lineage(attempt=attempt, parent=origin))
