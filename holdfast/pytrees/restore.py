"""What an attempt goes on from: the newest snapshot that all ranks have, in memory or in a tier.

Memory counts where every rank finds its own part there, whole and unharmed. Else the newest
checkpoint of the shared tier or the archive is read, by as many ranks as have saved it.
"""

import logging
import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from holdfast.checkpoint import catalog
from holdfast.checkpoint.arena import OWN, Arena, StatePart
from holdfast.checkpoint.catalog import Opened
from holdfast.checkpoint.index import Leaf
from holdfast.checkpoint.key import Key, newest_first, progress
from holdfast.checkpoint.lineage import bad_steps, is_bad
from holdfast.checkpoint.manifest import SavedPart
from holdfast.checkpoint.open_store import open_store
from holdfast.checkpoint.settings import place_in
from holdfast.checkpoint.tiers import Tier
from holdfast.errors import Error
from holdfast.pytrees import cells
from holdfast.pytrees.channel import Channel

logger = logging.getLogger(__name__)

DURABLE = (Tier.SHARED, Tier.ARCHIVE)


class RestoredTrees(NamedTuple):
    """What is gone on from."""

    key: Key
    values: cells.Values
    parent: Key | None  # None: it is of another job


class _Place(msgspec.Struct, frozen=True):
    where: str
    attempt: int
    step: int
    ours: bool


def find(arena: Arena, channel: Channel, rank: int, fingerprint: int) -> RestoredTrees | None:
    """The newest that all ranks can get. Raises `Error` where a checkpoint cannot be read."""
    while True:
        key = _on_all_ranks(arena, channel, fingerprint)
        durable = msgspec.msgpack.decode(
            channel.gather(msgspec.msgpack.encode(_durable() if rank == 0 else None))[0],
            type=_Place | None,
        )
        newer = durable is not None and durable.ours and key is not None
        better = newer and (durable.step, durable.attempt) > progress(key)  # type: ignore
        if key is None or better:
            older = None if durable is None else _from_tier(durable, channel.size, rank)
            if older is not None:
                _forget_newer(arena, older.key.step)
            return older
        found = _from_memory(arena, channel, key)
        if found is not None:
            _forget_newer(arena, key.step)
            return found


def _on_all_ranks(arena: Arena, channel: Channel, fingerprint: int) -> Key | None:
    below, bad = int(os.environ.get("HOLDFAST_RESTORE_BELOW", 1 << 60)), bad_steps()
    mine = []
    for cell in arena.cells(StatePart.PRIVATE):
        header = cell.header()
        if header is None or (header.world_size, header.fingerprint) != (channel.size, fingerprint):
            continue
        counts = header.step < below and not is_bad(header.key, bad)
        if counts and arena.find(StatePart.SHARED, header.key) is not None:
            mine.append(header.key)
    packed = channel.gather(msgspec.msgpack.encode(mine))
    said = [{Key(*key) for key in msgspec.msgpack.decode(one)} for one in packed]
    return next(iter(newest_first(set.intersection(*said))), None)


def _from_memory(arena: Arena, channel: Channel, key: Key) -> RestoredTrees | None:
    """None where it is damaged on some rank; then it is gone on all."""
    parts = [arena.find(part, key) for part in OWN]
    sound = all(cell is not None and cell.intact() for cell in parts)
    if not all(map(bool, map(int, channel.gather(b"1" if sound else b"0")))):
        logger.warning("the snapshot of step %d is damaged on some rank and is discarded", key.step)
        for cell in filter(None, parts):
            cell.discard()
        return None
    private = parts[StatePart.PRIVATE]
    assert private is not None, "it is sound"
    return RestoredTrees(key, cells.read(private), key)


def _forget_newer(arena: Arena, step: int) -> None:
    """What lies beyond belongs to a branch that is left."""
    for cell in (cell for part in OWN for cell in arena.cells(part)):
        header = cell.header()
        if header is not None and header.step > step:
            cell.discard()


# ── durable tiers ──


def _durable(environ: Mapping[str, str] = os.environ) -> _Place | None:
    """The newest checkpoint of this job, else of the one that it was told to begin from."""
    below, bad = int(environ.get("HOLDFAST_RESTORE_BELOW", 1 << 60)), bad_steps(environ)
    fresh = environ.get("HOLDFAST_RESTORE_FRESH")
    found = []
    for where in filter(None, (place_in(tier, environ) for tier in DURABLE)):
        survey = catalog.survey(open_store(where))
        words = {one.attempt: one.fresh for one in survey.attempts}
        for one in survey.committed:
            counts = one.step < below and not is_bad(one.key, bad)
            if counts and one.whole and fresh in (None, words.get(one.attempt)):
                found.append(_Place(where, one.attempt, one.step, ours=True))
    origin = environ.get("HOLDFAST_RESTORE_FROM")
    if origin and not found:
        found = [
            _Place(origin, one.attempt, one.step, ours=False)
            for one in catalog.committed(open_store(origin))
        ]
    return max(found, key=lambda one: (one.step, one.attempt), default=None)


def _from_tier(place: _Place, size: int, rank: int) -> RestoredTrees:
    key = Key(place.attempt, place.step)
    opened = catalog.open_checkpoint(open_store(place.where), key)
    if opened.manifest.world_size != size:
        raise Error(
            "layout-unknown",
            f"the checkpoint of step {key.step} has the state of {opened.manifest.world_size} "
            f"ranks, there are {size}",
            why="each tree belongs to one rank, and there is no rule for resharding them",
            help="train with as many ranks, or start from step 0: holdfast run --fresh",
        )
    saved = opened.parts[rank].parts["private"]
    index = catalog.index_of(opened.store, saved)
    values = cells.values_of(index, _reader(opened, saved, index.leaves))
    return RestoredTrees(key, values, key if place.ours else None)


def _reader(opened: Opened, saved: SavedPart, leaves: list[Leaf]) -> Callable[[Leaf], bytes]:
    pairs = zip(leaves, saved.leaves, strict=True)
    chunks = {(leaf.name, leaf.at): one.chunks for leaf, one in pairs}

    def bytes_of(leaf: Leaf) -> bytes:
        parts = chunks[leaf.name, leaf.at]
        return b"".join(catalog.read_chunk(opened.store, chunk) for chunk in parts or ())

    return bytes_of
