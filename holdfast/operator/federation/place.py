"""One cluster of a federation: what is seen of the job there, making it, removing it for certain.

Whatever cannot be asked counts as silence, a refusal to answer too: who may not look cannot know.
Claims for data stay where they are, as always.
"""

import asyncio

import msgspec

from holdfast.drivers.kubernetes.cluster import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    LEASES,
    PODS,
    SECRETS,
    ApiError,
    Cluster,
    NotFoundError,
)
from holdfast.drivers.kubernetes.manifests.engines import ENGINES
from holdfast.drivers.kubernetes.manifests.names import JOB, ROLE
from holdfast.drivers.kubernetes.manifests.render import render
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.drivers.kubernetes.manifests.support import controller
from holdfast.drivers.kubernetes.pods import Pod
from holdfast.drivers.kubernetes.record import record_name
from holdfast.operator.conditions import ENDED
from holdfast.operator.federation.decide import Seen
from holdfast.operator.wanted import DATA, place
from holdfast.status import JobStatus

TERM = "holdfast.dev/term"  # annotation of the job's ConfigMap: the number of the offer
LOOK_S = 20.0
AWAY = Seen(reachable=False)
BESIDE = ("controller", "launcher")  # roles of pods that are no nodes


async def look(cluster: Cluster, request: Request) -> Seen:
    """What there is of the job. Never raises `ApiError`."""
    try:
        async with asyncio.timeout(LOOK_S):
            return await _look(cluster, request)
    except (ApiError, TimeoutError):
        return AWAY


async def _look(cluster: Cluster, request: Request) -> Seen:
    makers = [body for body in _makers(request) if await _get(cluster, body) is not None]
    label = f"{JOB}={request.name}"
    pods = (await cluster.listed(PODS, Pod, labels=label)).items
    record = await _record(cluster, request.name)
    nodes = [pod for pod in pods if pod.metadata.labels.get(ROLE) not in BESIDE and not pod.ended]
    placed = sum(bool(pod.spec.node_name) for pod in nodes)
    return Seen(
        reachable=True,
        there=bool(makers or pods or record),
        admitted=placed >= request.nodes,
        controlled=any(
            pod.running for pod in pods if pod.metadata.labels.get(ROLE) == "controller"
        ),
        outcome=record.outcome if record is not None and record.outcome in ENDED else None,
    )


def _makers(request: Request) -> list[Body]:
    """What makes pods, and the job file, which comes before it."""
    engine = [body for body in ENGINES[request.engine](request) if body["kind"] != "Pod"]
    return [*controller.configuration(request), *engine, *controller.deployment(request)]


async def _get(cluster: Cluster, body: Body) -> Body | None:
    kind, name, _ = place(body)
    try:
        return await cluster.get(kind, name)
    except NotFoundError:
        return None


async def _record(cluster: Cluster, job: str) -> JobStatus | None:
    try:
        body = await cluster.get(CONFIG_MAPS, record_name(job))
        return msgspec.json.decode(body["data"]["status.json"].encode(), type=JobStatus)
    except (NotFoundError, KeyError, msgspec.DecodeError):
        return None


async def offer(cluster: Cluster, request: Request, term: int) -> str | None:
    """Make the job there; why the cluster does not take it, None if it does or is silent."""
    try:
        for body in render(request):
            if body["kind"] != "Pod":  # the controller makes those
                await cluster.apply(_numbered(body, term))
    except ApiError as error:
        return None if error.transient else error.message
    return None


def _numbered(body: Body, term: int) -> Body:
    meta = body["metadata"]
    if body["kind"] != CONFIG_MAPS.kind:
        return body
    notes = {**meta.get("annotations", {}), TERM: str(term)}
    return {**body, "metadata": {**meta, "annotations": notes}}


async def withdraw(cluster: Cluster, request: Request) -> None:
    """Remove it, makers first; whether it is gone, the next look tells. Raises `ApiError`."""
    name = request.name
    await cluster.delete(DEPLOYMENTS, f"{name}-controller", foreground=True)
    for body in reversed(_makers(request)):
        kind, one, _ = place(body)
        await cluster.delete(kind, one, foreground=True)
    for pod in (await cluster.listed(PODS, Pod, labels=f"{JOB}={name}")).items:
        await cluster.delete(PODS, pod.metadata.name, uid=pod.uid)
    for body in reversed(render(request)):
        if body["kind"] not in (*DATA, "Pod"):
            kind, one, _ = place(body)
            await cluster.delete(kind, one)
    await cluster.delete(SECRETS, f"{name}-token")
    await cluster.delete(LEASES, f"{name}-controller")
    await cluster.delete(CONFIG_MAPS, record_name(name))
