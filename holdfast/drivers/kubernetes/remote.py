"""A job in a cluster as one sees it from outside: its record, its pods, and what it waits for.

One look takes three calls: the job file, the record that the controller publishes, the pods. The
record says how training goes; the pods say whether anybody is there to publish, and before the
first record they are all there is to tell. The job file is read only when something in it is
asked for: `stop` need not load what validates it, half a second of processor time.
"""

import time
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from holdfast.drivers.kubernetes.cluster import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    PODS,
    ApiError,
    Cluster,
    NotFoundError,
)
from holdfast.drivers.kubernetes.manifests.names import BULK, JOB, MANAGED_BY, ROLE
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.drivers.kubernetes.pods import Pod, summary, waits_for
from holdfast.drivers.kubernetes.record import Recorded, recorded
from holdfast.drivers.kubernetes.roster import TRAINS
from holdfast.drivers.kubernetes.sharded import Cache
from holdfast.drivers.kubernetes.submit_refusals import About, refused
from holdfast.errors import Error
from holdfast.status import JobStatus

if TYPE_CHECKING:
    from holdfast.spec import Job

LISTED = f"{MANAGED_BY}=holdfast,{JOB},!{BULK}"  # job files, and records without their shards
STALE_S = 60.0  # a record is written every few seconds


@dataclass(frozen=True)
class Look:
    """A job at one moment."""

    name: str
    file: Body | None  # the ConfigMap; None: the job is not managed, or its file is gone
    created_at: float
    record: Recorded | None
    pods: tuple[Pod, ...]
    kept: bool  # whether the controller's Deployment wants one to run
    at: float

    @cached_property
    def job(self) -> "Job | None":
        """What the file says. Raises `Error` if that is no job any more."""
        return job_of(self.file) if self.file is not None else None

    @property
    def queue(self) -> str:
        """Kueue's, that has to admit the job; "" if it goes through none."""
        kueue = self.job.scheduling.kueue if self.job is not None else None
        return kueue.queue if kueue is not None else ""

    @property
    def nodes(self) -> list[Pod]:
        """Pods that are to train."""
        return [pod for pod in self.pods if pod.metadata.labels.get(ROLE, "node") in TRAINS]

    @property
    def controllers(self) -> list[Pod]:
        """The controller's pod, one that stands by, and such as are still leaving."""
        return [pod for pod in self.pods if pod.metadata.labels.get(ROLE) == "controller"]

    @property
    def outcome(self) -> str | None:
        """How the job ended, None if it has not."""
        return self.record.status.outcome if self.record is not None else None

    @property
    def wanted(self) -> int:
        """Nodes that the job asks for, spares included."""
        return self.job.nodes.count + self.job.nodes.spare_count if self.job is not None else 0


async def look(cluster: Cluster, name: str, words: str = "", cache: Cache | None = None) -> Look:
    """The job as it is now. Raises `Error` job-not-found, or what the cluster refuses with.

    Whoever looks again and again has a cache, so that of a large record only news is read.
    """
    try:
        return await _look(cluster, name, words, cache)
    except ApiError as error:
        of = About(f"job {name}", "v1", cluster.namespace, words)
        raise refused(error, of) from error


async def _look(cluster: Cluster, name: str, words: str, cache: Cache | None) -> Look:
    file = await _found(cluster, f"{name}-job")
    record = await recorded(cluster, name, journal=False, cache=cache)
    pods = (await cluster.listed(PODS, Pod, labels=f"{JOB}={name}")).items
    if file is None and record is None and not pods:
        raise await _unknown(cluster, name, words)
    return Look(
        name=name,
        file=file,
        created_at=_created(file) if file is not None else time.time(),
        record=record,
        pods=tuple(pods),
        kept=await _kept(cluster, name),
        at=time.time(),
    )


async def _found(cluster: Cluster, name: str) -> Body | None:
    try:
        return await cluster.get(CONFIG_MAPS, name)
    except NotFoundError:
        return None


async def _kept(cluster: Cluster, name: str) -> bool:
    try:
        body = await cluster.get(DEPLOYMENTS, f"{name}-controller")
    except NotFoundError:
        return False
    return bool(body["spec"].get("replicas", 1))


def job_of(file: Body) -> "Job":
    """The job in its ConfigMap."""
    from holdfast.spec.load import job_from_text

    return job_from_text(file["data"]["job.yaml"], where=f"ConfigMap {file['metadata']['name']}")


def _created(body: Body) -> float:
    said = body["metadata"].get("creationTimestamp")
    return datetime.fromisoformat(said).timestamp() if said else time.time()


# ── which job ─────────────────────────────────────────────────────────────────────────────────


class _Meta(msgspec.Struct, rename="camel", frozen=True):
    name: str
    namespace: str = ""
    labels: dict[str, str] = {}
    creation_timestamp: str = ""


class _Named(msgspec.Struct, frozen=True):
    """An object of which only the metadata matters."""

    metadata: _Meta


async def newest(cluster: Cluster, words: str = "") -> str:
    """The job that was submitted last. Raises `Error` job-not-found if there is none."""
    try:
        found = await cluster.listed(CONFIG_MAPS, _Named, labels=LISTED)
    except ApiError as error:
        raise refused(error, About("jobs", "v1", cluster.namespace, words)) from error
    files = [f.metadata for f in found.items if is_job_file(f)]
    if not files:
        raise _not_found("there is no job", "none has been submitted", cluster, words)
    return max(files, key=lambda m: (m.creation_timestamp, m.name)).labels[JOB]


def is_job_file(found: _Named) -> bool:
    """Whether a ConfigMap of ours is the file of a job."""
    return found.metadata.name == f"{found.metadata.labels.get(JOB)}-job"


async def _unknown(cluster: Cluster, name: str, words: str) -> Error:
    found = await cluster.listed(CONFIG_MAPS, _Named, labels=LISTED)
    known = sorted({f.metadata.labels[JOB] for f in found.items})
    why = f"known: {', '.join(known[:10])}" if known else "none has been submitted there"
    return _not_found(f"there is no job {name!r}", why, cluster, words)


def _not_found(what: str, why: str, cluster: Cluster, words: str) -> Error:
    return Error(
        "job-not-found",
        f"{what} in namespace {cluster.namespace}",
        why=why,
        help=f"holdfast list --on kubernetes{words}",
    )


# ── status ────────────────────────────────────────────────────────────────────────────────────


def controller_state(seen: Look) -> str:
    """Whether there is a controller: as in `JobStatus.controller`."""
    if seen.outcome is not None:
        return "ended"
    if any(pod.running and not pod.leaving for pod in seen.controllers):
        return "alive"
    return "starting" if seen.kept else "away"


def status(seen: Look) -> JobStatus:
    """The job's status: what was recorded, and whether that is still being kept up."""
    state = controller_state(seen)
    if seen.record is None:
        return _first(seen, state)
    found = msgspec.structs.replace(
        seen.record.status, controller=state, recorded_at=seen.record.at
    )
    if state in ("alive", "ended"):
        return found
    return msgspec.structs.replace(found, waiting_for=found.waiting_for or _controller(seen))


def stale(seen: Look, about: About) -> Error | None:
    """That the record is older than it should be, which is when nobody publishes any more."""
    at = seen.record.at if seen.record is not None else None
    if at is None or seen.outcome is not None or seen.at - at <= STALE_S:
        return None
    written = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
    return Error(
        "record-stale",
        f"the record of {about.what} was last published at {written}",
        why=f"that was {seen.at - at:.0f} s ago, and its controller, which publishes every few "
        f"seconds, is {controller_state(seen)}; the job may have continued since",
        help=f"kubectl logs -n {about.namespace} deployment/{seen.name}-controller",
    )


def incomplete(seen: Look, about: About) -> Error | None:
    """That not all of the record can be shown."""
    if seen.record is None or seen.record.incomplete is None:
        return None
    return Error(
        "record-incomplete",
        f"not all of the record of {about.what} can be shown",
        why=seen.record.incomplete,
        help=f"kubectl get configmaps -n {about.namespace} -l {JOB}={seen.name}   (its controller "
        "writes what is missing when it is restarted)",
    )


def _first(seen: Look, state: str) -> JobStatus:
    """Before the first record; pods other than our own may be waited for already."""
    waits = [_controller(seen)] if state != "alive" else []
    nodes = summary(seen.nodes, seen.wanted, seen.queue) if seen.nodes or seen.queue else None
    waits += [nodes] if nodes is not None else []
    return JobStatus(
        job=seen.name,
        phase="waiting",
        attempt=0,
        step=None,
        ettr=0.0,
        nodes=(),
        incidents_count=0,
        restarts_count=0,
        waiting_for="; ".join(waits) or "the first record of its controller",
        started_at=seen.created_at,
        wall_s=max(0.0, seen.at - seen.created_at),
        controller=state,
    )


def _controller(seen: Look) -> str:
    """What the controller is waiting for."""
    for pod in seen.controllers:
        if not pod.leaving and (why := waits_for(pod)) is not None:
            return f"its controller, which is waiting for {why}"
    return "its controller to be started" + ("" if seen.kept else " (holdfast resume)")


def require_managed(seen: Look, words: str) -> None:
    """That there is a record of the job. Raises `Error` not-managed."""
    if seen.file is not None:
        return
    raise Error(
        "not-managed",
        f"there is no record of job {seen.name!r}",
        why="it runs in plain mode, without a controller, or its ConfigMap was deleted",
        help=f"holdfast logs {seen.name} --on kubernetes{words}   "
        f"(or: kubectl get pods -l {JOB}={seen.name})",
    )
