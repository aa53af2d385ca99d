"""The record of a job in the cluster: what people see from outside, while it runs and afterwards.

ConfigMap `NAME-record` has the status and the ledger as JSON, and of a small job the incidents too.
The nodes and incidents of a large one lie beside it, compressed, in shards (`sharded.py`), so that
the head stays small for whoever lists jobs, and so that only what has changed is written again. The
head follows each event within a second or two; how often shards are written depends on their size.
`NAME-journal` (`record_journal.py`) has the whole journal.

Where an update has come to something, the journal is published before the record: a controller that
is lost after people have read that, and acted on it, is followed by one that knows of it.

A look takes time that decisions need, the longer the larger the job, so the next one waits for a
multiple of that. All the rest is done in threads.
"""

import asyncio
import gzip
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import msgspec

from holdfast.drivers.kubernetes.cluster import (
    CONFIG_MAPS,
    ApiError,
    Cluster,
    DeniedError,
    NotFoundError,
)
from holdfast.drivers.kubernetes.config_map import Content
from holdfast.drivers.kubernetes.manifests.names import RECORD_SHARDS
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.drivers.kubernetes.pace import Pace
from holdfast.drivers.kubernetes.record_journal import PublishedJournal, published_journal
from holdfast.drivers.kubernetes.sharded import Cache, ReadShards, digest_of, read
from holdfast.drivers.kubernetes.sharding import Home, NoShardError, Parts, ShardChunk, Sharding
from holdfast.drivers.kubernetes.talk import Complaint, say
from holdfast.errors import Error
from holdfast.status import Goodput, Incident, JobStatus, NodeStatus

LOOK_S = 1.0
AGAIN_MAX_S = 8.0  # between two looks while the cluster takes no record; doubles from the first on
LOOKS = 20  # times what a look takes pass until the next one
STEADY_S = 5.0  # between two records while only steps are made
INLINE_BYTES = 64_000  # nodes and incidents up to this size lie in the head
NODES_EACH = 4_000  # in a chunk
INCIDENTS_EACH = (2_000, 400, 100)  # in a chunk; the newest are in small ones, which change most
STATUS, INCIDENTS, GOODPUT, NODES = "status.json", "incidents.json", "goodput.json", "nodes"

_encoder = msgspec.json.Encoder()


class Recorded(msgspec.Struct, frozen=True):
    """What a record holds. `journal`: as far as it was published; `at`: when the record was;
    `incomplete`: why not all of it could be read."""

    status: JobStatus
    incidents: tuple[Incident, ...]
    goodput: Goodput
    journal: bytes | None = None
    at: float | None = None
    incomplete: str | None = None


class _Written(NamedTuple):
    """A record as ConfigMaps have it. `parts`: what lies in shards."""

    content: Content
    parts: Parts


def record_name(job: str) -> str:
    """Name of the ConfigMap with the status."""
    return f"{job}-record"


class Record:
    """Publishes what `look` says: soon after something has happened, else now and then."""

    def __init__(
        self,
        cluster: Cluster,
        job: str,
        journal: Path,
        look: Callable[[], Recorded],
        owner: Body,
    ) -> None:
        home = Home(job, record_name(job), owner, RECORD_SHARDS, bulk=False)
        self._sharding = Sharding(cluster, home)
        self._name, self._look = home.name, look
        self._journal = PublishedJournal(cluster, job, journal, owner)
        self._told: Recorded | None = None
        self._told_at = float("-inf")
        self._pace = Pace()  # of the shards
        self._owed = False  # shards, since the head was written last
        self._sharded = False  # whether it is too large for the head
        self._refused = 0  # times in a row that it could not be published
        self._left_out = 0  # of the oldest incidents, for which there is no room
        self._complain, self._denied = Complaint(), Complaint()
        self._alone = asyncio.Lock()  # what is published goes there as a whole

    async def run(self) -> None:
        """Publish for ever."""
        while True:
            looked_s = await self.look()
            await asyncio.sleep(pause_s(looked_s, self._refused))

    async def look(self) -> float:
        """Publish if there is something new; how long the look took that all else waits for."""
        async with self._alone:
            began = monotonic()
            found = self._look()
            looked_s = monotonic() - began
            eventful = await asyncio.to_thread(_eventful, found, self._told)
            await self._journal.look(eventful=eventful, at_once=_updated(found, self._told))
            if eventful or self._due(monotonic()):
                await self._tell(found)
            return looked_s

    async def publish(self) -> bool:
        """All of it, now; whether the head is there."""
        async with self._alone:
            self._pace = Pace()
            found = self._look()
            await self._journal.publish()
            await self._tell(found)
            return self._told is found

    def _due(self, now: float) -> bool:
        return now - self._told_at >= STEADY_S or (self._owed and self._pace.ready(now))

    async def _tell(self, found: Recorded) -> None:
        written = await asyncio.to_thread(_written, found, self._left_out)
        ready = self._pace.ready(monotonic()) or not self._sharded
        parts = written.parts if ready or not written.parts else None
        try:
            count = await self._publish(parts, written.content)
        except ApiError as error:
            self._complain(f"{self._name} cannot be published: {error}")
            self._refused += 1
            return
        except NoShardError:
            self._leave_out(len(found.incidents))
            return
        self._complain("")
        self._refused = 0
        self._told, self._told_at = found, monotonic()
        self._owed, self._sharded = parts is None, bool(written.parts)
        if parts:
            self._pace.spent(count, self._told_at)

    async def _publish(self, parts: Parts | None, content: Content) -> int:
        """The head alone if the role of the controller is of a version that knew no shards."""
        try:
            count = await self._sharding.publish(parts, content, self._left_out)
        except DeniedError as error:
            if not parts:
                raise
            self._denied(f"nodes and incidents are not published: {error}; submit the job again")
            return await self._sharding.publish(None, content)
        self._denied("")
        return count

    def _leave_out(self, count: int) -> None:
        """The oldest incidents, as many as a chunk has; with the next look."""
        self._left_out = min(count, self._left_out + INCIDENTS_EACH[0])
        say(f"{self._name} has no room for all {count} incidents: {self._left_out} are left out")


def pause_s(looked_s: float, refused: int = 0) -> float:
    """Until the next look, after one that took so long, and so many refusals in a row."""
    again_s = min(AGAIN_MAX_S, LOOK_S * 2.0 ** min(refused, 10)) if refused else 0.0
    return max(LOOK_S, LOOKS * looked_s, again_s)


def _eventful(new: Recorded, old: Recorded | None) -> bool:
    """Whether more has happened than a few steps."""
    if old is None or len(new.incidents) != len(old.incidents):
        return True
    now, then = new.status, old.status
    changed = (now.phase, now.attempt, now.outcome) != (then.phase, then.attempt, then.outcome)
    closed = any(
        a.ended_at != b.ended_at for a, b in zip(new.incidents, old.incidents, strict=True)
    )
    nodes = [(n.node, n.state) for n in now.nodes] != [(n.node, n.state) for n in then.nodes]
    updated = _updated(new, old)
    return changed or updated or closed or nodes or now.waiting_for != then.waiting_for


def _updated(new: Recorded, old: Recorded | None) -> bool:
    """Whether an update has come to something, for which somebody waits."""
    return old is not None and new.status.updates != old.status.updates


# ── the shape in the cluster ──────────────────────────────────────────────────────────────────


def _written(found: Recorded, left_out: int) -> _Written:
    """In the head alone, if it is small."""
    status, incidents = found.status, found.incidents[left_out:]
    nodes, faults = _encoder.encode_lines(status.nodes), _encoder.encode_lines(incidents)
    data = {GOODPUT: _text(found.goodput)}
    if len(nodes) + len(faults) <= INLINE_BYTES:
        return _Written(Content({**data, STATUS: _text(status), INCIDENTS: _text(incidents)}), {})
    training = sum(node.rank is not None for node in status.nodes)
    head = msgspec.structs.replace(status, nodes=(), training_count=training)
    parts = {
        NODES: _chunks(status.nodes, (NODES_EACH,)),
        INCIDENTS: _chunks(incidents, INCIDENTS_EACH),
    }
    return _Written(Content({**data, STATUS: _text(head)}), parts)


def _chunks(items: Sequence[object], sizes: Iterable[int]) -> list[ShardChunk]:
    """Lines of JSON, so many items together that a change at the end changes little."""
    found = []
    for run in _runs(len(items), sizes):
        content = _encoder.encode_lines(items[run])
        pack = partial(gzip.compress, content, 6, mtime=0)
        found.append(ShardChunk(digest_of(content), len(content), pack))
    return found


def _runs(count: int, sizes: Iterable[int]) -> Iterator[slice]:
    """As many of the largest size as there can be, then of the next; what is left is the last."""
    start = 0
    for size in sizes:
        while count - start >= size:
            yield slice(start, start + size)
            start += size
    if start < count:
        yield slice(start, count)


def _text(value: object) -> str:
    return _encoder.encode(value).decode()


# ── reading ───────────────────────────────────────────────────────────────────────────────────


async def recorded(
    cluster: Cluster, job: str, *, journal: bool = True, cache: Cache | None = None
) -> Recorded | None:
    """The record of a job, if there is one; with the journal if that is wanted.

    What is in `cache`, which is kept up to date, is not read again. Raises `ApiError`, and `Error`
    record-incomplete for one that is no record.
    """
    found = await read(cluster, record_name(job), cache)
    if found is None:
        return None
    try:
        record = _decoded(found)
    except (KeyError, msgspec.DecodeError) as error:
        raise _no_record(cluster, job, error) from error
    if not journal:
        return record
    return msgspec.structs.replace(record, journal=await published_journal(cluster, job))


def _no_record(cluster: Cluster, job: str, error: Exception) -> Error:
    name = record_name(job)
    return Error(
        "record-incomplete",
        f"ConfigMap {name} is not what a controller of this version of Holdfast has written",
        why=f"{type(error).__name__}: {error}; another client has changed it, or another version "
        "has written it",
        help="a controller that runs writes it again within seconds; if not, look at it: "
        f"kubectl get configmap {name} -n {cluster.namespace} -o yaml",
    )


async def recorded_status(
    cluster: Cluster, job: str, namespace: str | None = None
) -> JobStatus | None:
    """The status alone, of a large job without its nodes: one small object is read.

    None if there is none that can be read. Raises `ApiError`.
    """
    try:
        head = await cluster.get(CONFIG_MAPS, record_name(job), namespace=namespace)
        return msgspec.json.decode((head.get("data") or {})[STATUS], type=JobStatus)
    except (NotFoundError, KeyError, msgspec.DecodeError):
        return None


def _decoded(found: ReadShards) -> Recorded:
    data, index = found.head.get("data") or {}, found.index
    status = msgspec.json.decode(data[STATUS], type=JobStatus)
    goodput = msgspec.json.decode(data[GOODPUT], type=Goodput)
    if INCIDENTS in data:  # a small record, or one of a version that knew no shards
        incidents = msgspec.json.decode(data[INCIDENTS], type=tuple[Incident, ...])
        return Recorded(status, incidents, goodput, at=index.at)
    parts = found.parts or {}
    faults = msgspec.json.Decoder(Incident).decode_lines(parts.get(INCIDENTS, b""))
    nodes = msgspec.json.Decoder(NodeStatus).decode_lines(parts.get(NODES, b""))
    status = msgspec.structs.replace(status, nodes=tuple(nodes))
    return Recorded(status, tuple(faults), goodput, at=index.at, incomplete=_lacks(found))


def _lacks(found: ReadShards) -> str | None:
    """What of the record cannot be shown."""
    name = found.head["metadata"]["name"]
    if found.parts is not None and NODES not in found.parts:
        return f"the controller has not written the shards of {name} yet: see its log"
    if found.parts is None:
        return f"the shards of {name} are not those of its index: nodes and incidents are missing"
    left_out = found.index.left_out
    return f"there is no room for the oldest {left_out} incidents" if left_out else None
