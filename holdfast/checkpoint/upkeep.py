"""Upkeep of a place: thin out the history, copy a checkpoint to another place.

What goes, and why, is for `retention` to say. Pruning takes the manifest away first, so that a
checkpoint which is half removed does not count. A file of bytes stays as long as a checkpoint that
stays, or one that is just being written, refers to it. What one refers to whose manifest cannot be
read is found in the files of its ranks; where these cannot be read either nothing is removed.
Folders without a manifest go once a newer checkpoint has been committed after them: nobody can
commit them any more.

A copy is whole in itself: it has all its bytes in its own folder, and each was checked on the way.
"""

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import msgspec

from holdfast.checkpoint import manifest as files
from holdfast.checkpoint.bandwidth_limit import BandwidthLimit
from holdfast.checkpoint.catalog import (
    Catalog,
    Opened,
    open_checkpoint,
    read_chunk,
    survey,
)
from holdfast.checkpoint.key import Key, newest_first
from holdfast.checkpoint.lineage import valid
from holdfast.checkpoint.manifest import Chunk, Lineage, Manifest, RankPart, SavedPart
from holdfast.checkpoint.retention import surplus
from holdfast.checkpoint.save import SaveCancelledError, in_parallel, incomplete, put_manifest
from holdfast.checkpoint.stores import UNFINISHED, CheckpointStore, Upload, unusable
from holdfast.errors import Error


class RemovedCheckpoint(NamedTuple):
    """A checkpoint that goes."""

    key: Key
    why: str


class Pruned(NamedTuple):
    """What was removed, or would be."""

    checkpoints: tuple[RemovedCheckpoint, ...]
    files: tuple[str, ...]

    @property
    def words(self) -> list[str]:
        """For people: a line for each reason, with the steps."""
        reasons = dict.fromkeys(one.why for one in self.checkpoints)
        steps = {
            why: ", ".join(str(one.key.step) for one in self.checkpoints if one.why == why)
            for why in reasons
        }
        return [f"{told} ({why})" for why, told in steps.items()]


def prune(
    store: CheckpointStore, *, newest: int, void: bool = False, dry_run: bool = False
) -> Pruned:
    """Thin out the checkpoints of a place as `retention` says. Only one process of a job does it.

    `void`: everything without a name that later attempts have left behind goes, too; nothing but a
    person asks for that.

    Raises `Error` storage-*; what was removed until then is gone, and what counts is sound.
    """
    found = survey(store)
    if not found.committed:
        return Pruned((), ())
    everything = (*found.committed, *found.void)
    named = [one.key for one in everything if one.name]
    gone = surplus([one.key for one in everything], found.attempts, newest=newest, named=named)
    if void:
        why = "superseded by later attempts"
        gone |= {one.key: why for one in found.void if not one.name}
    removals = tuple(RemovedCheckpoint(key, gone[key]) for key in newest_first(gone))
    removed = tuple(_surplus(store, found, gone))
    if not dry_run:
        for name in removed:
            store.remove(name)
    return Pruned(removals, removed)


def _surplus(store: CheckpointStore, found: Catalog, gone: Collection[Key]) -> Iterator[str]:
    """Files to remove, in this order."""
    stay = [one for one in (*found.committed, *found.void) if one.key not in gone]
    dead = [key for key in found.unfinished if _given_up(key, found.committed)]
    unclear = {one.key for one in (*found.unreadable, *found.damaged) if one.key is not None}
    unclear |= {key for key in found.unfinished if key not in dead}
    needed = {name for one in stay for name in one.files}
    needed |= {name for key in unclear for name in _referred_to(store, key)}
    yield from (files.manifest_file(key) for key in gone)
    for key in (*gone, *dead):
        names = {f"{files.folder_of(key)}/{name}" for name in store.list(files.folder_of(key))}
        yield from sorted(names - needed - {files.manifest_file(key)})
    for folder in (files.ATTEMPTS, *(files.folder_of(one.key) for one in stay)):
        yield from (f"{folder}/{n}" for n in store.list(folder) if n.endswith(UNFINISHED))


def _given_up(key: Key, committed: Collection[Manifest]) -> bool:
    """Whether the job has gone past this checkpoint, which was never committed."""
    return any(
        one.attempt > key.attempt or (one.attempt == key.attempt and one.step > key.step)
        for one in committed
    )


def _referred_to(store: CheckpointStore, key: Key) -> set[str]:
    """Files that the ranks which have finished their part of a checkpoint refer to."""
    folder = files.folder_of(key)
    names = [f"{folder}/{n}" for n in store.list(folder) if files.rank_of(n) is not None]
    return {
        file for found in in_parallel(lambda n: _chunk_files(store, n), names) for file in found
    }


def _chunk_files(store: CheckpointStore, name: str) -> set[str]:
    try:
        return {chunk.file for chunk in files.decode(store.read(name), RankPart, name).chunks()}
    except Error as error:
        if error.slug not in ("checkpoint-damaged", "storage-missing"):
            raise
        return set()


# ── copies ────────────────────────────────────────────────────────────────────────────────────


def copy(
    source: CheckpointStore,
    key: Key,
    target: CheckpointStore,
    *,
    now: float,
    name: str | None = None,
    limit: BandwidthLimit | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Manifest:
    """Copy a whole checkpoint to another place, if wanted under a name, with which it stays there
    for good. `now` is in seconds since 1970.

    Raises `SaveCancelledError`, or `Error` checkpoint-not-found, checkpoint-damaged,
    checkpoint-incomplete or storage-*; then it does not count there.
    """
    opened = open_checkpoint(source, key)
    if not opened.manifest.whole:
        ranks, world_size = opened.manifest.ranks, opened.manifest.world_size
        raise incomplete(source, key, f"it has only ranks {list(ranks)} of {world_size}")
    _require_room_for(opened.manifest, target)
    _copy_lineage(source, key, target)
    for part in opened.parts.values():
        _copy_part(opened, part, target, name, limit or BandwidthLimit(None), cancelled)
    return put_manifest(target, key, ranks=opened.manifest.ranks, now=now)


def _require_room_for(manifest: Manifest, target: CheckpointStore) -> None:
    there = survey(target)
    others = {one.job for one in (*there.committed, *there.void)} - {manifest.job}
    if others:
        raise unusable(target.where, f"it contains checkpoints of job {min(others)}")
    if any(one.key == manifest.key for one in there.committed):
        raise unusable(
            target.where, f"step {manifest.step} of attempt {manifest.attempt} is present"
        )
    if not valid(manifest.key, there.attempts):
        raise unusable(target.where, f"a later attempt there resumed before step {manifest.step}")


def _copy_lineage(source: CheckpointStore, key: Key, target: CheckpointStore) -> None:
    name = files.lineage_file(key.attempt)
    if source.size(name) is not None and target.size(name) is None:
        lineage = files.decode(source.read(name), Lineage, name)
        target.put(name, files.encode(lineage))


def _copy_part(
    opened: Opened,
    part: RankPart,
    target: CheckpointStore,
    name: str | None,
    limit: BandwidthLimit,
    cancelled: Callable[[], bool],
) -> None:
    file = files.data_file(opened.key, part.rank)
    with target.create(file) as upload:
        copier = _Copier(opened.store, file, upload, limit, cancelled)
        parts = {kind: copier.part(saved) for kind, saved in part.parts.items()}
    made = msgspec.structs.replace(part, parts=parts, fresh=0, data_bytes=copier.written)
    if name is not None:
        made = msgspec.structs.replace(made, name=name)
    target.put(files.rank_file(opened.key, part.rank), files.encode(made))


class _Copier:
    """Copies chunks into one new file of bytes."""

    def __init__(
        self,
        source: CheckpointStore,
        file: str,
        upload: Upload,
        limit: BandwidthLimit,
        cancelled: Callable[[], bool],
    ) -> None:
        self._source = source
        self._file = file
        self._upload = upload
        self._limit = limit
        self._cancelled = cancelled
        self.written = 0

    def part(self, saved: SavedPart) -> SavedPart:
        """One cell."""
        leaves = [
            leaf
            if leaf.chunks is None
            else msgspec.structs.replace(leaf, chunks=self._chunks(leaf.chunks))
            for leaf in saved.leaves
        ]
        return SavedPart(tuple(leaves), self._chunks(saved.index), saved.seal)

    def _chunks(self, chunks: tuple[Chunk, ...]) -> tuple[Chunk, ...]:
        return tuple(self._chunk(chunk) for chunk in chunks)

    def _chunk(self, chunk: Chunk) -> Chunk:
        self._limit.take(chunk.length, self._cancelled)
        if self._cancelled():
            raise SaveCancelledError
        copied = msgspec.structs.replace(chunk, file=self._file, at=self.written)
        self._upload.write(read_chunk(self._source, chunk))
        self.written += chunk.length
        return copied
