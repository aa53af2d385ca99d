"""What the controller's own objects belong to, so that they go when the job does.

That is ConfigMap `NAME-job`, or whoever owns it: an operator removes and makes that ConfigMap while
a job is suspended, and the record has to outlive this. The ConfigMap's UID also says which job of
this name it is. Nothing blocks the owner's deletion, which would take rights on its finalizers.
"""

import asyncio
from typing import NamedTuple

from holdfast.drivers.kubernetes.cluster import CONFIG_MAPS, ApiError, Cluster, NotFoundError
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.drivers.kubernetes.talk import say

POLL_S = 1.0
NAMING = ("apiVersion", "kind", "name", "uid")


class JobOrigin(NamedTuple):
    """`run`: the UID of the job's ConfigMap. `owner`: a reference to what the job belongs to."""

    run: str
    owner: Body

    @property
    def of_pods(self) -> Body:
        """For pods, which are then taken for managed: a drain need not be forced."""
        return {**self.owner, "controller": True}


async def origin(cluster: Cluster, job: str) -> JobOrigin:
    """What there is now. Raises `ApiError`."""
    body = await cluster.get(CONFIG_MAPS, f"{job}-job")
    meta = body["metadata"]
    own = {"apiVersion": "v1", "kind": "ConfigMap", "name": meta["name"], "uid": meta["uid"]}
    above = [ref for ref in meta.get("ownerReferences") or [] if ref.get("controller")]
    owner = {key: above[0][key] for key in NAMING} if above else own
    return JobOrigin(meta["uid"], owner)


async def first_origin(cluster: Cluster, job: str) -> JobOrigin:
    """The same, waiting for as long as the cluster does not say."""
    while True:
        try:
            return await origin(cluster, job)
        except ApiError as error:
            if not (error.transient or isinstance(error, NotFoundError)):
                raise
            say(f"ConfigMap {job}-job cannot be read yet: {error}")
            await asyncio.sleep(POLL_S)


def owned(body: Body, owner: Body) -> Body:
    """The object with its owner."""
    return {**body, "metadata": {**body["metadata"], "ownerReferences": [owner]}}
