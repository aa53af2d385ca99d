"""Upkeep of a place: thin out the history, copy a checkpoint to another place.

Pruning takes the manifest away first, so that a checkpoint which is half removed does not count. A
file of bytes stays as long as a checkpoint that stays, or one that is just being written, refers to
it. Folders without a manifest go once a newer checkpoint has been committed after them: nobody can
commit them any more.

A copy is whole in itself: it has all its bytes in its own folder, and each was checked on the way.
"""

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import msgspec

from holdfast.checkpoint import manifest as files
from holdfast.checkpoint.key import Key
from holdfast.checkpoint.limit import Limit
from holdfast.checkpoint.lineage import valid
from holdfast.checkpoint.manifest import Chunk, Lineage, Manifest, RankPart, SavedPart
from holdfast.checkpoint.retention import kept
from holdfast.checkpoint.save import SaveCancelledError, in_parallel, incomplete, put_manifest
from holdfast.checkpoint.shelf import (
    Opened,
    Survey,
    lineages,
    open_checkpoint,
    read_chunk,
    survey,
)
from holdfast.checkpoint.stores import UNFINISHED, Store, Upload, unusable
from holdfast.errors import Error


class Pruned(NamedTuple):
    """What was removed, or would be."""

    checkpoints: tuple[Key, ...]
    files: tuple[str, ...]


def prune(store: Store, *, newest: int, dry_run: bool = False) -> Pruned:
    """Thin out the checkpoints of a place as `retention` says. Only one process of a job does it.

    Raises `Error` storage-*; what was removed until then is gone, and what counts is sound.
    """
    found = survey(store)
    if not found.committed:
        return Pruned((), ())
    firm = [one.key for one in found.committed if one.name]
    firm += _proven(found)
    stay = kept([one.key for one in found.committed], newest=newest, firm=firm)
    gone = tuple(one.key for one in found.committed if one.key not in stay)
    gone += tuple(one.key for one in found.void if not one.name)
    removed = tuple(_surplus(store, found, gone))
    if not dry_run:
        for name in removed:
            store.remove(name)
    return Pruned(gone, removed)


def _proven(found: Survey) -> list[Key]:
    """What the newest attempt went on from: it has been read, every byte of it, and was sound."""
    newest = max(found.attempts, key=lambda one: one.attempt, default=None)
    return [newest.parent.key] if newest is not None and newest.parent is not None else []


def _surplus(store: Store, found: Survey, gone: Collection[Key]) -> Iterator[str]:
    """Files to remove, in this order."""
    stay = [one for one in (*found.committed, *found.void) if one.key not in gone]
    dead = [key for key in found.unfinished if _given_up(key, found.committed)]
    under_way = [key for key in found.unfinished if key not in dead]
    needed = {name for one in stay for name in one.files}
    needed |= {name for key in under_way for name in _referred_to(store, key)}
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


def _referred_to(store: Store, key: Key) -> set[str]:
    """Files that the ranks which have finished their part of a checkpoint refer to."""
    folder = files.folder_of(key)
    names = [f"{folder}/{n}" for n in store.list(folder) if files.rank_of(n) is not None]
    return {
        file for found in in_parallel(lambda n: _chunk_files(store, n), names) for file in found
    }


def _chunk_files(store: Store, name: str) -> set[str]:
    try:
        return {chunk.file for chunk in files.decode(store.read(name), RankPart, name).chunks()}
    except Error as error:
        if error.slug not in ("checkpoint-damaged", "storage-missing"):
            raise
        return set()


# ── copies ────────────────────────────────────────────────────────────────────────────────────


def copy(
    source: Store,
    key: Key,
    target: Store,
    *,
    now: float,
    name: str | None = None,
    limit: Limit | None = None,
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
        raise incomplete(source, key, f"only ranks {list(ranks)} of {world_size} are here")
    _require_room_for(opened.manifest, target)
    _copy_lineage(source, key, target)
    for part in opened.parts.values():
        _copy_part(opened, part, target, name, limit or Limit(None), cancelled)
    return put_manifest(target, key, ranks=opened.manifest.ranks, now=now)


def _require_room_for(manifest: Manifest, target: Store) -> None:
    there = survey(target)
    others = {one.job for one in (*there.committed, *there.void)} - {manifest.job}
    if others:
        raise unusable(target.where, f"checkpoints of job {min(others)} are there")
    if any(one.key == manifest.key for one in there.committed):
        raise unusable(target.where, f"step {manifest.step} of attempt {manifest.attempt} is there")
    if not valid(manifest.key, lineages(target)[0]):
        raise unusable(target.where, f"a later attempt there went on before step {manifest.step}")


def _copy_lineage(source: Store, key: Key, target: Store) -> None:
    name = files.lineage_file(key.attempt)
    if source.size(name) is not None and target.size(name) is None:
        lineage = files.decode(source.read(name), Lineage, name)
        target.put(name, files.encode(lineage))


def _copy_part(
    opened: Opened,
    part: RankPart,
    target: Store,
    name: str | None,
    limit: Limit,
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
        source: Store,
        file: str,
        upload: Upload,
        limit: Limit,
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
