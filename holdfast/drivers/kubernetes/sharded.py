"""Content that one ConfigMap cannot hold, in several: how it lies there, and how it is read.

A head, ConfigMap `NAME`, carries an index as `index.json`; the shards are `NAME-1`, `NAME-2` and
so on. The index lists for each part of the content its chunks in order, each by the digest of its
bytes, with the numbers of the shards that hold it, compressed. A shard says which chunk it holds.

The writer never overwrites what the index in the cluster refers to, so a reader that has the index
finds all of one version, or learns from the digests that a newer index is there, and reads that.
"""

import asyncio
import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import xxhash

from holdfast.drivers.kubernetes.cluster import CONFIG_MAPS, Cluster, NotFoundError
from holdfast.drivers.kubernetes.config_map import binary_of
from holdfast.drivers.kubernetes.manifests.request import Body

INDEX = "index.json"
CHUNK = "chunk"  # which one a shard holds
PACKED = "part.gz"
TRIES = 5
PAUSE_S = 0.3  # before the second try; doubles
AT_ONCE = 8


class ShardEntry(msgspec.Struct, frozen=True):
    """A chunk in the index. `size`: in bytes, not compressed."""

    digest: str
    size: int
    shards: tuple[int, ...]


class ShardIndex(msgspec.Struct, frozen=True):
    """What a head says of its shards. `at`: when it was written; `left_out`: what had no room."""

    at: float | None = None
    parts: dict[str, tuple[ShardEntry, ...]] = {}
    left_out: int = 0

    @property
    def entries(self) -> list[ShardEntry]:
        """Those of all parts."""
        return [entry for part in self.parts.values() for entry in part]


@dataclass(frozen=True)
class ReadShards:
    """What was read. `parts` is None if the shards are not those that the index tells of."""

    head: Body
    index: ShardIndex
    parts: dict[str, bytes] | None


Cache = dict[str, bytes]
"""Chunks that were read before, by digest: a reader that looks again reads only what is new."""


class _TornError(Exception):
    """A shard does not hold what the index says."""


def digest_of(content: bytes) -> str:
    """The name of a chunk."""
    return xxhash.xxh3_128_hexdigest(content)


def shard_name(head: str, number: int) -> str:
    """Name of a shard's ConfigMap."""
    return f"{head}-{number}"


def slice_name(digest: str, number: int) -> str:
    """What a shard says it holds: one slice of the compressed chunk."""
    return f"{digest}.{number}"


def index_of(head: Body) -> ShardIndex | None:
    """The index in a head; an empty one in the head of a version that had none, None for one that
    somebody has broken."""
    text = (head.get("data") or {}).get(INDEX)
    try:
        return msgspec.json.decode(text, type=ShardIndex) if text else ShardIndex()
    except msgspec.DecodeError:
        return None


async def read(cluster: Cluster, name: str, cache: Cache | None = None) -> ReadShards | None:
    """The head of this name with all its parts; None if there is none. Raises `ApiError`."""
    cache = {} if cache is None else cache
    for tried in range(TRIES):
        try:
            head = await cluster.get(CONFIG_MAPS, name)
        except NotFoundError:
            return None
        known = index_of(head)
        index = known or ShardIndex()
        if known is None:
            break
        try:
            return ReadShards(head, index, await _parts(cluster, name, index, cache))
        except _TornError:
            if tried + 1 < TRIES:
                await asyncio.sleep(PAUSE_S * 2**tried)
    return ReadShards(head, index, None)


async def _parts(cluster: Cluster, name: str, index: ShardIndex, cache: Cache) -> dict[str, bytes]:
    """Every part, from the cache what was read before. Raises `_TornError`."""
    turns = asyncio.Semaphore(AT_ONCE)
    new = [entry for entry in index.entries if entry.digest not in cache]
    chunks = await asyncio.gather(
        *(_chunk(cluster, name, entry, turns) for entry in new), return_exceptions=True
    )
    for entry, chunk in zip(new, chunks, strict=True):
        if isinstance(chunk, BaseException):
            raise chunk
        cache[entry.digest] = chunk
    for digest in cache.keys() - {entry.digest for entry in index.entries}:
        del cache[digest]
    return {
        part: b"".join(cache[entry.digest] for entry in entries)
        for part, entries in index.parts.items()
    }


async def _chunk(cluster: Cluster, name: str, entry: ShardEntry, turns: asyncio.Semaphore) -> bytes:
    async with turns:
        bodies = [await _shard(cluster, name, number) for number in entry.shards]
    content = await asyncio.to_thread(_unpacked, entry, bodies)
    if content is None:
        raise _TornError
    return content


async def _shard(cluster: Cluster, name: str, number: int) -> Body:
    try:
        return await cluster.get(CONFIG_MAPS, shard_name(name, number))
    except NotFoundError as error:
        raise _TornError from error


def _unpacked(entry: ShardEntry, bodies: Sequence[Body]) -> bytes | None:
    """The chunk in these shards; None if they hold another."""
    if not all(holds(body, slice_name(entry.digest, i)) for i, body in enumerate(bodies)):
        return None
    try:
        content = gzip.decompress(b"".join(binary_of(body)[PACKED] for body in bodies))
    except (KeyError, ValueError, OSError, EOFError, zlib.error):
        return None
    return content if digest_of(content) == entry.digest else None


def holds(body: Body, chunk: str) -> bool:
    """Whether a shard says that it holds this."""
    return (body.get("data") or {}).get(CHUNK) == chunk
