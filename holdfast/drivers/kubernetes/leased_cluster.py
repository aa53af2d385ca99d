"""A cluster as its controller may use it: nothing is changed while another one may hold the lease.

A machine that was cut off, or slept, comes back with a controller that believes what it last saw:
everybody silent, nodes to be replaced. Before it can learn that it was followed it would act on it.
So every change asks the lease first, by the clock, without a call. Where the API is away nothing is
lost by that, and orders to agents, which carry their term, need no API.
"""

from holdfast.drivers.kubernetes.cluster import ApiError, Cluster, Kind
from holdfast.drivers.kubernetes.lease import Lease
from holdfast.drivers.kubernetes.manifests.request import Body


class LeasedCluster:
    """A `Cluster` that refuses changes, as one that cannot be reached, unless the lease is sure."""

    def __init__(self, cluster: Cluster, lease: Lease) -> None:
        self._cluster, self._lease = cluster, lease
        self.namespace = cluster.namespace
        self.get, self.listed, self.watched = cluster.get, cluster.listed, cluster.watched
        self.log, self.ask, self.close = cluster.log, cluster.ask, cluster.close

    def _require_lease(self) -> None:
        if not self._lease.is_sure:
            raise ApiError(0, "LeaseInDoubt", "another controller may have the lease by now")

    async def create(self, body: Body) -> Body:
        """As of `Cluster`."""
        self._require_lease()
        return await self._cluster.create(body)

    async def apply(self, body: Body, *, force: bool = True, dry_run: bool = False) -> Body:
        """As of `Cluster`."""
        self._require_lease()
        return await self._cluster.apply(body, force=force, dry_run=dry_run)

    async def patch(
        self, kind: Kind, name: str, patch: Body, *, part: str = "", namespace: str | None = None
    ) -> Body:
        """As of `Cluster`."""
        self._require_lease()
        return await self._cluster.patch(kind, name, patch, part=part, namespace=namespace)

    async def delete(
        self, kind: Kind, name: str, *, uid: str | None = None, version: str | None = None,
        grace_s: int | None = None, foreground: bool = False, namespace: str | None = None,
    ) -> None:  # fmt: skip
        """As of `Cluster`."""
        self._require_lease()
        await self._cluster.delete(
            kind, name, uid=uid, version=version, grace_s=grace_s, foreground=foreground,
            namespace=namespace,
        )  # fmt: skip

    async def evict(self, pod: str, *, uid: str, grace_s: int | None = None) -> bool:
        """As of `Cluster`."""
        self._require_lease()
        return await self._cluster.evict(pod, uid=uid, grace_s=grace_s)
