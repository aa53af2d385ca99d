"""Sizes that cannot be: every one with its arithmetic, so that it can be corrected at once.

Memory of a pod holds three things at its worst: what its programs use, `/dev/shm`, and the
snapshots. The last two are known; a limit that does not even hold them ends in a kill.
"""

from collections.abc import Iterator

from holdfast.drivers.kubernetes.manifests.request import Request
from holdfast.drivers.kubernetes.manifests.storage import shm_size, snapshot_bytes
from holdfast.errors import Error
from holdfast.spec import Job
from holdfast.spec.load import to_yaml
from holdfast.spec.local import require_bounds
from holdfast.spec.quantities import amount, in_bytes

CONFIG_BYTES_MAX = 1 << 20  # of a ConfigMap
PODS_MAX = 100_000  # completions of an Indexed Job with a limit for each index


def problems(request: Request) -> Iterator[Error]:
    """One problem for each size that cannot be."""
    yield from _memory(request)
    yield from _whole(request.job)
    yield from _pages(request.job)
    yield from _elastic(request.job)
    yield from _counts(request)
    yield from _layout(request)
    yield from _file(request)


def _memory(request: Request) -> Iterator[Error]:
    job = request.job
    if job.resources.memory is None:
        return
    memory, shm = amount(job.resources.memory), amount(shm_size(request))
    snapshots = snapshot_bytes(request)
    if memory >= shm + snapshots and memory > 0:
        return
    state = job.resources.state
    parts = f"/dev/shm {in_bytes(shm)}"
    if snapshots:
        parts += (
            f" + snapshots {in_bytes(snapshots)} (state {state} x {request.workers} workers x 2 "
            "slots, own and a buddy's)"
        )
    yield _impossible(
        "resources.memory",
        f"{job.resources.memory} is too small",
        f"{parts} = {in_bytes(shm + snapshots)}, without any memory for the workers",
        f"request more than {in_bytes(shm + snapshots)}, or set resources.shm",
    )


def _whole(job: Job) -> Iterator[Error]:
    """Whole cores, and limits for all: otherwise the kubelet pins nothing."""
    if not job.network.numa:
        return
    cpu = job.resources.cpu
    if cpu is None or job.resources.memory is None or amount(cpu).denominator != 1:
        yield _impossible(
            "network.numa",
            "CPUs are pinned only if the pod requests whole cores and has a memory limit",
            f"resources.cpu is {cpu or 'not set'}, resources.memory "
            f"{job.resources.memory or 'not set'}",
            "set resources.cpu to a whole number, and resources.memory",
        )


def _pages(job: Job) -> Iterator[Error]:
    asked = job.resources
    if asked.hugepages and not (asked.cpu or asked.memory):
        yield _impossible(
            "resources.hugepages",
            "huge pages require CPU or memory",
            "Kubernetes rejects huge pages without a CPU or memory request",
            "set resources.memory",
        )
    for size, wanted in asked.hugepages.items():
        if amount(wanted) % amount(size):
            yield _impossible(
                f"resources.hugepages.{size}",
                f"{wanted} is not a multiple of the page size",
                f"{wanted} / {size} = {float(amount(wanted) / amount(size)):g}",
                f"round it to a multiple of {size}",
            )


def _elastic(job: Job) -> Iterator[Error]:
    try:
        require_bounds(job)
    except Error as error:
        yield error


def _counts(request: Request) -> Iterator[Error]:
    job = request.job
    if request.pods > PODS_MAX:
        yield _impossible(
            "nodes",
            f"{request.pods} pods exceed the limit of a Job",
            f"{request.nodes} nodes + {request.spares} spares > {PODS_MAX}",
            "use fewer, larger nodes",
        )
    if job.roles.chief and job.nodes.count == 1:
        yield _impossible(
            "roles.chief",
            "no node is left as a worker",
            "nodes.count 1 - chief 1 = 0 workers",
            "increase nodes.count, or remove the chief: worker 0 takes its role",
        )


def _layout(request: Request) -> Iterator[Error]:
    """Of one worker per GPU; a number of workers was looked at when the job file was read."""
    why = request.job.misfit(request.workers)
    if why:
        yield _impossible(
            "parallel",
            "the layout does not fit the ranks of the job",
            why,
            "change parallel, nodes.count, or resources.gpus: there is one worker per GPU",
        )


def _file(request: Request) -> Iterator[Error]:
    """The job file of a managed job travels in a ConfigMap."""
    if not request.managed:
        return
    size = len(to_yaml(request.job).encode())
    if size > CONFIG_BYTES_MAX:
        yield _impossible(
            "job",
            "the job file is too large for a ConfigMap",
            f"{size} bytes > {CONFIG_BYTES_MAX}",
            "move long arguments or variables into the image",
        )


def _impossible(path: str, what: str, why: str, remedy: str) -> Error:
    return Error("size-impossible", f"{path}: {what}", why=why, help=remedy)
