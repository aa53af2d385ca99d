"""Files that say what a durable checkpoint consists of: their names, their shapes, their checks.

A checkpoint is a folder below the place of its tier. Each rank writes one file of bytes and one
JSON file that says which bytes are what (`RankPart`); the coordinator writes the `Manifest` last,
and only with it the checkpoint counts. Each of these JSON files ends with a checksum of itself, and
the manifest has that of every rank's file, which has that of every chunk: a flipped bit anywhere is
found, and so is a whole file of another checkpoint that was put in its place.

Chunks may lie in files of older checkpoints: what did not change is not written again. Names are
made and checked here only, so that none can lead out of the place. docs/reference/
checkpoint-format.md describes the format for those who write another reader.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Literal, TypeVar

import msgspec
import xxhash
from msgspec import Meta

from holdfast.checkpoint.key import Key
from holdfast.decoding import known
from holdfast.errors import Error

CHUNK_BYTES = 16 << 20
ATTEMPTS = "attempts"
MANIFEST = "manifest.json"
_FOLDER = re.compile(r"step-([0-9]{12,18})\.attempt-([0-9]{6,18})")
_RANK = re.compile(r"rank-([0-9]{5,9})\.json")
_LINEAGE = re.compile(r"([0-9]{6,18})\.json")
_DATA = r"^step-[0-9]{12,18}\.attempt-[0-9]{6,18}/rank-[0-9]{5,9}\.data\Z"
_TAIL_BYTES = 34  # checksum, quote, brace
_NO_DIGEST = "0" * 32

PartName = Literal["shared", "private"]
Count = Annotated[int, Meta(ge=0, lt=1 << 60)]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
Word = Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")]
DataFile = Annotated[str, Meta(pattern=_DATA)]
Record = TypeVar("Record", bound="RankPart | Manifest | Lineage")


class Chunk(msgspec.Struct, frozen=True):
    """Some bytes of a leaf or an index: where they lie and what they have to hash to."""

    file: DataFile  # from the place of the tier
    at: Count
    length: Annotated[int, Meta(gt=0, le=CHUNK_BYTES)]
    xxh3_128: Digest


class SavedLeaf(msgspec.Struct, frozen=True):
    """One leaf: `checkpoint.index.Leaf`, and its bytes; `chunks` is null if another rank has them.

    The chunks follow each other in the leaf; one without bytes has an empty list.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[Count, ...]
    order: tuple[Count, ...]
    whole: tuple[Count, ...]
    at: tuple[Count, ...]
    own: bool
    offset: Count  # in the payload of the snapshot
    length: Count
    chunks: tuple[Chunk, ...] | None


class SavedPart(msgspec.Struct, frozen=True):
    """One cell of the arena: its leaves in the order of its index, and the chunks of the index.

    The seal is that of the snapshot in memory, by which it is known again.
    """

    leaves: tuple[SavedLeaf, ...]
    index: tuple[Chunk, ...]
    seal: Word


class RankPart(msgspec.Struct, frozen=True, kw_only=True):
    """`rank-N.json`: what one rank has saved."""

    format: Literal[1] = 1
    job: str
    attempt: Count
    step: Count
    rank: Count
    world_size: Annotated[int, Meta(gt=0)]
    fingerprint: Word
    name: str
    fresh: Count  # saves ago that this rank wrote all its bytes
    data_bytes: Count  # size of its file of bytes
    parts: dict[PartName, SavedPart]
    xxh3_128: str = _NO_DIGEST

    @property
    def key(self) -> Key:
        return Key(self.attempt, self.step)

    def chunks(self) -> Iterator[Chunk]:
        """Every chunk this rank is responsible for."""
        for part in self.parts.values():
            yield from part.index
            for leaf in part.leaves:
                yield from leaf.chunks or ()


class PartFile(msgspec.Struct, frozen=True):
    """A rank's JSON file as the coordinator has seen it."""

    rank: Count
    file: str
    bytes: Count
    xxh3_128: Digest


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`manifest.json`: the checkpoint is committed."""

    format: Literal[1] = 1
    job: str
    attempt: Count
    step: Count
    world_size: Annotated[int, Meta(gt=0)]
    name: str
    created_at: float  # seconds since 1970
    bytes: Count  # of state
    written_bytes: Count  # that were not in older checkpoints already
    parts: tuple[PartFile, ...]
    files: tuple[DataFile, ...]  # of older checkpoints that this one needs
    xxh3_128: str = _NO_DIGEST

    @property
    def key(self) -> Key:
        return Key(self.attempt, self.step)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Whose parts are here: on the disk of a node only those of its ranks."""
        return tuple(part.rank for part in self.parts)

    @property
    def whole(self) -> bool:
        return len(self.parts) == self.world_size


class ParentSnapshot(msgspec.Struct, frozen=True):
    """What an attempt went on from."""

    attempt: Count
    step: Count

    @property
    def key(self) -> Key:
        return Key(self.attempt, self.step)


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    """`attempts/N.json`: that the attempt exists, and its parent; null if it began from nothing."""

    format: Literal[1] = 1
    attempt: Count
    parent: ParentSnapshot | None
    fresh: str = ""  # under which word the job began anew; "" if it went on from what was there
    owner: str = ""  # tells two jobs of one name apart
    xxh3_128: str = _NO_DIGEST


# ── names ─────────────────────────────────────────────────────────────────────────────────────


def folder_of(key: Key) -> str:
    """The folder of a checkpoint."""
    return f"step-{key.step:012}.attempt-{key.attempt:06}"


def key_of(folder: str) -> Key | None:
    """The checkpoint whose folder this is; None for other names."""
    found = _FOLDER.fullmatch(folder)
    key = Key(int(found[2]), int(found[1])) if found else None
    return key if key is not None and folder_of(key) == folder else None


def data_file(key: Key, rank: int) -> str:
    """The file with the bytes that this rank wrote."""
    return f"{folder_of(key)}/rank-{rank:05}.data"


def rank_file(key: Key, rank: int) -> str:
    """The file that says what they are."""
    return f"{folder_of(key)}/rank-{rank:05}.json"


def rank_of(name: str) -> int | None:
    """The rank whose JSON file this is; None for other names."""
    found = _RANK.fullmatch(name)
    return int(found[1]) if found else None


def manifest_file(key: Key) -> str:
    """The file that commits a checkpoint."""
    return f"{folder_of(key)}/{MANIFEST}"


def lineage_file(attempt: int) -> str:
    """The file that says what an attempt went on from."""
    return f"{ATTEMPTS}/{attempt:06}.json"


def attempt_of(name: str) -> int | None:
    """The attempt whose lineage this file holds; None for other names."""
    found = _LINEAGE.fullmatch(name)
    return int(found[1]) if found else None


# ── encoding ──────────────────────────────────────────────────────────────────────────────────


def encode(record: RankPart | Manifest | Lineage) -> bytes:
    """The file of this record: JSON that ends with the checksum of everything before it."""
    body = msgspec.json.encode(msgspec.structs.replace(record, xxh3_128=_NO_DIGEST))
    head = body[:-_TAIL_BYTES]
    return head + digest(head).encode() + b'"}'


def decode(data: bytes, kind: type[Record], file: str) -> Record:
    """The record in a file. Raises `Error` checkpoint-damaged that names the file and what is
    wrong with it."""
    if len(data) <= _TAIL_BYTES or data[-_TAIL_BYTES:-2].decode("latin-1") != digest(
        data[:-_TAIL_BYTES]
    ):
        raise damaged(file, "checksum mismatch")
    try:
        record = msgspec.json.decode(data, type=known(kind))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise damaged(file, str(error)) from error
    if trouble := _trouble(record, file):
        raise damaged(file, trouble)
    return record


def digest(data: bytes | memoryview) -> str:
    """The checksum that is used everywhere in a checkpoint: xxh3_128, 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(data)


def damaged(file: str, why: str) -> Error:
    """The error for a file that is not what was written."""
    return Error(
        "checkpoint-damaged",
        f"{file} is damaged",
        why=why,
        help="holdfast checkpoint verify   (lists what is damaged and what is intact)",
    )


def _trouble(record: RankPart | Manifest | Lineage, file: str) -> str | None:
    """What a record says that cannot be, though its checksum is right."""
    match record:
        case RankPart():
            named = rank_file(record.key, record.rank)
            trouble = _rank_trouble(record)
        case Manifest():
            named = manifest_file(record.key)
            trouble = _manifest_trouble(record)
        case Lineage():
            named = lineage_file(record.attempt)
            trouble = None
    return trouble if file == named else f"its content is that of {named}"


def _rank_trouble(part: RankPart) -> str | None:
    if part.rank >= part.world_size:
        return f"rank {part.rank} of {part.world_size}"
    for saved in part.parts.values():
        for leaf in saved.leaves:
            if leaf.chunks is not None and sum(c.length for c in leaf.chunks) != leaf.length:
                return f"the chunks of {leaf.name!r} do not have its length"
    return None


def _manifest_trouble(manifest: Manifest) -> str | None:
    ranks = manifest.ranks
    if not ranks or len(set(ranks)) != len(ranks) or max(ranks) >= manifest.world_size:
        return f"it names the ranks {ranks} of {manifest.world_size}"
    strange = [p.file for p in manifest.parts if p.file != rank_file(manifest.key, p.rank)]
    return f"it names {strange[0]}" if strange else None
