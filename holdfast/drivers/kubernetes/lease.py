"""One controller at a time: a Lease that the holder renews and a successor waits out.

A Deployment may start a second pod while the first still runs on a machine that nobody can reach.
The holder stops acting before the lease can be taken: it gives up when it could not renew for
`RENEW_WITHIN_S`, which is less than the time after which others may take it.
"""

import asyncio
import time
from datetime import UTC, datetime

from holdfast.drivers.kubernetes.cluster import (
    LEASES,
    ApiError,
    Cluster,
    ConflictError,
    NotFoundError,
)
from holdfast.drivers.kubernetes.manifests.request import Body

DURATION_S = 15
RENEW_S = 4.0
RENEW_WITHIN_S = 10.0
POLL_S = 1.0


class Lease:
    """The right to be the controller of a job."""

    def __init__(self, cluster: Cluster, name: str, holder: str, labels: dict[str, str]) -> None:
        self._cluster = cluster
        self._name = name
        self._holder = holder
        self._labels = labels
        self.term = 0  # grows with each holder

    async def acquire(self) -> None:
        """Wait until it is ours. What counts is how long we saw no renewal, by our own clock."""
        seen, since = "", time.monotonic()
        while True:
            try:
                found = await self._cluster.get(LEASES, self._name)
            except NotFoundError:
                if await self._create():
                    return
                continue
            spec = found.get("spec", {})
            mark = f"{spec.get('holderIdentity')} {spec.get('renewTime')}"
            if mark != seen:
                seen, since = mark, time.monotonic()
            free = spec.get("holderIdentity") in (None, "", self._holder)
            if (free or time.monotonic() - since > DURATION_S) and await self._take(found):
                return
            await asyncio.sleep(POLL_S)

    async def keep(self) -> None:
        """Renew for ever; returns when it is lost, after which we must not act any more."""
        renewed = time.monotonic()
        while time.monotonic() - renewed < RENEW_WITHIN_S:
            await asyncio.sleep(RENEW_S)
            try:
                found = await self._cluster.get(LEASES, self._name)
                if found["spec"].get("holderIdentity") != self._holder:
                    return
                if await self._take(found):
                    renewed = time.monotonic()
            except ApiError:
                continue

    async def release(self) -> None:
        """Let the next one have it at once."""
        try:
            found = await self._cluster.get(LEASES, self._name)
            if found["spec"].get("holderIdentity") == self._holder:
                await self._put(found, "")
        except ApiError:
            return

    async def _create(self) -> bool:
        body = {
            "apiVersion": LEASES.api,
            "kind": LEASES.kind,
            "metadata": {
                "name": self._name,
                "namespace": self._cluster.namespace,
                "labels": self._labels,
            },
            "spec": self._spec(self._holder, 1),
        }
        try:
            await self._cluster.create(body)
        except ConflictError:
            return False
        self.term = 1
        return True

    async def _take(self, found: Body) -> bool:
        return await self._put(found, self._holder)

    async def _put(self, found: Body, holder: str) -> bool:
        """False if somebody was faster: the version makes it a compare-and-swap."""
        version = found["metadata"]["resourceVersion"]
        term = int(found["spec"].get("leaseTransitions") or 0)
        term += found["spec"].get("holderIdentity") != self._holder
        patch = {"metadata": {"resourceVersion": version}, "spec": self._spec(holder, term)}
        try:
            await self._cluster.patch(LEASES, self._name, patch)
        except ConflictError:
            return False
        self.term = term
        return True

    def _spec(self, holder: str, term: int) -> Body:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "holderIdentity": holder,
            "leaseDurationSeconds": DURATION_S,
            "renewTime": now,
            "leaseTransitions": term,
        }
