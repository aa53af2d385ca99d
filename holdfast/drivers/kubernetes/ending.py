"""How the end of a job is told to the engine that made its pods.

After success the agents exit with 0 and every engine knows what that means. Otherwise the pods must
not come back: an engine that can be suspended is, because its object then stays for people to look
at; Volcano terminates its job by the exit status; pods of our own are simply not replaced.

A sidecar that does not end keeps its pod running after success, too, and with it the machine. No
engine does anything about that, and one would make anew a pod that is deleted: so it is suspended.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

from holdfast.actions import Outcome
from holdfast.drivers.kubernetes.cluster import PODS, ApiError, Cluster, Kind
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.drivers.kubernetes.object_events import CONTROLLER, Said, post
from holdfast.drivers.kubernetes.pods import Pod
from holdfast.drivers.kubernetes.roster import Roster
from holdfast.drivers.kubernetes.talk import say
from holdfast.spec.cluster import Engine, fatal_status

TRIES = 6
SUSPENDED = "SuspendedByHoldfast"
LEAVE_S = 15.0  # for agents to end by themselves when the job is over
SUBMITTED_S = 300.0  # for KubeRay to submit the entrypoint of a short job, and to hear of its end

KUBEFLOW: dict[Engine, str] = {
    "pytorchjob": "PyTorchJob",
    "tfjob": "TFJob",
    "jaxjob": "JAXJob",
    "xgboostjob": "XGBoostJob",
    "paddlejob": "PaddleJob",
}


def exit_code(engine: Engine, outcome: Outcome) -> int:
    """What agents exit with so that the engine draws the right conclusion."""
    if outcome is Outcome.SUCCEEDED:
        return 0
    return fatal_status(engine)


def main_object(request: Request) -> Kind | None:
    """The kind of the object that makes the pods; None if they are ours."""
    match request.engine:
        case "job":
            return Kind("batch/v1", "Job", "jobs")
        case "jobset":
            return Kind("jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets")
        case "trainjob":
            return Kind("trainer.kubeflow.org/v1alpha1", "TrainJob", "trainjobs")
        case "mpijob":
            version = request.job.kubernetes.mpi_version
            return Kind(f"kubeflow.org/{version}", "MPIJob", "mpijobs")
        case "rayjob":
            return Kind("ray.io/v1", "RayJob", "rayjobs")
        case "volcano":
            return Kind("batch.volcano.sh/v1alpha1", "Job", "jobs")
        case "pods" | "cronjob":
            return None
        case engine:
            kind = KUBEFLOW[engine]
            return Kind("kubeflow.org/v1", kind, f"{kind.lower()}s")


def suspension(request: Request) -> Body | None:
    """The patch that keeps the engine from making pods again; None if there is no such thing."""
    match request.engine:
        case "pods" | "cronjob" | "volcano":
            return None
        case "job" | "jobset" | "rayjob" | "trainjob":
            return {"spec": {"suspend": True}}
        case _:
            return {"spec": {"runPolicy": {"suspend": True}}}


def leave_s(request: Request, outcome: Outcome) -> float:
    """Seconds that the pods have to end by themselves. Those of a RayJob go when its entrypoint,
    which asks us, has ended well; after another outcome it is suspended."""
    ray = request.engine == "rayjob" and outcome is Outcome.SUCCEEDED
    return SUBMITTED_S if ray else LEAVE_S


class Departures:
    """Waits for whatever is `there`, nodes and pods, to end by itself."""

    def __init__(self, there: Callable[[], set[str]]) -> None:
        self._there = there
        self._change = asyncio.Event()

    def changed(self) -> None:
        """Somebody may have left."""
        self._change.set()

    async def wait(self, seconds: float) -> None:
        """Until their pods have ended too: a launcher asks us for the end, and what is seen to have
        ended by itself is left for people to read its output. Some engines start what has ended
        again at once; nobody waits for those, which would go on until the engine is suspended."""
        waited = self._there()
        try:
            async with asyncio.timeout(seconds):
                while waited & self._there():
                    self._change.clear()
                    await self._change.wait()
        except TimeoutError:
            say("some agents did not exit in time")


async def finish(
    cluster: Cluster,
    request: Request,
    outcome: Outcome,
    roster: Roster,
    recorded: Callable[[], Awaitable[bool]],
) -> None:
    """Make sure that the engine agrees that the job is over. Pods that did all they had to and run
    on are removed, once the result is `recorded`."""
    kind, patch, pods = main_object(request), suspension(request), list(roster.pods.values())
    left = request.engine == "rayjob" and any(not pod.leaving for pod in pods)  # it never ended
    outlived = roster.outlived()
    why = Said(False, SUSPENDED, f"the job has ended ({outcome}), and no pod is to be made anew")
    if outlived and await recorded():
        told = _told(outlived, request, kind, suspended=patch is not None)
        why = Said(True, SUSPENDED, told)
        say(told)
        left = True
    if (left or outcome is not Outcome.SUCCEEDED) and kind is not None and patch is not None:
        await _suspend(cluster, kind, request.name, patch, why)
    if kind is None:  # agents that did not leave
        for pod in [p for p in pods if not p.over]:
            await _delete(cluster, pod)


def _told(pods: Sequence[Pod], request: Request, kind: Kind | None, *, suspended: bool) -> str:
    """What keeps pods running, what is done about it, and what to do next time."""
    statuses = pods[0].status.container_statuses
    names = ", ".join(c.name for c in statuses if c.state.terminated is None)
    more = f" and {len(pods) - 1} more pods" if len(pods) > 1 else ""
    done = "the pod is deleted"
    if kind is not None:
        object_ = f"{kind.kind} {request.name}"
        done = f"{object_} is suspended to remove it" if suspended else f"delete {object_}"
    return (
        f"container {names} of pod {pods[0].metadata.name}{more} runs although the training has "
        f"ended: {done}. Make it a native sidecar: an init container with restartPolicy: Always"
    )


async def _suspend(cluster: Cluster, kind: Kind, name: str, patch: Body, why: Said) -> None:
    """And say so at the object: whoever finds it suspended knows nothing of our log."""
    for wait_s in _waits():
        try:
            made = await cluster.patch(kind, name, patch)
            await post(cluster, kind, made, [why], by=CONTROLLER, now=time.time())
            return
        except ApiError as error:
            if not error.transient:
                say(f"{kind.kind} {name} cannot be suspended: {error}")
                return
            await asyncio.sleep(wait_s)
    say(f"{kind.kind} {name} could not be suspended; suspend or delete it")


async def _delete(cluster: Cluster, pod: Pod) -> None:
    for wait_s in _waits():
        try:
            await cluster.delete(PODS, pod.metadata.name, uid=pod.uid)
            return
        except ApiError as error:
            if not error.transient:
                say(f"pod {pod.metadata.name} cannot be deleted: {error}")
                return
            await asyncio.sleep(wait_s)


def _waits() -> Iterable[float]:
    return (0.5 * 2**n for n in range(TRIES))
