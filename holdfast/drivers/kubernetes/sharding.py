"""Writes content over a head and its shards, so that readers never see parts of two versions.

First the shards, then the head with the index (`sharded.py`). A chunk goes only into shards that
the index in the cluster does not refer to, and a chunk that lies there already is not written
again: what a publication costs is what has changed. Shards have numbers up to a limit, so that
rights on them can be limited to their names, and are used again. They belong to the head: whoever
deletes it deletes them. One that was free for a while is deleted here, after a look at the head.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from holdfast.drivers.kubernetes.cluster import CONFIG_MAPS, ApiError, Cluster, NotFoundError
from holdfast.drivers.kubernetes.config_map import Content, config_map
from holdfast.drivers.kubernetes.manifests.names import JOB
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.drivers.kubernetes.sharded import (
    CHUNK,
    INDEX,
    PACKED,
    ShardEntry,
    ShardIndex,
    holds,
    index_of,
    shard_name,
    slice_name,
)
from holdfast.drivers.kubernetes.talk import Complaint, say

SHARD_BYTES = 700_000  # compressed; a ConfigMap may have a mebibyte, base64 makes a third more
FREE_S = 300.0  # before a shard to which no index refers is deleted


class ShardChunk(NamedTuple):
    """Content with a name. `pack` compresses it, in a thread, if it is not in the cluster yet."""

    digest: str
    size: int
    pack: Callable[[], bytes]


Parts = Mapping[str, Sequence[ShardChunk]]


class Home(NamedTuple):
    """Whose content it is. `owner` is what the head belongs to; `bulk`: it is large itself."""

    job: str
    name: str
    owner: Body
    shards: int
    bulk: bool


class NoShardError(Exception):
    """All shards are in use."""


class Sharding:
    """The writer of one head and its shards; there should be no other one."""

    def __init__(self, cluster: Cluster, home: Home) -> None:
        self._cluster = cluster
        self._home = home
        self._index: ShardIndex | None = None  # as it is in the cluster; None: not known
        self._uid: str | None = None  # of the head
        self._referred: set[int] = set()  # shards that an index in the cluster may refer to
        self._known: dict[str, tuple[int, ...]] = {}  # digest → shards that hold it
        self._uids: dict[int, str] = {}  # of shards that are ours
        self._free: dict[int, float] = {}  # those that are not referred to, and since when
        self._foreign: set[int] = set()
        self._complain = Complaint()

    async def load(self) -> ShardIndex:
        """Know what was published before; the index of it. Raises `ApiError`."""
        if self._index is not None:
            return self._index
        try:
            head = await self._cluster.get(CONFIG_MAPS, self._home.name)
        except NotFoundError:
            self._begin(None)
            self._index = ShardIndex()
            return self._index
        if head["metadata"]["uid"] != self._uid:
            self._begin(head["metadata"]["uid"])
        found = index_of(head)
        if found is None:
            say(f"the index in ConfigMap {self._home.name} cannot be read: it is written anew")
            found = ShardIndex()
        for entry in found.entries:
            written_here = self._known.get(entry.digest) == entry.shards
            if written_here or await self._all_there(entry):
                self._known[entry.digest] = entry.shards
        self._referred = _shards(found.entries)
        self._index = found
        return found

    async def publish(self, parts: Parts | None, content: Content, left_out: int = 0) -> int:
        """Write the parts, or leave those that are there, then the head; bytes that were written.

        A head without parts is there meanwhile if it is the first, or if there is no room for the
        old parts beside the new ones. Raises `ApiError`, or `NoShardError` if all of the shards are
        too few.
        """
        before = await self.load()
        entries, written = before.parts, 0
        if parts is not None:
            if self._uid is None and any(parts.values()):  # whose shards they are to be
                written += await self._head(ShardIndex(at=time.time()), content)
            try:
                entries, stored = await self._store(parts)
            except NoShardError:  # beside those of the old version
                written += await self._head(ShardIndex(at=time.time()), content)
                entries, stored = await self._store(parts)
            written += stored
        left_out = left_out if parts is not None else before.left_out
        uid = self._uid
        written += await self._head(ShardIndex(time.time(), entries, left_out), content)
        if uid not in (None, self._uid):  # it was deleted meanwhile, and its shards with it
            return written + await self.publish(parts or {}, content, left_out)
        await self._delete_free()
        return written

    # ── writing ──

    async def _store(self, parts: Parts) -> tuple[dict[str, tuple[ShardEntry, ...]], int]:
        """See to it that every chunk lies in some shards."""
        chunks = {chunk.digest: chunk for part in parts.values() for chunk in part}
        busy = {number for digest in chunks for number in self._known.get(digest, ())}
        written = 0
        for digest, chunk in chunks.items():
            if digest not in self._known:
                written += await self._write(chunk, busy)
        entries = {
            name: tuple(ShardEntry(c.digest, c.size, self._known[c.digest]) for c in part)
            for name, part in parts.items()
        }
        return entries, written

    async def _write(self, chunk: ShardChunk, busy: set[int]) -> int:
        """Into shards that are not busy, which are then."""
        packed = await asyncio.to_thread(chunk.pack)
        used: list[int] = []
        for start in range(0, len(packed), SHARD_BYTES):
            number = await self._take(busy | self._referred)
            busy.add(number)
            self._known = {d: held for d, held in self._known.items() if number not in held}
            name = slice_name(chunk.digest, len(used))
            piece = Content({CHUNK: name}, {PACKED: packed[start : start + SHARD_BYTES]})
            body = await self._cluster.apply(self._body(number, piece))
            self._uids[number] = body["metadata"]["uid"]
            used.append(number)
        self._known[chunk.digest] = tuple(used)
        return len(packed)

    async def _take(self, busy: set[int]) -> int:
        """A shard that may be overwritten, if possible one that is there. Raises `NoShardError`."""
        numbers = range(1, self._home.shards + 1)
        for number in sorted(numbers, key=lambda number: number not in self._uids):
            if number not in busy and await self._ours(number):
                return number
        raise NoShardError

    async def _ours(self, number: int) -> bool:
        """Whether nobody else has a ConfigMap of that name."""
        if number in self._uids:
            return True
        if number in self._foreign:
            return False
        name = shard_name(self._home.name, number)
        try:
            meta = (await self._cluster.get(CONFIG_MAPS, name))["metadata"]
        except NotFoundError:
            return True
        if (meta.get("labels") or {}).get(JOB) == self._home.job:
            return True
        say(f"ConfigMap {name} does not belong to job {self._home.job}: it is ignored")
        self._foreign.add(number)
        return False

    async def _head(self, index: ShardIndex, content: Content) -> int:
        """Until its answer is there, nobody knows whether this index is in the cluster."""
        self._index = None
        text = msgspec.json.encode(index).decode()
        whole = Content({**content.data, INDEX: text}, content.binary)
        home = self._home
        body = config_map(self._cluster, home.job, home.name, home.owner, whole, bulk=home.bulk)
        uid = (await self._cluster.apply(body))["metadata"]["uid"]
        if self._uid not in (None, uid):  # this is another head, and the shards go with the old one
            self._begin(uid)
            index = ShardIndex()
        self._uid, self._index, self._referred = uid, index, _shards(index.entries)
        return whole.size_bytes

    def _body(self, number: int, piece: Content) -> Body:
        head = {"apiVersion": CONFIG_MAPS.api, "kind": CONFIG_MAPS.kind, "name": self._home.name}
        name = shard_name(self._home.name, number)
        owner = {**head, "uid": self._uid}
        return config_map(self._cluster, self._home.job, name, owner, piece, bulk=True)

    # ── knowing ──

    def _begin(self, uid: str | None) -> None:
        """Nothing is known of the shards of this head."""
        self._uid, self._index = uid, None
        self._referred, self._known, self._uids, self._free = set(), {}, {}, {}

    async def _all_there(self, entry: ShardEntry) -> bool:
        """Whether the shards hold what the index says of them."""
        for number, shard in enumerate(entry.shards):
            try:
                body = await self._cluster.get(CONFIG_MAPS, shard_name(self._home.name, shard))
            except NotFoundError:
                return False
            if not holds(body, slice_name(entry.digest, number)):
                return False
            self._uids[shard] = body["metadata"]["uid"]
        return True

    # ── deleting ──

    async def _delete_free(self) -> None:
        """Shards that have been free for long, if the head is still as it was written here."""
        now = time.monotonic()
        self._free = {
            number: self._free.get(number, now) for number in self._uids.keys() - self._referred
        }
        idle = [number for number, since in self._free.items() if now - since >= FREE_S]
        try:
            if idle and await self._still_written_here():
                for number in idle:
                    await self._delete(number)
            self._complain("")
        except ApiError as error:
            self._complain(f"shards of {self._home.name} cannot be deleted: {error}")

    async def _still_written_here(self) -> bool:
        """Another controller may have taken over and use what is free to us."""
        head = await self._cluster.get(CONFIG_MAPS, self._home.name)
        same = head["metadata"]["uid"] == self._uid and index_of(head) == self._index
        if not same:
            say(f"ConfigMap {self._home.name} was modified by another client: re-reading it")
            self._begin(None)
        return same

    async def _delete(self, number: int) -> None:
        name = shard_name(self._home.name, number)
        say(f"ConfigMap {name} is deleted: nothing has referred to it for {FREE_S:.0f} s")
        self._known = {d: held for d, held in self._known.items() if number not in held}
        await self._cluster.delete(CONFIG_MAPS, name, uid=self._uids[number])
        del self._uids[number]


def _shards(entries: Iterable[ShardEntry]) -> set[int]:
    return {number for entry in entries for number in entry.shards}
