"""One controller at a time: a Lease that the holder renews and a successor waits out.

A Deployment may start a second pod while the first still runs on a machine that nobody can reach.
Whoever waits takes the lease after it has seen no renewal for `DURATION_S`; the holder stops as
soon as it hears that somebody else has it. A holder that hears nothing, because the API is away,
goes on: nobody can take the lease then either, and a job can least do without a controller then.
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
POLL_S = 1.0


class Lease:
    """The right to be the controller of a job."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        holder: str,
        labels: dict[str, str],
        owner: Body | None = None,
    ) -> None:
        self._cluster = cluster
        self._name = name
        self._holder = holder
        self._labels = labels
        self._owners = [owner] if owner is not None else []
        self.term = 0  # grows with each holder
        self._seen, self._since = "", 0.0

    async def acquire(self) -> None:
        """Wait until it is ours. What counts is how long we saw no renewal, by our own clock."""
        while not await self._try():
            await asyncio.sleep(POLL_S)

    async def _try(self) -> bool:
        try:
            found = await self._cluster.get(LEASES, self._name)
            return self._is_free(found) and await self._put(found, self._holder)
        except NotFoundError:
            return await self._create()
        except ApiError as error:
            if not error.transient:
                raise
            return False

    def _is_free(self, found: Body) -> bool:
        spec = found.get("spec", {})
        mark = f"{spec.get('holderIdentity')} {spec.get('renewTime')}"
        if mark != self._seen:
            self._seen, self._since = mark, time.monotonic()
        free = spec.get("holderIdentity") in (None, "", self._holder)
        return free or time.monotonic() - self._since > DURATION_S

    async def keep(self) -> None:
        """Renew for ever; returns when somebody else has it, after which we must not act."""
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                found = await self._cluster.get(LEASES, self._name)
                if found["spec"].get("holderIdentity") != self._holder:
                    return
                await self._put(found, self._holder)
            except NotFoundError:
                await self._try()
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
                "ownerReferences": self._owners,
            },
            "spec": self._spec(self._holder, 1),
        }
        try:
            await self._cluster.create(body)
        except ConflictError:
            return False
        self.term = 1
        return True

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
