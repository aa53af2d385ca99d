"""The process of the controller pod: from an empty disk, or a former one's leavings, to the end.

In order: the lease, so that there is one controller while another stands by; the token, made once
for each job; the journal, from the disk, from agents that keep a copy, or from the record; then the
driver. SIGTERM ends this process and not the job. When the job has ended the Deployment is scaled
down, which keeps everything that people may want to read and runs nothing any more.
"""

import asyncio
import secrets
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast import journal
from holdfast.actions import Outcome
from holdfast.controller import Limits, State
from holdfast.drivers.kubernetes import shelf
from holdfast.drivers.kubernetes.cluster import (
    DEPLOYMENTS,
    PODS,
    ApiError,
    Cluster,
    NotFoundError,
)
from holdfast.drivers.kubernetes.driver import (
    LISTEN,
    Identity,
    KubernetesDriver,
    Observer,
    stop_by_signal,
)
from holdfast.drivers.kubernetes.gather import Gathering
from holdfast.drivers.kubernetes.job_token import token_of
from holdfast.drivers.kubernetes.lease import Lease
from holdfast.drivers.kubernetes.leased_cluster import LeasedCluster
from holdfast.drivers.kubernetes.manifests.kueue import queue_of
from holdfast.drivers.kubernetes.manifests.names import JOB, MANAGED_BY, ROLE
from holdfast.drivers.kubernetes.manifests.pod import CONTROLLER_PORT
from holdfast.drivers.kubernetes.manifests.render import requested
from holdfast.drivers.kubernetes.manifests.request import Request
from holdfast.drivers.kubernetes.manifests.support.services import METRICS_PORT
from holdfast.drivers.kubernetes.origin import JobOrigin, first_origin
from holdfast.drivers.kubernetes.pods import Pod
from holdfast.drivers.kubernetes.record_journal import published_journal
from holdfast.drivers.kubernetes.roster import TRAINS
from holdfast.drivers.kubernetes.talk import say
from holdfast.errors import Error
from holdfast.replay import replay
from holdfast.shell.server import allow_connections
from holdfast.shell.succession import RollCall, newest
from holdfast.spec import Job
from holdfast.spec.cluster import Engine
from holdfast.spec.load import job_as_written

NODE_WAIT_S = 604_800.0  # a queue may be long; a week is what a job file may say at most
NEWLINE = b"\n"
NEEDED = ("HOLDFAST_JOB", "HOLDFAST_JOB_FILE", "HOLDFAST_ENGINE", "HOLDFAST_HOME")


@dataclass(frozen=True)
class Place:
    """Who and where this controller is."""

    job: Job
    request: Request
    journals: Path
    start: str  # of a job that a CronJob starts: which time it is
    me: str  # holder of the lease: the pod
    port: int
    metrics_port: int


def place_of(environ: Mapping[str, str], namespace: str) -> Place:
    """From the environment of the controller pod. Raises `Error` pod-incomplete."""
    missing = [name for name in NEEDED if not environ.get(name)]
    if missing:
        raise Error(
            "pod-incomplete",
            f"{', '.join(missing)} is not set",
            why="this command must run in the pod of a job's controller",
            help="holdfast submit job.yaml --on kubernetes",
        )
    job = job_as_written(Path(environ["HOLDFAST_JOB_FILE"]))
    engine = job.kubernetes.model_validate({"engine": environ["HOLDFAST_ENGINE"]}).engine
    request = requested(
        job,
        engine=engine,
        mode="managed",
        namespace=namespace,
        code_name=environ.get("HOLDFAST_CODE", ""),
    )
    return Place(
        job=job,
        request=request,
        journals=Path(environ.get("HOLDFAST_JOURNALS") or f"{environ['HOLDFAST_HOME']}/jobs"),
        start=environ.get("HOLDFAST_RUN", ""),
        me=environ.get("HOLDFAST_POD") or environ.get("HOSTNAME") or secrets.token_hex(4),
        port=int(environ.get("HOLDFAST_PORT", CONTROLLER_PORT)),
        metrics_port=int(environ.get("HOLDFAST_METRICS_PORT", METRICS_PORT)),
    )


async def control(cluster: Cluster, place: Place, observe: Observer) -> Outcome | None:
    """Be the controller of this job, until it ends; None: another one took over, or SIGTERM."""
    end_by_signal()
    allow_connections()
    labels = {JOB: place.job.name, MANAGED_BY: "holdfast"}
    origin = await first_origin(cluster, place.job.name)
    lease = Lease(cluster, f"{place.job.name}-controller", place.me, labels, origin.owner)
    await lease.acquire()
    keeping = asyncio.create_task(lease.keep())
    driving = asyncio.create_task(
        _drive(LeasedCluster(cluster, lease), place, lease, origin, observe)
    )
    clearing = remove_former(cluster, lease.former, place.job.name)
    tasks = [keeping, driving, asyncio.create_task(clearing)]
    outcome, gives_way = None, False
    try:
        await asyncio.wait({keeping, driving}, return_when=asyncio.FIRST_COMPLETED)
        if not driving.done():
            say("the lease was lost: another controller takes over")
        elif not driving.cancelled():
            outcome = driving.result()
            gives_way = outcome is None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if outcome is None:  # nobody is to take up what has ended
            await lease.release()
    if gives_way:  # started again in this place it would hear as little, and know of no other
        end_by_signal()
        await lease.stand_aside()
    return outcome


def end_by_signal() -> None:
    """SIGTERM ends a controller that only waits, too: the first process of a container ignores what
    it does not handle, and its pod would stay for all of its grace time."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


async def remove_former(cluster: Cluster, pod: str, job: str) -> None:
    """The Service leads to a machine that has died until its pods are found not ready, which takes
    most of a minute; to a pod that is being deleted it does not. Another one stands by sooner, too.

    Whoever may change the lease may write any name into it: only a controller of the job goes.
    """
    if not pod:
        return
    try:
        meta = (await cluster.get(PODS, pod))["metadata"]
        labels = meta.get("labels") or {}
        if (labels.get(JOB), labels.get(ROLE)) != (job, "controller"):
            say(f"pod {pod} held the lease, and is no controller of {job}: it stays")
            return
        say(f"{pod} has not renewed its lease: it is removed")
        await cluster.delete(PODS, pod, uid=meta["uid"])
    except NotFoundError:
        return
    except ApiError as error:
        say(f"pod {pod} cannot be removed: {error}")


async def _drive(
    cluster: Cluster, place: Place, lease: Lease, origin: JobOrigin, observe: Observer
) -> Outcome | None:
    token = await token_of(cluster, place.job.name, origin.owner)
    path, obeyed = await _prepare(cluster, place, origin.run, lease, token)
    controller, book = replay(path, limits_of(as_begun(place.job, path), place.request.engine))
    machine, obeyed = await _machine(cluster, place.me), max(obeyed, book.obeyed)
    me = Identity(token, origin, lease.term, machine, obeyed, book.diverged)
    driver = KubernetesDriver(place.request, path, controller, book, cluster, me)
    task = asyncio.current_task()
    assert task is not None
    stop_by_signal(driver, task.cancel)
    lease.on_doubt, lease.on_sure = driver.doubt.begin, driver.doubt.end
    driver.doubt.is_sure = lambda: lease.is_sure
    if not lease.is_sure:
        driver.doubt.begin()
    try:
        outcome = await driver.run(observe, port=place.port, metrics_port=place.metrics_port)
    finally:
        book.close()
    if outcome is not None:
        await _retire(cluster, place.job.name)
    return outcome


async def _machine(cluster: Cluster, me: str) -> str:
    """The machine that this pod runs on; "" if that cannot be found out."""
    try:
        return str((await cluster.get(PODS, me))["spec"].get("nodeName", ""))
    except ApiError as error:
        say(f"on which machine this controller runs is not known: {error}")
        return ""


def as_begun(job: Job, path: Path) -> Job:
    """The job of this journal. A file that says nothing of `recovery.mode` meant the default of the
    version that began it, with which decisions are to be made again as they were."""
    recovery = job.recovery
    if "mode" in recovery.model_fields_set:
        return job
    mode = journal.read_header(path).job.get("recovery", {}).get("mode", recovery.mode)
    return job.model_copy(update={"recovery": recovery.model_copy(update={"mode": mode})})


def limits_of(job: Job, engine: Engine) -> Limits:
    """A queue may hold a job for days: waiting ends it only if the job file says so. An engine that
    makes the pods makes those that go anew. Kueue counts a group of pods as it was admitted: one
    that goes gives back no quota, and its deletion waits until another takes its place."""
    lets_go = engine == "pods" and not queue_of(job)
    limits = msgspec.structs.replace(Limits.of(job), lets_go=lets_go)
    if job.recovery.check == "auto":
        limits = msgspec.structs.replace(limits, checks="spares")
    if "node_wait_s" in job.recovery.model_fields_set:
        return limits
    return msgspec.structs.replace(limits, node_wait_s=NODE_WAIT_S)


# ── the journal ───────────────────────────────────────────────────────────────────────────────


async def _prepare(
    cluster: Cluster, place: Place, run: str, lease: Lease, token: str
) -> tuple[Path, int]:
    """The journal: the one that lies there, else the newest that anybody has, else a new one; and
    the newest attempt that an agent has heard of, if agents were asked.

    What the controller of the term before has left is complete, so nobody else is asked. A disk
    that only this pod uses may hold an older one: another controller may have acted since."""
    folder = shelf.place(
        place.journals, place.job.name, f"{run}{place.start}", lease.term, place.me
    )
    if (folder / shelf.FILE).exists():
        return folder / shelf.FILE, 0
    term, left = shelf.left_behind(folder)
    found, obeyed = left, 0
    if not left or term < lease.term - 1:
        published = await published_journal(cluster, place.job.name) or b""
        call = await _roll_call(cluster, place, lease, token)
        found, obeyed = newest([left, published, call.best]), call.obeyed
    if found:
        where = "on its volume" if found == left else "recovered from a copy"
        say(f"resuming from a journal of {found.count(NEWLINE)} lines {where}")
    path = shelf.begin(place.job, folder, found, now=time.time())
    shelf.forget_others(folder)
    return path, obeyed


async def _roll_call(cluster: Cluster, place: Place, lease: Lease, token: str) -> RollCall:
    """What the agents say that run."""

    async def existing() -> list[Pod]:
        return (await cluster.listed(PODS, Pod, labels=f"{JOB}={place.job.name}")).items

    pods = await existing()
    machine = next((p.spec.node_name for p in pods if p.metadata.name == lease.former), None)
    agents = _agents(pods)
    near = {pod.uid for pod in agents if pod.spec.node_name == machine}
    far = {pod.uid for pod in agents} - near

    async def running() -> set[str] | None:
        try:
            return {pod.uid for pod in _agents(await existing())}
        except ApiError:
            return None

    return await Gathering(token, far, near, running).gather(LISTEN, place.port)


def _agents(pods: Sequence[Pod]) -> list[Pod]:
    return [p for p in pods if p.running and p.metadata.labels.get(ROLE, "node") in TRAINS]


# ── the end ───────────────────────────────────────────────────────────────────────────────────


async def _retire(cluster: Cluster, job: str) -> None:
    """Scale our own Deployment down; the next one to start would find that the job has ended."""
    try:
        await cluster.patch(
            DEPLOYMENTS, f"{job}-controller", {"spec": {"replicas": 0}}, part="scale"
        )
    except ApiError as error:
        say(f"the controller's Deployment cannot be scaled down: {error}")


def quiet(_entry: object, _state: State) -> None:
    """Nobody looks."""
