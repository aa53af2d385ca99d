"""The published journal: closed segments in shards, written once, and the open one in the head.

ConfigMap `NAME-journal` is one of the places where a new controller finds the journal. A short one
lies in it whole. It is read from its first line by whoever replays it, so when there is no room for
more, what lies there stays as it is, a journal up to some line, and the agents' copies go on.
"""

import asyncio
import gzip
import zlib
from pathlib import Path
from time import monotonic

from holdfast import lines
from holdfast.drivers.kubernetes.cluster import ApiError, Cluster
from holdfast.drivers.kubernetes.config_map import Content, binary_of
from holdfast.drivers.kubernetes.manifests.names import JOURNAL_SHARDS
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.drivers.kubernetes.pace import Pace
from holdfast.drivers.kubernetes.segments import Segments
from holdfast.drivers.kubernetes.sharded import read
from holdfast.drivers.kubernetes.sharding import Home, NoShardError, Sharding
from holdfast.drivers.kubernetes.talk import Complaint, say

STEADY_S = 60.0  # between two publications while only steps are made
PART = "journal"
OPEN = "journal.gz"


def journal_name(job: str) -> str:
    """Name of the ConfigMap with the journal."""
    return f"{job}-journal"


class PublishedJournal:
    """Publishes a journal that grows."""

    def __init__(self, cluster: Cluster, job: str, path: Path, owner: Body) -> None:
        home = Home(job, journal_name(job), owner, JOURNAL_SHARDS, bulk=True)
        self._sharding = Sharding(cluster, home)
        self._name, self._path = home.name, path
        self._segments: Segments | None = None
        self._pace = Pace()
        self._at = float("-inf")
        self._owed = True
        self._full = False
        self._complain = Complaint()

    async def look(self, *, eventful: bool, at_once: bool) -> None:
        """Publish if something has happened, or now and then; at a pace, unless `at_once`."""
        now = monotonic()
        self._owed = self._owed or eventful or now - self._at >= STEADY_S
        if at_once or (self._owed and self._pace.ready(now)):
            await self.publish()

    async def publish(self) -> None:
        """All that is new."""
        if self._full:
            return
        try:
            await self._write()
            self._complain("")
        except NoShardError:
            self._complain(f"{self._name} cannot be published: its ConfigMap names are taken")
        except ApiError as error:
            self._complain(f"{self._name} cannot be published: {error}")

    async def _write(self) -> None:
        if self._segments is None:
            published = (await self._sharding.load()).parts.get(PART, ())
            self._segments = await asyncio.to_thread(Segments, self._path, published)
        packed = await asyncio.to_thread(self._segments.advance)
        closed, newest = packed.closed[:JOURNAL_SHARDS], packed.open
        full = len(packed.closed) > JOURNAL_SHARDS
        self._owed = False
        content = Content(binary={OPEN: gzip.compress(b"") if full else newest})
        written = await self._sharding.publish({PART: closed}, content)
        self._at = monotonic()
        self._pace.spent(written, self._at)
        if full:
            self._full = True
            size = sum(chunk.size for chunk in closed)
            say(f"the journal has outgrown ConfigMap {self._name} and its shards: its first {size} "
                "bytes are published, and agents keep copies of all of it")  # fmt: skip


async def published_journal(cluster: Cluster, job: str) -> bytes | None:
    """The journal as far as it was published; None if there is none that is sound."""
    name = journal_name(job)
    found = await read(cluster, name)
    if found is None:
        return None
    try:
        if found.parts is None:
            raise ValueError("its shards are not those of its index")
        tail = gzip.decompress(binary_of(found.head)[OPEN])
    except (KeyError, ValueError, OSError, EOFError, zlib.error) as error:
        say(f"ConfigMap {name} is ignored: {type(error).__name__}: {error}")
        return None
    content = found.parts.get(PART, b"") + tail
    whole = content[: content.rfind(b"\n") + 1]  # it may have been read while a line was written
    if not lines.sound(whole):
        say(f"ConfigMap {name} is ignored: checksum mismatch")
        return None
    return whole
