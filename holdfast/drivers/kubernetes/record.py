"""The record of a job in the cluster: what people see from outside, while it runs and afterwards.

Two ConfigMaps. `NAME-record` has the status, the incidents and the ledger as JSON; it is small and
is written every few seconds. `NAME-journal` has the whole journal, compressed; it is written when
something happened, and is one of the places where a new controller finds it. Weeks fit into the
mebibyte that a ConfigMap may have; a journal that does not fit any more is left as it was, while
the copies that agents keep go on.
"""

import asyncio
import base64
import gzip
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast import lines
from holdfast.drivers.kubernetes.cluster import CONFIG_MAPS, ApiError, Cluster, NotFoundError
from holdfast.drivers.kubernetes.manifests.names import JOB, MANAGED_BY
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.drivers.kubernetes.talk import say
from holdfast.status import Goodput, Incident, JobStatus

LOOK_S = 1.0
STEADY_S = 5.0  # between two records while only steps are made
JOURNAL_S = 60.0  # the same for the journal
JOURNAL_MAX_BYTES = 700_000  # compressed; base64 makes a third more of it


class Recorded(msgspec.Struct, frozen=True):
    """What a record holds. `journal`: as far as it was published."""

    status: JobStatus
    incidents: tuple[Incident, ...]
    goodput: Goodput
    journal: bytes | None = None


def record_name(job: str) -> str:
    """Name of the ConfigMap with the status."""
    return f"{job}-record"


def journal_name(job: str) -> str:
    """Name of the ConfigMap with the journal."""
    return f"{job}-journal"


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
        self._cluster = cluster
        self._job = job
        self._journal = journal
        self._look = look
        self._owner = owner
        self._told: Recorded | None = None
        self._told_at = self._packed_at = float("-inf")
        self._broken = ""

    async def run(self) -> None:
        """Publish for ever."""
        while True:
            found = self._look()
            now = time.monotonic()
            eventful = _eventful(found, self._told)
            if eventful or now - self._told_at >= STEADY_S:
                await self._tell(found)
            if eventful or now - self._packed_at >= JOURNAL_S:
                await self._pack()
            await asyncio.sleep(LOOK_S)

    async def publish(self) -> None:
        """All of it, now."""
        await self._tell(self._look())
        await self._pack()

    async def _tell(self, found: Recorded) -> None:
        data = {
            "status.json": _text(found.status),
            "incidents.json": _text(found.incidents),
            "goodput.json": _text(found.goodput),
        }
        if await self._apply(record_name(self._job), {"data": data}):
            self._told, self._told_at = found, time.monotonic()

    async def _pack(self) -> None:
        packed = await asyncio.to_thread(lambda: gzip.compress(self._journal.read_bytes(), mtime=0))
        if len(packed) > JOURNAL_MAX_BYTES:
            self._complain("the journal is too large for a ConfigMap; agents keep copies of it")
            return
        data = {"journal.gz": base64.b64encode(packed).decode()}
        if await self._apply(journal_name(self._job), {"binaryData": data}):
            self._packed_at = time.monotonic()

    async def _apply(self, name: str, content: Body) -> bool:
        metadata = {
            "name": name,
            "namespace": self._cluster.namespace,
            "labels": {JOB: self._job, MANAGED_BY: "holdfast"},
            "ownerReferences": [self._owner],
        }
        body = {"apiVersion": CONFIG_MAPS.api, "kind": CONFIG_MAPS.kind, "metadata": metadata}
        try:
            await self._cluster.apply({**body, **content})
        except ApiError as error:
            self._complain(f"{name} cannot be published: {error}")
            return False
        return True

    def _complain(self, why: str) -> None:
        if why != self._broken:
            self._broken = why
            print(f"holdfast: {why}", file=sys.stderr, flush=True)


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
    return changed or closed or nodes or now.waiting_for != then.waiting_for


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


async def recorded(cluster: Cluster, job: str, *, journal: bool = True) -> Recorded | None:
    """The record of a job, if there is one; with the journal if that is wanted."""
    try:
        data = (await cluster.get(CONFIG_MAPS, record_name(job)))["data"]
    except NotFoundError:
        return None
    return Recorded(
        status=msgspec.json.decode(data["status.json"], type=JobStatus),
        incidents=msgspec.json.decode(data["incidents.json"], type=tuple[Incident, ...]),
        goodput=msgspec.json.decode(data["goodput.json"], type=Goodput),
        journal=await _journal(cluster, job) if journal else None,
    )


async def _journal(cluster: Cluster, job: str) -> bytes | None:
    try:
        body = await cluster.get(CONFIG_MAPS, journal_name(job))
    except NotFoundError:
        return None
    try:
        found = gzip.decompress(base64.b64decode(body["binaryData"]["journal.gz"]))
    except (KeyError, ValueError, OSError, EOFError, zlib.error) as error:
        say(f"ConfigMap {journal_name(job)} is passed over: {type(error).__name__}: {error}")
        return None
    whole = found[: found.rfind(b"\n") + 1]  # it may have been read while a line was written
    if not lines.sound(whole):
        say(f"ConfigMap {journal_name(job)} is passed over: its lines are not what was written")
        return None
    return whole
