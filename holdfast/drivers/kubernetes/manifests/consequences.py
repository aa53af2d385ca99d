"""What follows from a job file on an engine, and stands neither there nor in the manifests."""

from collections.abc import Iterator

from holdfast.drivers.kubernetes.manifests.checks.limits import honours
from holdfast.drivers.kubernetes.manifests.kueue import queue_of
from holdfast.drivers.kubernetes.manifests.request import Request
from holdfast.spec.cluster import Engine

OWN: tuple[Engine, ...] = ("pods", "cronjob")  # whose pods Holdfast makes
FIXED: dict[Engine, str] = {
    "jobset": "its controller refuses another number of pods, unless it has the alpha feature gate "
    "ElasticJobSet and kubernetes.elastic_jobset says so",
    "trainjob": "spec.trainer of a TrainJob is immutable",
}
OTHERS = "Holdfast resizes pods of its own, Jobs, PyTorchJobs and elastic JobSets only"
PARTIAL = "it starts with as many pods as the quota allows"


def resized(request: Request) -> bool:
    """Whether there are more and fewer pods as the job's number of nodes changes. Kueue would take
    an object that is larger or smaller than what it has admitted for a new one, and stop all of its
    pods."""
    able = request.engine != "jobset" or request.job.kubernetes.elastic_jobset
    honoured = honours("elasticity.max_nodes", request.engine, "managed")
    return able and honoured and not queue_of(request.job)


def consequences(request: Request) -> Iterator[str]:
    """One sentence for each; none in plain mode, where Holdfast decides nothing."""
    if request.managed and request.job.elasticity is not None:
        yield f"elasticity: {_size(request)}"
    if request.managed and request.engine not in OWN and _announces(request):
        yield (
            f"recovery.cloud_notices: engine {request.engine} may create the pod that replaces a "
            "node on the machine that is about to go, until that is tainted or cordoned; engine "
            "pods avoids that machine"
        )


def _announces(request: Request) -> bool:
    return request.job.recovery.cloud_notices not in ("auto", "off")


def _size(request: Request) -> str:
    """What becomes of the pods when the number of nodes changes."""
    engine = request.engine
    if not resized(request):
        return _fixed(request, queued=bool(queue_of(request.job)))
    assert request.job.elasticity is not None
    most = request.job.elasticity.max_nodes or request.nodes
    up = f"up to {_count(most, 'node')}"
    if engine in OWN:
        return (
            f"engine {engine} is resized: Holdfast creates pods, {up}, and removes those that do "
            "not train"
        )
    return (
        f"engine {engine} is resized: Holdfast changes the number of pods of its object, {up}; "
        "Kubernetes removes the pods with the highest numbers, so those below one that trains "
        "stay, as spares"
    )


def _fixed(request: Request, *, queued: bool) -> str:
    engine, where = request.engine, " in a Kueue queue" if queued else ""
    queue = request.job.scheduling.kueue
    why = FIXED.get(engine, OTHERS)
    if queued:
        why = "Kueue reserves a fixed quota"
        why += f"; {PARTIAL}" if queue is not None and queue.partial else ""
    return (
        f"engine {engine}{where} is not resized ({why}): it keeps {_count(request.pods, 'pod')}; "
        "those that do not train wait as spares and keep their resources, and the job cannot grow "
        f"beyond {_count(request.nodes, 'node')}"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"
