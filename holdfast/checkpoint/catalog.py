"""Looking at the checkpoints of a place: which count, what they hold, whether they are sound.

What counts is worked out anew each time from what lies there: a folder with a sound manifest that
no later attempt has made void. There is no file that names the latest one, so none can be wrong.
Every byte that is read is checked on the way.
"""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from holdfast.checkpoint import manifest as files
from holdfast.checkpoint.index import Index, read_index
from holdfast.checkpoint.key import Key, newest_first
from holdfast.checkpoint.lineage import implied, valid
from holdfast.checkpoint.manifest import Chunk, Lineage, Manifest, RankPart, SavedPart
from holdfast.checkpoint.save import in_parallel
from holdfast.checkpoint.stores import CheckpointStore
from holdfast.errors import Error


class Damage(msgspec.Struct, frozen=True):
    """Something that is not what was written. Without a leaf the file itself is meant."""

    file: str
    why: str
    rank: int | None = None
    leaf: str | None = None
    at: int | None = None
    length: int | None = None

    @property
    def key(self) -> Key | None:
        """The checkpoint to which the file belongs; None for a lineage."""
        return files.key_of(self.file.partition("/")[0])


class Catalog(NamedTuple):
    """All that lies in a place."""

    committed: tuple[Manifest, ...]  # that count, the newest first
    void: tuple[Manifest, ...]  # committed, but later attempts went on from before
    unfinished: tuple[Key, ...]  # no manifest: being written, given up, or thinned out
    damaged: tuple[Damage, ...]  # manifests and lineages
    unreadable: tuple[Damage, ...]  # manifests and lineages that the storage does not give now
    attempts: tuple[Lineage, ...]


@dataclass(frozen=True)
class Opened:
    """A committed checkpoint, ready to be read."""

    store: CheckpointStore
    manifest: Manifest
    parts: dict[int, RankPart]  # by rank

    @property
    def key(self) -> Key:
        return self.manifest.key


def survey(store: CheckpointStore) -> Catalog:
    """Everything in a place. A file that cannot be read hides no other. Raises `Error` storage-*
    where not even the names are told."""
    attempts, unclear = _lineages(store)
    folders = newest_first(key for name in store.list("") if (key := files.key_of(name)))
    found = in_parallel(lambda key: _manifest(store, key), folders)
    sound = [one for one in found if isinstance(one, Manifest)]
    wrong = [*unclear, *(one for one in found if isinstance(one, _Wrong))]
    known = [*attempts, *implied((one.key for one in sound), attempts)]
    return Catalog(
        committed=tuple(one for one in sound if valid(one.key, known)),
        void=tuple(one for one in sound if not valid(one.key, known)),
        unfinished=tuple(key for key, one in zip(folders, found, strict=True) if one is None),
        damaged=tuple(one.file for one in wrong if one.damaged),
        unreadable=tuple(one.file for one in wrong if not one.damaged),
        attempts=tuple(attempts),
    )


def committed(store: CheckpointStore) -> list[Manifest]:
    """The checkpoints that count, the newest first."""
    return list(survey(store).committed)


def newest_attempt(store: CheckpointStore) -> int:
    """The newest attempt that has begun here, 0 for none: names tell, whatever is in the files.
    Raises `Error` storage-*."""
    found = (files.attempt_of(name) for name in store.list(files.ATTEMPTS))
    return max((number for number in found if number is not None), default=0)


class _Wrong(NamedTuple):
    """A file that says nothing: it is damaged, or the storage does not give it now."""

    file: Damage
    error: Error

    @property
    def damaged(self) -> bool:
        return self.error.slug == "checkpoint-damaged"


def _lineages(store: CheckpointStore) -> tuple[list[Lineage], list[_Wrong]]:
    """What the attempts went on from, and which of these files say nothing."""
    names = [n for n in store.list(files.ATTEMPTS) if files.attempt_of(n) is not None]
    found = in_parallel(lambda name: _lineage(store, f"{files.ATTEMPTS}/{name}"), names)
    sound = [one for one in found if isinstance(one, Lineage)]
    return sound, [one for one in found if isinstance(one, _Wrong)]


def open_checkpoint(store: CheckpointStore, key: Key) -> Opened:
    """The checkpoint with the parts of all its ranks; its bytes are not looked at yet.

    Raises `Error` checkpoint-not-found, checkpoint-damaged or storage-*.
    """
    name = files.manifest_file(key)
    if store.size(name) is None:
        raise not_found(store, key)
    manifest = files.decode(store.read(name), Manifest, name)
    parts = in_parallel(lambda rank: read_part(store, manifest, rank), manifest.ranks)
    return Opened(store, manifest, {part.rank: part for part in parts})


def not_found(store: CheckpointStore, key: Key) -> Error:
    """The error for a checkpoint that is not there."""
    return Error(
        "checkpoint-not-found",
        f"there is no checkpoint of step {key.step}, attempt {key.attempt}, in {store.where}",
        why="it has no manifest: it was never committed, or it was removed",
        help=f"holdfast checkpoint list --at {store.where}",
    )


def read_part(store: CheckpointStore, manifest: Manifest, rank: int) -> RankPart:
    """One rank's part of a committed checkpoint. Raises as `open_checkpoint`."""
    (file,) = (part for part in manifest.parts if part.rank == rank)
    with _missing_is_damage(file.file):
        data = store.read(file.file)
    if files.digest(data) != file.xxh3_128:
        raise files.damaged(file.file, "it is not the file that the manifest names")
    part = files.decode(data, RankPart, file.file)
    if (part.job, part.world_size) != (manifest.job, manifest.world_size):
        raise files.damaged(file.file, "it belongs to a different job than the manifest")
    return part


def previous_part(store: CheckpointStore, rank: int) -> RankPart | None:
    """The rank's part of the newest checkpoint that counts, for an incremental save; None where
    there is none or it cannot be read: then all is saved. Raises `Error` storage-* where not even
    names are told."""
    for manifest in committed(store)[:1]:
        if rank in manifest.ranks:
            with contextlib.suppress(Error):
                return read_part(store, manifest, rank)
    return None


def read_chunk(store: CheckpointStore, chunk: Chunk) -> bytes:
    """The bytes of a chunk. Raises `Error` checkpoint-damaged or storage-*."""
    target = bytearray(chunk.length)
    read_chunk_into(store, chunk, memoryview(target))
    return bytes(target)


def read_chunk_into(store: CheckpointStore, chunk: Chunk, target: memoryview) -> None:
    """The bytes of a chunk into memory of its length. Raises as `read_chunk`."""
    with _missing_is_damage(chunk.file):
        store.read_into(chunk.file, chunk.at, target)
    if files.digest(target) != chunk.xxh3_128:
        why = f"the {chunk.length} bytes from {chunk.at} on do not match their checksum"
        raise files.damaged(chunk.file, why)


def index_of(store: CheckpointStore, part: SavedPart) -> Index:
    """The index of a saved cell, with the tree around its leaves. Raises as `read_chunk`."""
    data = b"".join(read_chunk(store, chunk) for chunk in part.index)
    try:
        return read_index(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        file = part.index[0].file if part.index else "an index"
        raise files.damaged(file, f"its index: {error}") from error


def verify(store: CheckpointStore, key: Key) -> list[Damage]:
    """Read every byte of a checkpoint and name all that is damaged. Raises `Error`
    checkpoint-not-found or storage-*."""
    manifest = _manifest(store, key)
    if manifest is None:
        raise not_found(store, key)
    if isinstance(manifest, _Wrong):
        return [_damage(manifest.error, manifest.file.file)]
    damages: list[Damage] = []
    for rank in manifest.ranks:
        try:
            part = read_part(store, manifest, rank)
        except Error as error:
            damages.append(_damage(error, files.rank_file(key, rank), rank=rank))
            continue
        damages += [d for d in in_parallel(lambda c: _check(store, *c), _leaves(part)) if d]
    return damages


def _leaves(part: RankPart) -> Iterator[tuple[Chunk, int, str | None]]:
    for saved in part.parts.values():
        yield from ((chunk, part.rank, None) for chunk in saved.index)
        for leaf in saved.leaves:
            yield from ((chunk, part.rank, leaf.name) for chunk in leaf.chunks or ())


def _check(store: CheckpointStore, chunk: Chunk, rank: int, leaf: str | None) -> Damage | None:
    try:
        read_chunk(store, chunk)
    except Error as error:
        damage = _damage(error, chunk.file, rank=rank)
        return msgspec.structs.replace(damage, leaf=leaf, at=chunk.at, length=chunk.length)
    return None


def _manifest(store: CheckpointStore, key: Key) -> Manifest | _Wrong | None:
    name = files.manifest_file(key)
    try:
        return files.decode(store.read(name), Manifest, name)
    except Error as error:
        return None if error.slug == "storage-missing" else _wrong(error, name)


def _lineage(store: CheckpointStore, name: str) -> Lineage | _Wrong | None:
    """None if it is gone."""
    try:
        return files.decode(store.read(name), Lineage, name)
    except Error as error:
        return None if error.slug == "storage-missing" else _wrong(error, name)


def _wrong(error: Error, name: str) -> _Wrong:
    return _Wrong(Damage(name, error.why), error)


def _damage(error: Error, file: str, rank: int | None = None) -> Damage:
    """What is damaged; other errors are not about the checkpoint and are raised again."""
    if error.slug != "checkpoint-damaged":
        raise error
    return Damage(file, error.why, rank)


@contextmanager
def _missing_is_damage(file: str) -> Iterator[None]:
    try:
        yield
    except Error as error:
        if error.slug != "storage-missing":
            raise
        raise files.damaged(file, error.why) from error
