"""Brings a job into a cluster: everything it needs, in order, all of it or nothing.

Every object goes through server-side apply, so a submission that was cut off is simply made again.
Nodes of the engine `pods` are left to the controller, which knows how many there are at any time.
What the job would make must not belong to anybody else; and when the cluster refuses one object,
those that were made before it are taken back, because half a job would only cause questions.

A job that a CronJob starts finds everything here already but for its controller; the account that
submits it may do no more than start one.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace as changed
from typing import NamedTuple, TypeVar

from holdfast.drivers.kubernetes.cluster import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    LEASES,
    PODS,
    SECRETS,
    ApiError,
    Cluster,
    Kind,
    NotFoundError,
    kind_of,
)
from holdfast.drivers.kubernetes.ending import main_object
from holdfast.drivers.kubernetes.jobset_priorities import impossible
from holdfast.drivers.kubernetes.kept_logs import logs_name
from holdfast.drivers.kubernetes.manifests.engines import pods as own_pods
from holdfast.drivers.kubernetes.manifests.names import JOB, ROLE, SCALE, STOP, UPDATE, token_name
from holdfast.drivers.kubernetes.manifests.render import render
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.drivers.kubernetes.manifests.support import controller
from holdfast.drivers.kubernetes.origin import origin, owned
from holdfast.drivers.kubernetes.pods import Pod
from holdfast.drivers.kubernetes.published_stacks import stacks_name
from holdfast.drivers.kubernetes.record import record_name, recorded_status
from holdfast.drivers.kubernetes.record_journal import journal_name
from holdfast.drivers.kubernetes.submit_refusals import About, about, refused
from holdfast.drivers.kubernetes.submit_withdraw import until_gone, withdraw
from holdfast.errors import Error

T = TypeVar("T")

GONE_WITHIN_S = 120.0
STOPPED_WITHIN_S = 300.0
POLL_S = 1.0
HOLDS_DATA = ("PersistentVolumeClaim", "VolumeSnapshot")


class JobPresence(NamedTuple):
    """What there is of a job in the cluster."""

    exists: bool
    running: bool


class RehearsedObject(NamedTuple):
    """What the server would make of one object: the object before and after, or why not."""

    body: Body
    before: Body | None
    after: Body | None
    error: ApiError | None


def wanted(request: Request) -> list[Body]:
    """The objects that a submission makes, in order. Raises `Error` for a job that cannot be."""
    made = render(request)
    if request.managed and request.engine == "pods":
        return [body for body in made if body["kind"] != "Pod"]
    return made


async def submit(
    cluster: Cluster, request: Request, *, replace: bool = False, words: str = "",
    told: Callable[[Body], object] = lambda _body: None,
) -> list[Body]:  # fmt: skip
    """Make every object of the job; those that were made.

    `replace` first removes what an ended job of this name has left. `words` are added to commands
    in messages; `told` hears of each object. Raises `Error`; then nothing new is left.
    """
    bodies = wanted(request)
    await _require_priorities(cluster, request)
    await make_room(cluster, request, replace=replace, words=words)
    await _asked(_none_of_others(cluster, request, bodies), request, words)
    try:
        await _apply(cluster, request, bodies, told, words)
    except Error:
        if request.engine != "cronjob":
            with contextlib.suppress(ApiError):  # what is told is why it was refused
                await withdraw(cluster, request.name)
        raise
    return bodies


async def _require_priorities(cluster: Cluster, request: Request) -> None:
    for error in await impossible(cluster, request):
        raise error


async def make_room(cluster: Cluster, request: Request, *, replace: bool, words: str) -> None:
    """Remove what an ended job of the name has left, if `replace`. Raises `Error` job-running or
    job-exists."""
    found = await _asked(standing(cluster, request), request, words)
    if found.exists:
        _may_replace(request.name, found, replace, words)
        await _cleared(cluster, request, words)


async def _apply(
    cluster: Cluster,
    request: Request,
    bodies: Sequence[Body],
    told: Callable[[Body], object],
    words: str,
) -> None:
    """The job's ConfigMap first: all others belong to it, and go with it whoever deletes it."""
    owner: Body | None = None
    for body in sorted(bodies, key=lambda body: not _is_home(body, request)):
        try:
            await cluster.apply(_belonging(body, request, owner))
            if _is_home(body, request):
                owner = (await origin(cluster, request.name)).owner
        except ApiError as error:
            raise refused(error, about(body, cluster.namespace, words)) from error
        told(body)


def _is_home(body: Body, request: Request) -> bool:
    named: str = body["metadata"]["name"]
    return request.managed and named == f"{request.name}-job"


def _belonging(body: Body, request: Request, owner: Body | None) -> Body:
    """With its owner; what holds data, and what is in no namespace, cannot belong to a job."""
    stays = body["kind"] in HOLDS_DATA or "namespace" not in body["metadata"]
    return body if owner is None or stays or _is_home(body, request) else owned(body, owner)


async def rehearse(cluster: Cluster, request: Request) -> list[RehearsedObject]:
    """What the server would do with every object; nothing is made. Raises `Error` for a job that
    the server would accept, and whose pods it would not."""
    await _require_priorities(cluster, request)
    owner = await _owner_there(cluster, request)
    return [await _trial(cluster, _belonging(body, request, owner)) for body in wanted(request)]


async def _owner_there(cluster: Cluster, request: Request) -> Body | None:
    """A new job has no ConfigMap yet that anything could belong to."""
    try:
        return (await origin(cluster, request.name)).owner if request.managed else None
    except ApiError:
        return None


async def _trial(cluster: Cluster, body: Body) -> RehearsedObject:
    before, name = None, body["metadata"]["name"]
    try:
        before = await cluster.get(kind_of(body), name)
    except NotFoundError:
        pass
    except ApiError as error:
        return RehearsedObject(body, None, None, error)
    try:
        return RehearsedObject(body, before, await cluster.apply(body, dry_run=True), None)
    except ApiError as error:
        return RehearsedObject(body, before, None, error)


# ── what is there already ─────────────────────────────────────────────────────────────────────


async def standing(cluster: Cluster, request: Request) -> JobPresence:
    """Whether a job of this name is in the namespace. A half-made one counts as none."""
    if request.engine == "cronjob":
        return JobPresence(exists=False, running=False)  # its schedule may be changed at any time
    if not request.managed:
        return await _plain(cluster, request)
    found = await recorded_status(cluster, request.name)
    if found is not None and found.outcome is not None:
        return JobPresence(exists=True, running=False)
    runs = await _there(cluster, DEPLOYMENTS, f"{request.name}-controller")
    return JobPresence(exists=runs or found is not None, running=runs)


async def _plain(cluster: Cluster, request: Request) -> JobPresence:
    pods = (await cluster.listed(PODS, Pod, labels=f"{JOB}={request.name}")).items
    kind = main_object(request)
    exists = bool(pods) or (kind is not None and await _there(cluster, kind, request.name))
    return JobPresence(exists=exists, running=any(not pod.ended for pod in pods))


async def _there(cluster: Cluster, kind: Kind, name: str) -> bool:
    try:
        await cluster.get(kind, name)
    except NotFoundError:
        return False
    return True


def _may_replace(name: str, found: JobPresence, replace: bool, words: str) -> None:
    on = f"--on kubernetes{words}"
    if found.running:
        raise Error(
            "job-running",
            f"job {name!r} is already running in the cluster",
            why="its controller exists, and its record does not say that it has ended",
            help=f"holdfast watch {name} {on}   (or: holdfast stop {name} {on})",
        )
    if not replace:
        raise Error(
            "job-exists",
            f"an ended job named {name!r} is in the cluster",
            why="its record and its objects are kept for inspection",
            help="choose another --name, or remove it with --replace (to inspect it first: "
            f"holdfast why {name} {on})",
        )


async def _cleared(cluster: Cluster, request: Request, words: str) -> None:
    await _asked(withdraw(cluster, request.name), request, words)
    gone = _asked(until_gone(cluster, request.name, within_s=GONE_WITHIN_S), request, words)
    if not await gone:
        raise Error(
            "job-exists",
            f"the remains of {request.name!r} are not being deleted",
            why=f"pods or objects of it still exist after {GONE_WITHIN_S:.0f} s; an unreachable "
            "machine or a finalizer blocks their deletion",
            help=f"kubectl get pods -n {cluster.namespace} -l {JOB}={request.name}",
        )


def made_by_controller(job: str) -> list[tuple[Kind, str]]:
    """What the controller of a job makes, but for pods and shards."""
    maps = (record_name(job), journal_name(job), logs_name(job), stacks_name(job))
    return [
        *((CONFIG_MAPS, name) for name in maps),
        (SECRETS, token_name(job)),
        (LEASES, f"{job}-controller"),
    ]


async def _none_of_others(cluster: Cluster, request: Request, bodies: Sequence[Body]) -> None:
    """Server-side apply would take over whatever has the name of an object of ours."""
    job = request.name
    wanted = [(kind_of(body), body["metadata"]["name"]) for body in bodies]
    for kind, name in [*wanted, *(made_by_controller(job) if request.managed else ())]:
        try:
            labels = (await cluster.get(kind, name))["metadata"].get("labels") or {}
        except ApiError:
            continue  # not there; what else may be wrong is told when it is applied
        if labels.get(JOB) != job:
            raise _taken(kind, name, job, labels.get(JOB), cluster.namespace)


def _taken(kind: Kind, name: str, job: str, owner: str | None, namespace: str) -> Error:
    whose = f"it belongs to job {owner!r}" if owner else "it does not have the label of a job"
    return Error(
        "name-taken",
        f"{kind.kind} {name!r} already exists in namespace {namespace}",
        why=f"job {job!r} would create one of that name, and {whose}",
        help="choose another --name"
        + ("; without storage_class an existing claim is used" if "Claim" in name else ""),
    )


async def _asked(call: Awaitable[T], request: Request, words: str) -> T:
    """What a call gives, its refusal as an error."""
    of = About(f"job {request.name}", "v1", request.namespace or "default", words)
    try:
        return await call
    except ApiError as error:
        raise refused(error, of) from error


# ── jobs that a CronJob starts ────────────────────────────────────────────────────────────────


def scheduled(request: Request) -> bool:
    """Whether this is one run of a job that a CronJob starts at its times."""
    return request.managed and request.engine == "pods" and request.job.schedule is not None


async def start_scheduled(cluster: Cluster, request: Request) -> None:
    """Start a controller for one run; the rest is there since the CronJob was submitted.

    Waits for a former run to stop, and removes what it has left. Raises `Error`.
    """
    plain = changed(request, job=request.job.model_copy(update={"schedule": None}))
    gang = [body for body in own_pods.bodies(plain) if body["kind"] != "Pod"]
    bodies = [*gang, *controller.deployment(plain, run=secrets.token_hex(8))]
    await _asked(_former_stopped(cluster, request), request, "")
    await _asked(_former_removed(cluster, request.name, bodies), request, "")
    owner = (await _asked(origin(cluster, request.name), request, "")).owner
    for body in bodies:
        try:
            await cluster.create(owned(body, owner))
        except ApiError as error:
            raise refused(error, about(body, cluster.namespace)) from error


async def _former_stopped(cluster: Cluster, request: Request) -> None:
    """With the overlap `Replace` the former run has just been asked to stop."""
    deadline = time.monotonic() + STOPPED_WITHIN_S
    while (await standing(cluster, request)).running:
        if time.monotonic() > deadline:
            _may_replace(request.name, JobPresence(exists=True, running=True), False, "")
        await asyncio.sleep(POLL_S)


async def _former_removed(cluster: Cluster, name: str, bodies: Sequence[Body]) -> None:
    wishes = {"metadata": {"annotations": dict.fromkeys((STOP, SCALE, UPDATE))}}
    await cluster.patch(CONFIG_MAPS, f"{name}-job", wishes)
    for map_name in (record_name(name), journal_name(name), logs_name(name)):
        await cluster.delete(CONFIG_MAPS, map_name)
    for body in reversed(bodies):
        await cluster.delete(kind_of(body), body["metadata"]["name"], foreground=True)
    for pod in (await cluster.listed(PODS, Pod, labels=f"{JOB}={name}")).items:
        if pod.metadata.labels.get(ROLE) != "submit":
            await cluster.delete(PODS, pod.metadata.name, uid=pod.uid)
    for body in bodies:
        while await _there(cluster, kind_of(body), body["metadata"]["name"]):
            await asyncio.sleep(POLL_S)
