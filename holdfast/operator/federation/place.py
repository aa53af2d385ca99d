"""One cluster of a federation: what is seen of the job there, and making it.

Whatever cannot be asked counts as silence, a refusal to answer too: who may not look cannot know.
A job is made as `holdfast submit` makes it, and removed as `holdfast delete` does; that it is gone
is believed only when it is seen.
"""

import asyncio

from holdfast.drivers.kubernetes.cluster import (
    PODS,
    ApiError,
    Cluster,
    NotFoundError,
)
from holdfast.drivers.kubernetes.manifests.engines import ENGINES
from holdfast.drivers.kubernetes.manifests.names import JOB, ROLE
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.drivers.kubernetes.manifests.support import controller
from holdfast.drivers.kubernetes.pods import Pod
from holdfast.drivers.kubernetes.record import recorded_status
from holdfast.drivers.kubernetes.submit import submit
from holdfast.errors import Error
from holdfast.operator.conditions import ENDED
from holdfast.operator.federation.decide import Seen
from holdfast.operator.wanted import place

SILENT = ("cluster-unreachable",)
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
    makers = [await _get(cluster, body) is not None for body in _makers(request)]
    label = f"{JOB}={request.name}"
    pods = (await cluster.listed(PODS, Pod, labels=label)).items
    record = await recorded_status(cluster, request.name)
    nodes = [pod for pod in pods if pod.metadata.labels.get(ROLE) not in BESIDE and not pod.ended]
    placed = sum(bool(pod.spec.node_name) for pod in nodes)
    return Seen(
        reachable=True,
        there=bool(any(makers) or pods or record),
        made=all(makers),
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


async def offer(cluster: Cluster, request: Request) -> str | None:
    """Make the job there; why the cluster does not take it, None if it does or is silent."""
    try:
        await submit(cluster, request)
    except Error as error:
        return None if error.slug in SILENT else f"{error.what}: {error.why}"
    return None
