"""What people ask of a job in a cluster from outside, written where its controller reads it.

A wish stands on the job's ConfigMap, where it waits for the controller, even for one that does not
run yet. This module loads neither manifests nor the job file: who stops a job is in a hurry.
"""

import asyncio

import msgspec

from holdfast.drivers.kubernetes.cluster import CONFIG_MAPS, Cluster
from holdfast.drivers.kubernetes.manifests.names import SCALE, STOP, UPDATE
from holdfast.drivers.kubernetes.remote import Look, look
from holdfast.drivers.kubernetes.sharded import Cache
from holdfast.messages import UpdateJob

POLL_S = 1.0


async def ask_to_stop(cluster: Cluster, job: str, *, now: bool) -> None:
    """Write the request down. Raises `ApiError`."""
    wish = {"metadata": {"annotations": {STOP: "now" if now else "gently"}}}
    await cluster.patch(CONFIG_MAPS, f"{job}-job", wish)


async def ask_to_scale(cluster: Cluster, job: str, nodes: int) -> None:
    """Write the request down. Raises `ApiError`."""
    wish = {"metadata": {"annotations": {SCALE: str(nodes)}}}
    await cluster.patch(CONFIG_MAPS, f"{job}-job", wish)


async def ask_to_update(cluster: Cluster, job: str, order: UpdateJob) -> None:
    """Write the request down; its code is there already. Raises `ApiError`."""
    wish = {"metadata": {"annotations": {UPDATE: msgspec.json.encode(order).decode()}}}
    await cluster.patch(CONFIG_MAPS, f"{job}-job", wish)


async def until_ended(cluster: Cluster, name: str, words: str = "") -> Look:
    """Wait until the job has ended, or nobody is there who could end it."""
    cache: Cache = {}
    while True:
        seen = await look(cluster, name, words, cache)
        if seen.outcome is not None or not seen.kept:
            return seen
        await asyncio.sleep(POLL_S)
