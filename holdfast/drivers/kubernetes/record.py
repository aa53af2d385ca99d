"""The record of a job in the cluster: a ConfigMap with its status and its whole journal.

It is what people see from outside, while the job runs and after it has ended, and one of the places
a new controller finds the journal. A job has a dozen journal lines for each incident, so months fit
into the mebibyte a ConfigMap may have; if it does not fit, the status alone is kept up to date.
"""

import asyncio
import base64
import gzip
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.drivers.kubernetes.cluster import CONFIG_MAPS, ApiError, Cluster, NotFoundError
from holdfast.drivers.kubernetes.manifests.names import JOB, MANAGED_BY
from holdfast.status import JobStatus

EVERY_S = 2.0
JOURNAL_MAX_BYTES = 700_000  # compressed; base64 makes a third more of it


class Recorded(msgspec.Struct):
    """What a record holds."""

    status: JobStatus
    journal: bytes | None


def record_name(job: str) -> str:
    """Name of the ConfigMap."""
    return f"{job}-record"


class Record:
    """Publishes what `status` says and what is in the journal, when either has changed."""

    def __init__(
        self, cluster: Cluster, job: str, journal: Path, status: Callable[[], bytes],
        observe: Callable[[bytes], None],
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._job = job
        self._journal = journal
        self._status = status
        self._observe = observe  # hears every status, also if the API is away
        self._last: tuple[bytes, int] = (b"", 0)
        self._broken = ""

    async def run(self) -> None:
        """Publish for ever."""
        while True:
            await self.publish()
            await asyncio.sleep(EVERY_S)

    async def publish(self) -> bool:
        """Publish once, if there is news; False if the API did not take it."""
        status, size = self._status(), self._journal.stat().st_size
        self._observe(status)
        if (status, size) == self._last:
            return True
        try:
            await self._cluster.apply(await asyncio.to_thread(self._body, status))
        except ApiError as error:
            self._complain(str(error))
            return False
        self._last, self._broken = (status, size), ""
        return True

    def _body(self, status: bytes) -> dict[str, object]:
        packed = gzip.compress(self._journal.read_bytes(), mtime=0)
        body: dict[str, object] = {
            "apiVersion": CONFIG_MAPS.api,
            "kind": CONFIG_MAPS.kind,
            "metadata": {
                "name": record_name(self._job),
                "namespace": self._cluster.namespace,
                "labels": {JOB: self._job, MANAGED_BY: "holdfast"},
            },
            "data": {"status.json": status.decode()},
        }
        if len(packed) <= JOURNAL_MAX_BYTES:
            body["binaryData"] = {"journal.gz": base64.b64encode(packed).decode()}
        return body

    def _complain(self, why: str) -> None:
        if why != self._broken:
            self._broken = why
            print(f"holdfast: the record cannot be published: {why}", file=sys.stderr, flush=True)


async def recorded(cluster: Cluster, job: str) -> Recorded | None:
    """The record of a job, if there is one."""
    try:
        body = await cluster.get(CONFIG_MAPS, record_name(job))
    except NotFoundError:
        return None
    packed = body.get("binaryData", {}).get("journal.gz")
    journal = gzip.decompress(base64.b64decode(packed)) if packed else None
    status = msgspec.json.decode(body["data"]["status.json"].encode(), type=JobStatus)
    return Recorded(status=status, journal=journal)
