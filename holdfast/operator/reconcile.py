"""One TrainingJob brought closer to what it asks for: look, decide, say so, act.

The status is written before anything is made or deleted, so that an operator that dies in between
finds out what it was about to do. Every act may be done twice.
"""

import time
from collections.abc import Callable, Mapping
from typing import assert_never

import msgspec

from holdfast.drivers.kubernetes.cluster import (
    CONFIG_MAPS,
    PODS,
    ApiError,
    Cluster,
    DeniedError,
    InvalidError,
    Kind,
    NotFoundError,
)
from holdfast.drivers.kubernetes.kept_logs import logs_name
from holdfast.drivers.kubernetes.manifests.names import JOB, STOP
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.drivers.kubernetes.object_events import OPERATOR, post
from holdfast.drivers.kubernetes.pods import Pod
from holdfast.drivers.kubernetes.queued import Workloads
from holdfast.drivers.kubernetes.record import record_name
from holdfast.drivers.kubernetes.record_journal import journal_name
from holdfast.drivers.kubernetes.shipped_code import needed, ship
from holdfast.drivers.kubernetes.submit import HOLDS_DATA, made_by_controller
from holdfast.errors import Error
from holdfast.operator import events
from holdfast.operator.conditions import status_of
from holdfast.operator.decide import BLOCKED_S, Decision, Known, Step, decide, taken
from holdfast.operator.definition import TRAINING_JOBS
from holdfast.operator.observation import Observation, existing, look
from holdfast.operator.wanted import Wanted, is_owned, owner_of, place, wanted

Key = tuple[str, str]  # namespace and name


class _Meta(msgspec.Struct, rename="camel"):
    name: str
    owner_references: list[Body] = []


class _Owned(msgspec.Struct):
    metadata: _Meta


async def reconcile(
    cluster: Cluster,
    key: Key,
    version: tuple[int, int],
    workloads: Workloads,
    *,
    whole: bool = True,
    figures: bool = True,
    clock: Callable[[], float] = time.time,
) -> float | None:
    """Do what there is to do; seconds until the next look, None if only news call for one.

    `whole`: look after every object of the job, not only after those that make pods. `figures`:
    news of step and ETTR alone are worth a write. Raises `ApiError` where the same may succeed
    later.
    """
    namespace, name = key
    try:
        body = await cluster.get(TRAINING_JOBS, name, namespace=namespace)
    except NotFoundError:
        return None
    if body["metadata"].get("deletionTimestamp"):
        return None
    try:
        asked = wanted(body, version)
    except Error as error:
        told = f"{error.what}: {error.why} ({error.slug})"
        decision = Decision(Step.WATCH, "Rejected", "SpecInvalid", told, None)
        await _tell(cluster, body, decision, None, None, clock())
        return None
    try:
        observed = await look(cluster, body, asked, workloads, clock())
    except ApiError as error:
        if error.transient or (body.get("status") or {}).get("startedSpec"):
            raise  # what is known of a job that was made is not to be lost
        await _tell(cluster, body, _refusal(error), None, asked, clock())
        return BLOCKED_S
    decision = decide(observed.known)
    if decision.step is Step.MAKE:
        unsure = whole or bool(observed.missing) or observed.known.status.get("phase") == "Blocked"
        body = await _begin(cluster, body, observed.known)
        if unsure:
            fresh = not observed.known.there
            decision = await _make(cluster, body, asked, decision, fresh=fresh)
    await _tell(cluster, body, decision, observed, asked, clock(), figures=figures)
    await _act(cluster, body, decision, asked, observed.known)
    return decision.after_s


async def _begin(cluster: Cluster, body: Body, known: Known) -> Body:
    """Remember which spec the job is made from, before anything of it is there."""
    started = known.status.get("startedSpec")
    if started == known.digest or (started and known.there):
        return body
    return await _patched(cluster, body, {"startedSpec": known.digest})


async def _patched(cluster: Cluster, body: Body, status: Body) -> Body:
    meta = body["metadata"]
    return await cluster.patch(
        TRAINING_JOBS,
        meta["name"],
        {"status": status},
        part="status",
        namespace=meta["namespace"],
    )


async def _tell(
    cluster: Cluster,
    body: Body,
    decision: Decision,
    observed: Observation | None,
    asked: Wanted | None,
    now: float,
    *,
    figures: bool = True,
) -> None:
    """Write the status if it says anything new, and what has changed as events."""
    meta, old = body["metadata"], body.get("status") or {}
    new = status_of(
        old,
        decision,
        observed.record if observed else None,
        outcome=observed.known.outcome if observed else None,
        waiting_for=observed.waiting_for if observed else None,
        nodes=asked.request.nodes if asked else 0,
        generation=meta.get("generation", 1),
        now=now,
    )
    if new == old or not (figures or _but_figures(new) != _but_figures(old)):
        return
    made = await _patched(cluster, body, {**dict.fromkeys(old), **new})  # what is gone goes
    said = events.said(old, new)
    await post(cluster, TRAINING_JOBS, made, said, by=OPERATOR, now=now)


def _but_figures(status: Body) -> Body:
    return {key: value for key, value in status.items() if key not in ("step", "ettr")}


async def _act(
    cluster: Cluster, body: Body, decision: Decision, asked: Wanted, known: Known
) -> None:
    """Everything but making."""
    match decision.step:
        case Step.WATCH | Step.MAKE:
            pass
        case Step.UPDATE:
            await _update(cluster, body, asked, known)
        case Step.ASK_STOP:
            await _wish(cluster, asked, {STOP: "gently"})
        case Step.CLEAR:
            await _clear(cluster, body, asked)
        case Step.RENEW:
            await _clear(cluster, body, asked)
            await _forget_run(cluster, asked)
        case Step.EXPIRE:
            meta = body["metadata"]
            await cluster.delete(
                TRAINING_JOBS, meta["name"], uid=meta["uid"], namespace=meta["namespace"]
            )
        case never:
            assert_never(never)


async def _make(
    cluster: Cluster, body: Body, asked: Wanted, decision: Decision, *, fresh: bool
) -> Decision:
    """Make what is missing; what is there is left as it is. A refusal is a decision to wait.
    `fresh`: nothing runs yet, so names that its controller will need are still to be looked at."""
    try:
        if fresh and (strange := await _stranger(cluster, asked)):
            return taken(strange)
        for wish in asked.objects:
            found = await existing(cluster, wish)
            if found is None:
                await cluster.apply(wish)
            elif _is_anothers(found, body):
                return taken(f"{found['kind']} {found['metadata']['name']}")
        await _adopt(cluster, body, asked)
    except ApiError as error:
        if error.transient:
            raise
        return _refusal(error)
    return decision


def _is_anothers(found: Body, body: Body) -> bool:
    """Data may be of many jobs, and what belongs to the cluster cannot be owned."""
    mine = is_owned(found, body["metadata"]["uid"])
    return not mine and "namespace" in found["metadata"] and found["kind"] not in HOLDS_DATA


def _refusal(error: ApiError) -> Decision:
    return Decision(Step.WATCH, "Blocked", _reason(error), _told(error), BLOCKED_S)


def _told(error: ApiError) -> str:
    if isinstance(error, NotFoundError):
        return f"the cluster does not serve a kind that the engine needs: {error.message}"
    return error.message


def _reason(error: ApiError) -> str:
    match error:
        case DeniedError() if "exceeded quota" in error.message:
            return "QuotaExceeded"
        case DeniedError():
            return "Forbidden"
        case NotFoundError():
            return "KindMissing"
        case InvalidError():
            return "Refused"
        case _:
            return "Conflict"


async def _wish(cluster: Cluster, asked: Wanted, annotations: Mapping[str, str]) -> None:
    """As the command line does: the controller reads it, whenever it is there."""
    name, namespace = f"{asked.request.name}-job", asked.request.namespace
    patch = {"metadata": {"annotations": dict(annotations)}}
    try:
        await cluster.patch(CONFIG_MAPS, name, patch, namespace=namespace)
    except NotFoundError:
        return


async def _update(cluster: Cluster, body: Body, asked: Wanted, known: Known) -> None:
    """The code goes first: a wish is heard once it is written down."""
    update, name = known.update, asked.request.name
    if update.bundle:
        used = needed(known.record.updates if known.record is not None else ())
        namespace = asked.request.namespace
        await ship(cluster, name, update.bundle, owner_of(body), used, namespace)
    await _wish(cluster, asked, update.annotations)


async def _clear(cluster: Cluster, body: Body, asked: Wanted) -> None:
    """Remove what makes pods, then the pods: nobody is to make them anew. What has got a name of
    ours since it was looked at, and is not ours, stays, and so do pods that belong to nothing: all
    of ours do."""
    for wish in reversed(asked.moving):
        found = await existing(cluster, wish)
        if found is not None and is_owned(found, body["metadata"]["uid"]):
            kind, name, namespace = place(wish)
            uid = found["metadata"]["uid"]
            await cluster.delete(kind, name, uid=uid, namespace=namespace)
    namespace = asked.request.namespace
    labels = f"{JOB}={asked.request.name}"
    for pod in (await cluster.listed(PODS, Pod, labels=labels, namespace=namespace)).items:
        if pod.owners:
            await cluster.delete(PODS, pod.metadata.name, uid=pod.uid, namespace=namespace)


async def _adopt(cluster: Cluster, body: Body, asked: Wanted) -> None:
    """What the controller has made goes with the TrainingJob too."""
    if not asked.request.managed:
        return
    meta = body["metadata"]
    name, namespace = meta["name"], meta["namespace"]
    made = made_by_controller(name)
    if asked.request.engine == "pods":
        labels = f"{JOB}={name}"
        pods = (await cluster.listed(PODS, _Owned, labels=labels, namespace=namespace)).items
        made += [(PODS, pod.metadata.name) for pod in pods if not pod.metadata.owner_references]
    patch = {"metadata": {"ownerReferences": [owner_of(body)]}}
    for kind, one in made:
        found = await _found(cluster, kind, one, namespace)
        if found is not None and _is_labelled(found, name) and not _owners(found):
            await cluster.patch(kind, one, patch, namespace=namespace)


async def _stranger(cluster: Cluster, asked: Wanted) -> str:
    """What of somebody else has a name that the controller of this job needs: it would write over
    it, and it would go with the job."""
    name, namespace = asked.request.name, asked.request.namespace
    for kind, one in made_by_controller(name) if asked.request.managed else ():
        found = await _found(cluster, kind, one, namespace)
        if found is not None and not _is_labelled(found, name):
            return f"{kind.kind} {one}"
    return ""


async def _forget_run(cluster: Cluster, asked: Wanted) -> None:
    """The record of the run that was suspended, and what belongs to it."""
    name, namespace = asked.request.name, asked.request.namespace
    for one in (journal_name(name), record_name(name), logs_name(name)):
        found = await _found(cluster, CONFIG_MAPS, one, namespace)
        if found is not None and _is_labelled(found, name):
            uid = found["metadata"]["uid"]
            await cluster.delete(CONFIG_MAPS, one, uid=uid, namespace=namespace)


async def _found(cluster: Cluster, kind: Kind, name: str, namespace: str | None) -> Body | None:
    try:
        return await cluster.get(kind, name, namespace=namespace)
    except NotFoundError:
        return None


def _is_labelled(found: Body, job: str) -> bool:
    return bool((found["metadata"].get("labels") or {}).get(JOB) == job)


def _owners(found: Body) -> list[Body]:
    return found["metadata"].get("ownerReferences") or []
