"""Everything that counts about one TrainingJob, read from the cluster.

Read anew each time and never from what a watch has told: a decision to delete must not rest on news
that is a second old. A watch only says when to look.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.drivers.kubernetes.cluster import (
    DEPLOYMENTS,
    PODS,
    Cluster,
    NotFoundError,
)
from holdfast.drivers.kubernetes.ending import main_object
from holdfast.drivers.kubernetes.manifests.kueue import queue_of
from holdfast.drivers.kubernetes.manifests.names import JOB, ROLE
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.drivers.kubernetes.pods import Pod, waits_for
from holdfast.drivers.kubernetes.queued import QUOTE, Workloads, quoted, words
from holdfast.drivers.kubernetes.record import recorded_status
from holdfast.operator.conditions import ENDED, seconds
from holdfast.operator.decide import STOP_LIMIT_S, Known, was_suspended
from holdfast.operator.named_code import with_code
from holdfast.operator.updating import NONE, SpecUpdate, spec_update
from holdfast.operator.wanted import Wanted, is_owned, place
from holdfast.status import JobStatus

OF_KUBERNETES = ("foregroundDeletion", "orphan")  # finalizers that go by themselves
DONE = {"Complete": "succeeded", "Completed": "succeeded", "Succeeded": "succeeded"}
DONE |= {"Failed": "failed", "Aborted": "failed", "Terminated": "failed"}
DONE |= {"ValidationFailed": "failed", "Stopped": "stopped"}  # of a RayJob


@dataclass(frozen=True)
class Observation:
    """What decides, and what is only told."""

    known: Known
    record: JobStatus | None
    waiting_for: str | None
    missing: tuple[Body, ...]  # of the objects that make pods


async def look(
    cluster: Cluster, body: Body, wanted: Wanted, workloads: Workloads, now: float
) -> Observation:
    """Read what there is. Raises `ApiError`."""
    meta, status = body["metadata"], body.get("status") or {}
    found = [(one, await existing(cluster, one)) for one in wanted.moving]
    record = await recorded_status(cluster, meta["name"], meta["namespace"])
    there = [have for _, have in found if have is not None]
    foreign = _foreign(there, meta["uid"])
    update = NONE if foreign else _update(found, wanted, meta.get("generation", 1))
    known = Known(
        status=status,
        suspend=wanted.suspend,
        keep_s=wanted.keep_s,
        digest=wanted.digest,
        managed=wanted.request.managed,
        stop_limit_s=wanted.grace_s + STOP_LIMIT_S,
        record=record,
        outcome=await _outcome(cluster, wanted, record),
        there=len(there),
        foreign=foreign,
        retired=any(_is_retired(have) for have in there),
        now=now,
        ended_at=seconds(status.get("completionTime")),
        stopping_since=_stopping_since(status),
        update=await with_code(cluster, wanted.request, update),
        held=_held(there),
        pods=0 if there else await _pods_left(cluster, wanted, body),
    )
    waits = await _waiting(cluster, wanted) if record is None and there else None
    if known.outcome is None and there and (queue := queue_of(wanted.request.job)):
        said = await _held_back(cluster, wanted, record, workloads)
        record = quoted(record, said) if record is not None else None
        if record is None and said:
            waits = f"{waits or f'queue {queue} of Kueue to admit it'}{QUOTE}{said}"
    return Observation(known, record, waits, tuple(one for one, have in found if have is None))


async def _pods_left(cluster: Cluster, wanted: Wanted, body: Body) -> int:
    """Pods that run on of a job that was suspended: what makes them goes first, and whoever removes
    them may have been stopped, or refused, in between."""
    request, uid = wanted.request, body["metadata"]["uid"]
    if not (wanted.suspend or was_suspended(body.get("status") or {})):
        return 0
    labels = f"{JOB}={request.name}"
    pods = (await cluster.listed(PODS, Pod, labels=labels, namespace=request.namespace)).items
    return sum(uid in pod.owners and not (pod.leaving or pod.ended) for pod in pods)


async def _held_back(
    cluster: Cluster, wanted: Wanted, record: JobStatus | None, workloads: Workloads
) -> str:
    """What Kueue says of a job that waits."""
    request = wanted.request
    if record is not None and record.phase != "waiting":
        return ""
    of_namespace = await workloads.of(request.namespace)
    labels = f"{JOB}={request.name}"
    pods = (await cluster.listed(PODS, Pod, labels=labels, namespace=request.namespace)).items
    return words(of_namespace, request.name, [pod.uid for pod in pods])


def _update(
    found: Sequence[tuple[Body, Body | None]], wanted: Wanted, generation: int
) -> SpecUpdate:
    """A job that a CronJob starts begins anew each time, with the spec as it is then."""
    request = wanted.request
    if not request.managed or request.engine == "cronjob":
        return NONE
    name = f"{request.name}-job"
    files = [have for one, have in found if one["metadata"]["name"] == name]
    return spec_update(next(iter(files), None), request, generation)


async def existing(cluster: Cluster, body: Body) -> Body | None:
    """What there is in the place of this object. Raises `ApiError`."""
    kind, name, namespace = place(body)
    try:
        return await cluster.get(kind, name, namespace=namespace)
    except NotFoundError:
        return None


async def _outcome(cluster: Cluster, wanted: Wanted, record: JobStatus | None) -> str | None:
    if wanted.request.managed:
        return record.outcome if record is not None and record.outcome in ENDED else None
    kind = main_object(wanted.request)
    if kind is None:
        return await _pods_outcome(cluster, wanted)
    name, namespace = wanted.request.name, wanted.request.namespace
    try:
        body = await cluster.get(kind, name, namespace=namespace)
    except NotFoundError:
        return None
    return engine_outcome(body)


async def _pods_outcome(cluster: Cluster, wanted: Wanted) -> str | None:
    """Plain pods have no object above them: they have ended when all have."""
    request = wanted.request
    if request.engine == "cronjob":
        return None
    found = await cluster.listed(
        PODS, Pod, labels=f"{JOB}={request.name}", namespace=request.namespace
    )
    phases = {pod.status.phase for pod in found.items}
    if len(found.items) < request.nodes or not phases <= {"Succeeded", "Failed"}:
        return None
    return "failed" if "Failed" in phases else "succeeded"


def engine_outcome(body: Body) -> str | None:
    """How an engine's object says that it ended: by a condition; Volcano and KubeRay by a state."""
    status = body.get("status") or {}
    told = [c["type"] for c in status.get("conditions") or [] if c.get("status") == "True"]
    state = status.get("state")
    if isinstance(state, dict):
        told.append(str(state.get("phase")))
    deployed, stopped = status.get("jobDeploymentStatus"), status.get("jobStatus") == "STOPPED"
    told.append("Stopped" if deployed == "Complete" and stopped else str(deployed))
    return next((DONE[word] for word in told if word in DONE), None)


def _foreign(bodies: list[Body], uid: str) -> str | None:
    strange = next((body for body in bodies if not is_owned(body, uid)), None)
    return None if strange is None else f"{strange['kind']} {strange['metadata']['name']}"


def _held(bodies: Sequence[Body]) -> str:
    """What finalizers of others keep from going, for a person."""
    for body in bodies:
        meta = body["metadata"]
        names = [one for one in meta.get("finalizers") or [] if one not in OF_KUBERNETES]
        if names and meta.get("deletionTimestamp"):
            what = f"{body['kind']} {meta['name']}"
            return f"{what} is being deleted, and its finalizer {', '.join(names)} holds it"
    return ""


def _is_retired(body: Body) -> bool:
    return bool(body["kind"] == DEPLOYMENTS.kind and body["spec"].get("replicas") == 0)


def _stopping_since(status: Body) -> float | None:
    for condition in status.get("conditions") or []:
        if condition["type"] == "Suspended" and condition["reason"] == "Stopping":
            return seconds(condition["lastTransitionTime"])
    return None


async def _waiting(cluster: Cluster, wanted: Wanted) -> str | None:
    """What the controller's pod waits for, while there is no record that would say more."""
    request = wanted.request
    role = "controller" if request.managed else "node"
    labels = f"{JOB}={request.name},{ROLE}={role}"
    found = await cluster.listed(PODS, Pod, labels=labels, namespace=request.namespace)
    reasons = [why for pod in found.items if (why := waits_for(pod)) is not None]
    who = "its controller waits for" if request.managed else "a node waits for"
    return f"{who} {reasons[0]}" if reasons else None
