"""Going on with a job in a cluster that was held back, or has no controller any more.

Going on means that there is a controller again and that nothing holds the pods back; what an ended
job trained is in its checkpoints, so it is submitted anew instead.
"""

from collections.abc import Sequence
from typing import Any

import yaml

from holdfast.counts import count
from holdfast.drivers.kubernetes.cluster import (
    CONFIG_MAPS,
    CRON_JOBS,
    DEPLOYMENTS,
    PODS,
    Cluster,
)
from holdfast.drivers.kubernetes.ending import main_object, suspension
from holdfast.drivers.kubernetes.manifests.engines.pods import GATE
from holdfast.drivers.kubernetes.manifests.names import STOP
from holdfast.drivers.kubernetes.manifests.render import requested
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.drivers.kubernetes.manifests.support.controller import replicas
from holdfast.drivers.kubernetes.pods import Pod
from holdfast.drivers.kubernetes.remote import Look
from holdfast.errors import Error


async def resume(cluster: Cluster, seen: Look, words: str = "") -> list[str]:
    """Go on with a job that was held back or has no controller; what was done about it.

    Raises `Error` job-ended, or `ApiError`.
    """
    if seen.outcome is not None:
        raise _ended(seen, words)
    assert seen.job is not None, "require_managed comes first"
    request = requested(seen.job, mode="managed", namespace=cluster.namespace)
    done = []
    if seen.job.lifetime.suspend:
        done += await _freed(cluster, seen, request)
    if request.engine != "cronjob" and not seen.kept:
        await _forget_wish(cluster, seen.name)
        scale = {"spec": {"replicas": replicas(seen.job)}}
        await cluster.patch(DEPLOYMENTS, f"{seen.name}-controller", scale, part="scale")
        done.append("its controller is started")
    return done


def _ended(seen: Look, words: str) -> Error:
    return Error(
        "job-ended",
        f"job {seen.name!r} has ended ({seen.outcome})",
        why="its pods and their snapshots in memory are gone",
        help=f"holdfast submit job.yaml --replace --on kubernetes{words}   (continues from its "
        "checkpoints if the script loads them)",
    )


async def _forget_wish(cluster: Cluster, job: str) -> None:
    """Otherwise the new controller would stop the job at once."""
    none = {"metadata": {"annotations": {STOP: None}}}
    await cluster.patch(CONFIG_MAPS, f"{job}-job", none)


async def _freed(cluster: Cluster, seen: Look, request: Request) -> list[str]:
    """Nothing holds the pods back any more, nor those that will be made later."""
    await _unsuspended_file(cluster, seen.name)
    kind, patch = main_object(request), suspension(request)
    if request.engine == "cronjob":
        await cluster.patch(CRON_JOBS, seen.name, {"spec": {"suspend": False}})
        return ["its schedule is resumed"]
    if kind is not None and patch is not None:
        await cluster.patch(kind, seen.name, _opposite(patch))
        return [f"{kind.kind} {seen.name} is resumed"]
    freed = [await _ungated(cluster, pod) for pod in seen.nodes]
    await _restart(cluster, seen.controllers)  # so that it reads the file anew
    return [f"{count(sum(freed), 'pod')} may start"]


async def _unsuspended_file(cluster: Cluster, job: str) -> None:
    body = await cluster.get(CONFIG_MAPS, f"{job}-job")
    data: dict[str, Any] = yaml.safe_load(body["data"]["job.yaml"])
    data.get("lifetime", {}).pop("suspend", None)
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    await cluster.patch(CONFIG_MAPS, f"{job}-job", {"data": {"job.yaml": text}})


def _opposite(patch: Body) -> Body:
    """The same patch with every `suspend` off."""
    return {k: _opposite(v) if isinstance(v, dict) else not v for k, v in patch.items()}


async def _ungated(cluster: Cluster, pod: Pod) -> bool:
    """Take our gate off a pod, and leave those of others."""
    body = await cluster.get(PODS, pod.metadata.name)
    gates = body["spec"].get("schedulingGates") or []
    others = [gate for gate in gates if gate["name"] != GATE]
    if others == gates:
        return False
    await cluster.patch(PODS, pod.metadata.name, {"spec": {"schedulingGates": others or None}})
    return True


async def _restart(cluster: Cluster, controllers: Sequence[Pod]) -> None:
    for pod in controllers:
        await cluster.delete(PODS, pod.metadata.name, uid=pod.uid)
