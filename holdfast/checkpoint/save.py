"""Saving: each rank writes its part of a snapshot, then one process commits the checkpoint.

`save_rank` reads the cells of the arena once, chunk by chunk through one buffer: what is hashed for
the seal, hashed for the chunk and written are the same bytes, so that a snapshot which is
overwritten or was damaged in memory is noticed and never gets its JSON file. Chunks that the rank's
previous checkpoint holds may be referred to instead of written (`reuse`).

`commit` looks at what all ranks say and writes the manifest. Both first ask whether a newer attempt
has begun: then they stop. What slips through between question and answer is void by its lineage.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import msgspec
import xxhash

from holdfast.checkpoint import manifest as files
from holdfast.checkpoint.arena import Cell, CellHeader, StatePart
from holdfast.checkpoint.bandwidth_limit import BandwidthLimit
from holdfast.checkpoint.index import EVERYWHERE, ON_NODE, Index, Leaf, read_index
from holdfast.checkpoint.key import Key
from holdfast.checkpoint.lineage import superseded
from holdfast.checkpoint.manifest import (
    CHUNK_BYTES,
    Chunk,
    Lineage,
    Manifest,
    PartFile,
    PartName,
    RankPart,
    SavedLeaf,
    SavedPart,
)
from holdfast.checkpoint.reuse import KnownChunks
from holdfast.checkpoint.seal import Seal
from holdfast.checkpoint.stores import CheckpointStore, Upload, unusable
from holdfast.checkpoint.tiers import Tier
from holdfast.errors import Error

AT_ONCE = 8  # small files that are read at the same time
_BLOCK_BYTES = 1 << 20  # stays in a second-level cache between copy and checksums
NAMES: dict[StatePart, PartName] = {StatePart.SHARED: "shared", StatePart.PRIVATE: "private"}
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class SaveCancelledError(Exception):
    """The save was called off; nothing of it counts."""


def begin(store: CheckpointStore, lineage: Lineage) -> None:
    """Write down that an attempt begins, before its first save. Older ones are fenced from now on.

    Raises `Error` checkpoint-fenced if a newer one has begun, or this one of another job.
    """
    require_newest(store, lineage.attempt)
    name = files.lineage_file(lineage.attempt)
    if store.size(name) is None:
        store.put(name, files.encode(lineage))
    there = _described(store, name, Lineage)
    if there and there.owner and lineage.owner and there.owner != lineage.owner:
        raise Error(
            "checkpoint-fenced",
            f"attempt {lineage.attempt} must not save in {store.where}",
            why=f"attempt {there.attempt} of another job with the same name saves there",
            help="use a separate location, or another name, for each job",
        )


def require_newest(store: CheckpointStore, attempt: int) -> None:
    """Raises `Error` checkpoint-fenced if a newer attempt has begun here."""
    found = [files.attempt_of(name) for name in store.list(files.ATTEMPTS)]
    newer = superseded(attempt, (number for number in found if number is not None))
    if newer is not None:
        raise Error(
            "checkpoint-fenced",
            f"attempt {attempt} must not save in {store.where} any more",
            why=f"attempt {newer} has started there",
            help="if these are two jobs, use a separate location for each; otherwise no action is "
            "needed",
        )


# ── one rank ──────────────────────────────────────────────────────────────────────────────────


def save_rank(
    store: CheckpointStore,
    cells: Mapping[StatePart, Cell],
    *,
    job: str,
    tier: Tier,
    previous: RankPart | None = None,
    limit: BandwidthLimit | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> RankPart:
    """Write one rank's part of the snapshot that its SHARED and PRIVATE cells hold.

    `previous` is the rank's part of its last committed checkpoint here. What the rank has written
    already is not written again. Raises `SaveCancelledError`, or `Error` snapshot-changed,
    checkpoint-fenced or storage-*; then nothing of it counts, and it may be tried again.
    """
    headers = {part: _header(cell) for part, cell in cells.items()}
    header = next(iter(headers.values()))
    if any(one[:5] != header[:5] for one in headers.values()):
        raise _changed(header.key, "its cells contain different snapshots")
    require_newest(store, header.attempt)
    if (done := _already(store, header, cells)) is not None:
        return done
    ours = ON_NODE if tier is Tier.LOCAL else EVERYWHERE
    payloads = {part: _payload(cells[part], one) for part, one in headers.items()}
    known = KnownChunks(store, previous, header.attempt)
    known.judge([piece for payload in payloads.values() for piece in payload.chunks(ours)])
    with store.create(files.data_file(header.key, header.rank)) as upload:
        data = _Data(upload, header, ours, known, limit or BandwidthLimit(None), cancelled)
        parts = {NAMES[part]: data.save(payload) for part, payload in payloads.items()}
    require_newest(store, header.attempt)
    part = RankPart(
        job=job,
        attempt=header.attempt,
        step=header.step,
        rank=header.rank,
        world_size=header.world_size,
        fingerprint=f"{header.fingerprint:016x}",
        name=data.name,
        fresh=known.fresh,
        data_bytes=data.written,
        parts=parts,
    )
    return _put(store, part, files.rank_file(header.key, header.rank))


class _Payload(NamedTuple):
    """What a cell holds."""

    cell: Cell
    header: CellHeader
    memory: memoryview
    encoded: bytes
    contents: Index

    def chunks(self, ours: int) -> Iterator[memoryview]:
        """The pieces of the leaves that are ours to write."""
        for leaf in self.contents.leaves:
            if leaf.save & ours:
                yield from _pieces(self.memory[leaf.offset : leaf.offset + leaf.length])


class _Data:
    """The file of bytes of one rank while it is written."""

    def __init__(
        self,
        upload: Upload,
        header: CellHeader,
        ours: int,
        known: KnownChunks,
        limit: BandwidthLimit,
        cancelled: Callable[[], bool],
    ) -> None:
        self._upload = upload
        self._file = files.data_file(header.key, header.rank)
        self._ours = ours
        self._known = known
        self._limit = limit
        self._cancelled = cancelled
        self._buffer = memoryview(bytearray(CHUNK_BYTES))
        self.written = 0
        self.name = ""

    def save(self, source: _Payload) -> SavedPart:
        """Write one cell. Raises `Error` snapshot-changed where its checksum has changed."""
        header, payload = source.header, source.memory
        self.name = self.name or source.contents.name
        seal = Seal()
        leaves: dict[int, SavedLeaf] = {}
        position = 0
        for number, leaf in sorted(
            enumerate(source.contents.leaves), key=lambda pair: pair[1].offset
        ):
            if not position <= leaf.offset <= leaf.offset + leaf.length <= header.data_bytes:
                raise _changed(header.key, f"its index puts {leaf.name!r} outside of it")
            seal.update(payload[position : leaf.offset])
            position = leaf.offset + leaf.length
            leaves[number] = self._leaf(leaf, payload[leaf.offset : position], seal)
        seal.update(payload[position : header.data_bytes])
        seal.update(source.encoded)
        if source.cell.header() != header or source.cell.sealed() != seal.intdigest():
            raise _changed(header.key, "its checksum has changed")
        chunks = self._chunks(memoryview(source.encoded), Seal())
        ordered = tuple(leaves[number] for number in range(len(leaves)))
        return SavedPart(ordered, chunks, f"{seal.intdigest():016x}")

    def _leaf(self, leaf: Leaf, memory: memoryview, seal: Seal) -> SavedLeaf:
        ours = bool(leaf.save & self._ours)
        if not ours:
            self._digest(memory, seal)
        return SavedLeaf(
            name=leaf.name,
            kind=leaf.kind,
            dtype=leaf.dtype,
            shape=leaf.shape,
            order=leaf.order,
            whole=leaf.whole,
            at=leaf.at,
            own=leaf.own,
            offset=leaf.offset,
            length=leaf.length,
            chunks=self._chunks(memory, seal) if ours else None,
        )

    def _digest(self, memory: memoryview, seal: Seal) -> None:
        for piece in _pieces(memory):
            self._require_wanted()
            seal.update(piece)

    def _chunks(self, memory: memoryview, seal: Seal) -> tuple[Chunk, ...]:
        return tuple(self._chunk(piece, seal) for piece in _pieces(memory))

    def _chunk(self, memory: memoryview, seal: Seal) -> Chunk:
        self._require_wanted()
        digest = xxhash.xxh3_128()
        for at in range(0, len(memory), _BLOCK_BYTES):
            block = self._buffer[at : min(at + _BLOCK_BYTES, len(memory))]
            block[:] = memory[at : at + _BLOCK_BYTES]
            seal.update(block)
            digest.update(block)
        known = self._known.find(digest.hexdigest(), len(memory))
        return known or self._write(self._buffer[: len(memory)], digest.hexdigest())

    def _write(self, data: memoryview, digest: str) -> Chunk:
        self._limit.take(len(data), self._cancelled)
        self._require_wanted()
        chunk = Chunk(self._file, self.written, len(data), digest)
        self._upload.write(data)
        self.written += len(data)
        return chunk

    def _require_wanted(self) -> None:
        if self._cancelled():
            raise SaveCancelledError


def _header(cell: Cell) -> CellHeader:
    header = cell.header()
    if header is None or cell.sealed() is None:
        raise _changed(
            Key(0, 0) if header is None else header.key, "it is incomplete or not sealed"
        )
    return header


def _payload(cell: Cell, header: CellHeader) -> _Payload:
    cell.reserve(header.payload_bytes, touch=False)
    memory = cell.payload[: header.payload_bytes].toreadonly()
    encoded = bytes(memory[header.data_bytes :])
    try:
        return _Payload(cell, header, memory, encoded, read_index(encoded))
    except msgspec.MsgspecError as error:
        raise _changed(header.key, f"its index cannot be read: {error}") from error


def _pieces(memory: memoryview) -> Iterator[memoryview]:
    return (memory[at : at + CHUNK_BYTES] for at in range(0, len(memory), CHUNK_BYTES))


def _already(
    store: CheckpointStore, header: CellHeader, cells: Mapping[StatePart, Cell]
) -> RankPart | None:
    """What the rank has saved of this very snapshot before, if it is whole; what else is there
    under its name is removed."""
    name = files.rank_file(header.key, header.rank)
    if store.size(name) is None:
        return None
    part = _described(store, name, RankPart)
    there = part and store.size(files.data_file(header.key, header.rank)) == part.data_bytes
    seals = {NAMES[kind]: f"{cell.sealed() or 0:016x}" for kind, cell in cells.items()}
    if part and there and seals == {kind: saved.seal for kind, saved in part.parts.items()}:
        return part
    if store.size(files.manifest_file(header.key)) is not None:
        why = f"step {header.step} of attempt {header.attempt} exists already, saved by another run"
        raise unusable(store.where, why)
    store.remove(name)
    return None


def _described(store: CheckpointStore, name: str, kind: type[files.Record]) -> files.Record | None:
    """What a JSON file says; None if it is damaged."""
    try:
        return files.decode(store.read(name), kind, name)
    except Error as error:
        if error.slug != "checkpoint-damaged":
            raise
        return None


def _changed(key: Key, why: str) -> Error:
    return Error(
        "snapshot-changed",
        f"the snapshot of step {key.step} could not be saved",
        why=why,
        help="no action is needed; if it persists, check the memory of the machine",
    )


# ── all ranks ─────────────────────────────────────────────────────────────────────────────────


class _Seen(NamedTuple):
    part: RankPart
    file: PartFile


def lacking(store: CheckpointStore, key: Key, ranks: Iterable[int]) -> set[int]:
    """Those of `ranks` that have not finished their part yet."""
    return set(ranks) - {files.rank_of(name) for name in store.list(files.folder_of(key))}


def commit(store: CheckpointStore, key: Key, *, ranks: Sequence[int], now: float) -> Manifest:
    """Make the checkpoint count. `ranks` are all of the world, or those of the node for the tier
    on its disk; `now` is in seconds since 1970.

    Raises `Error` checkpoint-incomplete, checkpoint-damaged, checkpoint-fenced or storage-*; then
    it does not count, and it may be tried again.
    """
    name = files.manifest_file(key)
    if store.size(name) is not None:
        return files.decode(store.read(name), Manifest, name)
    require_newest(store, key.attempt)
    if missing := lacking(store, key, ranks):
        raise incomplete(store, key, f"ranks {sorted(missing)[:8]} have not saved their part")
    made = _assemble(store, key, ranks, now)
    require_newest(store, key.attempt)
    return _put(store, made, name)


def put_manifest(store: CheckpointStore, key: Key, *, ranks: Sequence[int], now: float) -> Manifest:
    """Like `commit`, for a checkpoint that is copied: attempts that have begun do not matter."""
    made = _assemble(store, key, ranks, now)
    return _put(store, made, files.manifest_file(key))


def _put(store: CheckpointStore, record: files.Record, name: str) -> files.Record:
    """Write a record; returns it as it will be read."""
    data = files.encode(record)
    store.put(name, data)
    return files.decode(data, type(record), name)


def in_parallel(work: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """`work` for each item, some at a time, because each waits for storage; results in order."""
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="holdfast-read") as pool:
        return list(pool.map(work, items))


def incomplete(store: CheckpointStore, key: Key, why: str) -> Error:
    """The error for a checkpoint that cannot count."""
    return Error(
        "checkpoint-incomplete",
        f"step {key.step} of attempt {key.attempt} in {store.where} is incomplete",
        why=why,
        help=f"holdfast checkpoint list --at {store.where}   (lists the complete ones)",
    )


def _see(store: CheckpointStore, key: Key, rank: int) -> _Seen:
    name = files.rank_file(key, rank)
    data = store.read(name)
    part = files.decode(data, RankPart, name)
    return _Seen(part, PartFile(rank, name, len(data), files.digest(data)))


def _assemble(store: CheckpointStore, key: Key, ranks: Iterable[int], now: float) -> Manifest:
    seen = in_parallel(lambda rank: _see(store, key, rank), sorted(ranks))
    parts = [one.part for one in seen]
    first = parts[0]
    for part in parts:
        if (part.job, part.world_size, part.name) != (first.job, first.world_size, first.name):
            raise incomplete(store, key, f"ranks {first.rank} and {part.rank} saved different jobs")
    if lost := _saved_by_nobody(parts):
        raise incomplete(store, key, f"no rank has saved {lost}")
    own = {files.data_file(key, part.rank) for part in parts}
    needed = _ends(parts)
    for name, size in zip(needed, in_parallel(store.size, needed), strict=True):
        if size is None or size < needed[name]:
            raise incomplete(store, key, f"{name} is missing or truncated")
    return Manifest(
        job=first.job,
        attempt=key.attempt,
        step=key.step,
        world_size=first.world_size,
        name=first.name,
        created_at=now,
        bytes=sum(chunk.length for part in parts for chunk in part.chunks()),
        written_bytes=sum(part.data_bytes for part in parts),
        parts=tuple(one.file for one in seen),
        files=tuple(sorted(set(needed) - own)),
    )


def _ends(parts: Iterable[RankPart]) -> dict[str, int]:
    """How long each file of bytes has to be."""
    ends: dict[str, int] = {}
    for part in parts:
        for chunk in part.chunks():
            ends[chunk.file] = max(ends.get(chunk.file, 0), chunk.at + chunk.length)
    return ends


def _saved_by_nobody(parts: Iterable[RankPart]) -> str | None:
    """A leaf that every rank left to another one, if there is one."""
    wanted: dict[tuple[object, ...], str] = {}
    had = set()
    for part in parts:
        for kind, saved in part.parts.items():
            for leaf in saved.leaves:
                same = (kind, leaf.name, leaf.at, leaf.shape, part.rank if leaf.own else None)
                if leaf.chunks is None:
                    wanted[same] = leaf.name
                else:
                    had.add(same)
    with contextlib.suppress(StopIteration):
        return next(name for same, name in wanted.items() if same not in had)
    return None
