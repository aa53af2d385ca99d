"""What an attempt goes on from: the newest snapshot that all ranks have, in memory or in a tier.

Memory counts where every rank finds its own part there, whole and unharmed. Else the newest
checkpoint of the shared tier or the archive is read, by as many ranks as have saved it.

After a failure that is to be left behind it is looked for NaN, as a loss may turn NaN a step after
an array did; where the script itself begins with NaN in an array, that is no sign. A job whose
checkpoints are all beyond what may be restored does not begin anew: that is for a person to decide.
"""

import logging
import os
from collections.abc import Callable, Container, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

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
from holdfast.pytrees.leaves import pieces_of

logger = logging.getLogger(__name__)

DURABLE = (Tier.SHARED, Tier.ARCHIVE)
BELOW = "HOLDFAST_RESTORE_BELOW"
NO_LEAVES: Mapping[str, Any] = {}


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


class _Durable(msgspec.Struct, frozen=True):
    """The best checkpoint that may be restored, and how many of this job there are in all."""

    place: _Place | None
    count: int = 0


def find(
    arena: Arena,
    channel: Channel,
    rank: int,
    fingerprint: int,
    given: Mapping[str, Any] = NO_LEAVES,
) -> RestoredTrees | None:
    """The newest that all ranks can get; `given` are the leaves as the script has made them. Raises
    `Error` where a checkpoint cannot be read, or none of those that exist may be restored."""
    unsound: dict[_Place, str] = {}
    found: RestoredTrees | None
    while True:
        key = _on_all_ranks(arena, channel, fingerprint)
        told = channel.gather(msgspec.msgpack.encode(_durable(unsound) if rank == 0 else None))
        known = msgspec.msgpack.decode(told[0], type=_Durable)
        durable = known.place
        newer = durable is not None and durable.ours and key is not None
        better = newer and (durable.step, durable.attempt) > progress(key)  # type: ignore
        if key is not None and not better:
            found = _from_memory(arena, channel, key, given)
        elif durable is not None:
            found = _from_tier(durable, channel.size, rank)
            if durable.ours and (wrong := _nan_on_any(channel, found, given)):
                unsound[durable], found = wrong, None
        elif known.count:
            raise _none_may_be_restored(known.count, unsound)
        else:
            return None
        if found is not None:
            _forget_newer(arena, found.key.step)
            return found


def _on_all_ranks(arena: Arena, channel: Channel, fingerprint: int) -> Key | None:
    below, bad = int(os.environ.get(BELOW, 1 << 60)), bad_steps()
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


def _from_memory(
    arena: Arena, channel: Channel, key: Key, given: Mapping[str, Any]
) -> RestoredTrees | None:
    """None where it is damaged on some rank, or holds NaN; then it is gone on all."""
    parts = [arena.find(part, key) for part in OWN]
    sound = all(cell is not None and cell.intact() for cell in parts)
    wrong, found = "is damaged on some rank", None
    if all(map(bool, map(int, channel.gather(b"1" if sound else b"0")))):
        private = parts[StatePart.PRIVATE]
        assert private is not None, "it is sound"
        found = RestoredTrees(key, cells.read(private), key)
        wrong = _nan_on_any(channel, found, given)
    if wrong:
        logger.warning("the snapshot of step %d %s and is discarded", key.step, wrong)
        for cell in filter(None, parts):
            cell.discard()
        return None
    return found


def _nan_on_any(channel: Channel, found: RestoredTrees, given: Mapping[str, Any]) -> str:
    """Why it is of no use, where that has to be asked; empty if it is. The same on all ranks."""
    if BELOW not in os.environ and found.key.attempt not in bad_steps():
        return ""
    name = next((n for n, value in found.values.items() if _nan_in(value, given.get(n))), "")
    told = [one.decode() for one in channel.gather(name.encode())]
    return next((f"has NaN in {name}" for name in told if name), "")


def _nan_in(value: Any, given: Any) -> bool:
    """Whether an array has come to hold NaN; pieces of it are by their places."""
    arrays = value.values() if isinstance(value, dict) else ()
    if not any(map(_holds_nan, arrays)):
        return False
    return not any(_holds_nan(piece.array) for piece in pieces_of(given) or ())


def _holds_nan(array: Any) -> bool:
    try:
        return bool(np.isnan(array).any())
    except TypeError:  # of what is no number
        return False


def _forget_newer(arena: Arena, step: int) -> None:
    """What lies beyond belongs to a branch that is left."""
    for cell in (cell for part in OWN for cell in arena.cells(part)):
        header = cell.header()
        if header is not None and header.step > step:
            cell.discard()


# ── durable tiers ──


def _durable(unsound: Container[_Place], environ: Mapping[str, str] = os.environ) -> _Durable:
    """The newest checkpoint of this job, else of the one that it was told to begin from."""
    below, bad = int(environ.get(BELOW, 1 << 60)), bad_steps(environ)
    fresh, count = environ.get("HOLDFAST_RESTORE_FRESH"), 0
    found = []
    for where in filter(None, (place_in(tier, environ) for tier in DURABLE)):
        survey = catalog.survey(open_store(where))
        words = {one.attempt: one.fresh for one in survey.attempts}
        for one in survey.committed:
            place = _Place(where, one.attempt, one.step, ours=True)
            if not one.whole or fresh not in (None, words.get(one.attempt)):
                continue
            count += 1
            if one.step < below and not is_bad(one.key, bad) and place not in unsound:
                found.append(place)
    origin = environ.get("HOLDFAST_RESTORE_FROM")
    if origin and not found:
        found = [
            _Place(origin, one.attempt, one.step, ours=False)
            for one in catalog.committed(open_store(origin))
        ]
    newest = max(found, key=lambda one: (one.step, one.attempt), default=None)
    return _Durable(newest, count)


def _none_may_be_restored(count: int, unsound: Mapping[_Place, str]) -> Error:
    told = [f"step {place.step} {wrong}" for place, wrong in unsound.items()]
    if len(told) < count:
        which = "the others" if told else "all of them"
        told.append(f"{which} led to the same failure, or were saved after the loss was not finite")
    return Error(
        "checkpoint-unusable",
        "there are checkpoints, and none that training can resume from",
        why="; ".join(told),
        help="fix the cause of the failure and run the job again, or start from step 0: "
        "holdfast run job.yaml --replace --fresh   (removes no checkpoint)",
    )


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
