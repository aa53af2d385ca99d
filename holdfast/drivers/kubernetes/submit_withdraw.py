"""Takes everything of a job out of a cluster, but for the storage that it wrote to.

What carries the job's label is deleted, kind by kind: first whoever makes pods anew, then the pods,
then what they needed. What a webhook asks for when its owner changes goes only after the owner:
Trainer's refuses every change of a TrainJob whose runtime is gone, and so the end of its deletion
too. Of the kinds that only some jobs have, those that the cluster does not serve
or that we may not list are passed over. Secrets are asked for by name, because few people may list
them. Claims and snapshots hold checkpoints, so they go only if that is said.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.drivers.kubernetes import cluster as known
from holdfast.drivers.kubernetes.cluster import Cluster, DeniedError, Kind, NotFoundError
from holdfast.drivers.kubernetes.manifests.names import JOB, token_name
from holdfast.drivers.kubernetes.manifests.support.access import machine_role

POLL_S = 0.5
FIRST_WITHIN_S = 120.0
FIRST = (Kind("trainer.kubeflow.org/v1alpha1", "TrainJob", "trainjobs"),)
"""Kinds that have to be gone before what they refer to may go."""
MAKERS = (
    known.DEPLOYMENTS,
    known.CRON_JOBS,
    *FIRST,
    Kind("jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets"),
    known.JOBS,
    *(
        Kind("kubeflow.org/v1", kind, f"{kind.lower()}s")
        for kind in ("PyTorchJob", "TFJob", "JAXJob", "XGBoostJob", "PaddleJob", "MPIJob")
    ),
    Kind("kubeflow.org/v2beta1", "MPIJob", "mpijobs"),
    Kind("ray.io/v1", "RayJob", "rayjobs"),
    Kind("batch.volcano.sh/v1alpha1", "Job", "jobs"),
)
NEEDED = (
    Kind("trainer.kubeflow.org/v1alpha1", "TrainingRuntime", "trainingruntimes"),
    *(
        Kind(f"scheduling.k8s.io/{version}", kind, f"{kind.lower()}s")
        for version in ("v1alpha1", "v1alpha2", "v1beta1")
        for kind in ("PodGroup", "Workload")
    ),
    Kind("scheduling.volcano.sh/v1beta1", "PodGroup", "podgroups"),
    Kind("scheduling.x-k8s.io/v1alpha1", "PodGroup", "podgroups"),
    *(
        Kind("monitoring.coreos.com/v1", kind, f"{kind.lower()}s")
        for kind in ("PodMonitor", "ServiceMonitor", "PrometheusRule")
    ),
    known.CLAIM_TEMPLATES,
    known.POLICIES,
    known.BUDGETS,
    known.SERVICES,
    known.BINDINGS,
    known.ROLES,
    known.SERVICE_ACCOUNTS,
    known.CONFIG_MAPS,
)
EVERY_JOB = (known.DEPLOYMENTS, known.PODS, known.CONFIG_MAPS)
STORAGE = (
    Kind("snapshot.storage.k8s.io/v1", "VolumeSnapshot", "volumesnapshots"),
    known.CLAIMS,
)


class _Meta(msgspec.Struct, frozen=True):
    name: str
    uid: str = ""


class _Named(msgspec.Struct, frozen=True):
    metadata: _Meta


class Withdrawn(msgspec.Struct, frozen=True):
    """What was deleted, as `pods/gpt-0`, which claims were kept, and what has not gone, for which
    reason the rest is still there."""

    deleted: list[str]
    kept: list[str]
    held: list[str] = []


async def withdraw(
    cluster: Cluster, job: str, *, storage: bool = False, within_s: float = FIRST_WITHIN_S
) -> Withdrawn:
    """Ask for the deletion of everything of the job, waiting so long for what has to go first; if
    that stays, the rest is left to the next call. Raises `ApiError`."""
    gone: list[str] = []
    for kind in (*MAKERS, known.PODS):
        gone += await _delete_all(cluster, kind, job)
    if held := await _left(cluster, FIRST, job, within_s):
        return Withdrawn(deleted=gone, kept=await _names(cluster, STORAGE, job), held=held)
    for kind in (*NEEDED, *(STORAGE if storage else ())):
        gone += await _delete_all(cluster, kind, job)
    for kind, name in _by_name(cluster.namespace, job):
        gone += await _delete_one(cluster, kind, name, job)
    kept = [] if storage else await _names(cluster, STORAGE, job)
    return Withdrawn(deleted=gone, kept=kept)


async def until_gone(cluster: Cluster, job: str, *, within_s: float) -> bool:
    """Wait until no pod and no maker of pods of the job is left; False if that takes too long."""
    return not await _left(cluster, (*MAKERS, known.PODS, known.CONFIG_MAPS), job, within_s)


async def _left(cluster: Cluster, kinds: Sequence[Kind], job: str, within_s: float) -> list[str]:
    """What is there of these kinds once that has gone or the time is over."""
    deadline = time.monotonic() + within_s
    while (found := await _names(cluster, kinds, job)) and time.monotonic() < deadline:
        await asyncio.sleep(POLL_S)
    return found


async def _names(cluster: Cluster, kinds: Iterable[Kind], job: str) -> list[str]:
    return [f"{kind.plural}/{name}" for kind in kinds for name, _ in await _of(cluster, kind, job)]


async def _of(cluster: Cluster, kind: Kind, job: str) -> list[tuple[str, str]]:
    """Names and UIDs of the job's objects of one kind."""
    try:
        found = await cluster.listed(kind, _Named, labels=f"{JOB}={job}")
    except NotFoundError:
        return []
    except DeniedError:
        if kind in EVERY_JOB:
            raise
        return []
    return [(item.metadata.name, item.metadata.uid) for item in found.items]


async def _delete_all(cluster: Cluster, kind: Kind, job: str) -> list[str]:
    """In the foreground what makes pods, so that it is seen for as long as these are there."""
    found = await _of(cluster, kind, job)
    for name, uid in found:
        await cluster.delete(kind, name, uid=uid or None, foreground=kind in MAKERS)
    return [f"{kind.plural}/{name}" for name, _ in found]


def _by_name(namespace: str, job: str) -> Iterable[tuple[Kind, str]]:
    """Objects of the cluster have the namespace in their name: a label would not tell it."""
    yield known.SECRETS, token_name(job)
    yield known.LEASES, f"{job}-controller"
    for kind in (known.CLUSTER_BINDINGS, known.CLUSTER_ROLES):
        yield kind, machine_role(namespace, f"{job}-controller")


async def _delete_one(cluster: Cluster, kind: Kind, name: str, job: str) -> list[str]:
    try:
        found = await cluster.get(kind, name)
        if (found["metadata"].get("labels") or {}).get(JOB) != job:
            return []
        await cluster.delete(kind, name, uid=found["metadata"].get("uid"))
    except (NotFoundError, DeniedError):
        return []
    return [f"{kind.plural}/{name}"]
