"""Settings that have no effect because of another one: `rdma_count` without an `rdma_resource`.

The table says what each of them needs. The job description could refuse them itself, were they not
harmless on a laptop, where whole sections have no effect.
"""

from collections.abc import Callable, Iterator

from holdfast.drivers.kubernetes.manifests.checks.given import given
from holdfast.drivers.kubernetes.manifests.checks.limits import honours
from holdfast.drivers.kubernetes.manifests.engines.kubeflow import KINDS
from holdfast.drivers.kubernetes.manifests.request import Request
from holdfast.errors import Error
from holdfast.spec import Job

Holds = Callable[[Job], object]
Need = tuple[str, Holds]

SPARES: Need = ("nodes.spares", lambda j: j.nodes.spare_count)
MONITORS: Need = ("monitoring.enabled", lambda j: j.monitoring.enabled)
BESIDE: Need = ("roles.ps or roles.evaluator", lambda j: j.roles.ps or j.roles.evaluator)
MPI: Need = ("framework: mpi", lambda j: j.trains_with == "mpi")
GANG: Need = ("scheduling.gang", lambda j: j.scheduling.gang != "none")
PLUGIN: Need = ("scheduling.gang: coscheduling", lambda j: j.scheduling.gang == "coscheduling")
V2: Need = ("mpi_version: v2beta1", lambda j: j.kubernetes.mpi_version == "v2beta1")

NEEDS: dict[str, Need] = {
    "kubernetes.elastic_jobset": ("elasticity", lambda j: j.elasticity is not None),
    "image.python": (
        "script, module or a download",
        lambda j: j.command is None or any(d.download for d in j.datasets),
    ),
    "resources.gpu_resource": ("resources.gpus", lambda j: j.resources.gpus),
    "network.rdma_count": ("network.rdma_resource", lambda j: j.network.rdma_resource),
    "network.efa_count": ("network.profile: efa", lambda j: j.network.profile == "efa"),
    "network.tcpx_image": ("network.profile: gke-tcpx", lambda j: j.network.profile == "gke-tcpx"),
    "checkpoints.shared.size": (
        "checkpoints.shared.storage_class",
        lambda j: j.checkpoints.shared and j.checkpoints.shared.storage_class,
    ),
    "kubernetes.journal.size": (
        "kubernetes.journal.storage_class",
        lambda j: j.kubernetes.journal and j.kubernetes.journal.storage_class,
    ),
    "kubernetes.journal.access_mode": (
        "kubernetes.journal.storage_class",
        lambda j: j.kubernetes.journal and j.kubernetes.journal.storage_class,
    ),
    "checkpoints.local.size": (
        "checkpoints.local.pvc_class",
        lambda j: j.checkpoints.local and j.checkpoints.local.pvc_class,
    ),
    "scheduling.spare_priority_class": SPARES,
    "scheduling.kueue.spare_priority": SPARES,
    "scheduling.kueue.partial": SPARES,
    "scheduling.kueue.topology_required": (
        "scheduling.kueue.topology",
        lambda j: j.scheduling.kueue and j.scheduling.kueue.topology,
    ),
    "roles.cpu": BESIDE,
    "roles.memory": BESIDE,
    "mpi.options": MPI,
    "mpi.implementation": MPI,
    "mpi.ssh_folder": MPI,
    "disruption.max_unavailable": ("disruption.budget", lambda j: j.disruption.budget),
    "monitoring.labels": MONITORS,
    "monitoring.interval_s": MONITORS,
    "access.cordon_share": ("access.cordon", lambda j: j.access.cordon),
    "access.annotations": (
        "a created ServiceAccount, so no access.service_account",
        lambda j: j.access.service_account is None,
    ),
}
"""Setting: what it needs in words, and whether a job has it."""


def problems(request: Request) -> Iterator[Error]:
    """One problem for each setting without effect."""
    job = request.job
    for path, (needed, holds) in (*NEEDS.items(), *_by_engine(request)):
        told = honours(path, request.engine, request.mode)  # or else `limits` has refused it
        if told and given(job, path) is not None and not holds(job):
            yield _idle(path, needed)
    for index, dataset in enumerate(job.datasets):
        own = dataset.download and dataset.host_path is None
        if dataset.size is not None and not own:
            yield _idle(f"datasets[{index}].size", "an ephemeral volume, created by download")


def _by_engine(request: Request) -> Iterator[tuple[str, Need]]:
    """Needs that are an engine's."""
    operated = request.engine in (*KINDS, "mpijob")  # their run policy has a timeout of its own
    yield ("scheduling.gang_timeout_s", GANG if operated else PLUGIN)
    if request.engine == "mpijob" and not request.managed:
        yield from (("mpi.implementation", V2), ("mpi.ssh_folder", V2))
    if request.engine in ("trainjob", "volcano"):
        parts = ("slots_per_node", "launcher_cpu", "launcher_memory")
        yield from ((f"mpi.{part}", MPI) for part in parts)
    if request.engine != "volcano":
        volcano: Need = ("scheduling.gang: volcano", lambda j: j.scheduling.gang == "volcano")
        gang: Need = ("a gang that supports it: native or volcano", _knows_topology)
        yield from (("scheduling.queue", volcano), ("scheduling.topology", gang))
    if not request.managed:
        several: Need = ("framework: pytorch, paddle or mpi", _has_workers)
        port: Need = ("a framework with a rendezvous", lambda j: j.trains_with != "command")
        yield from (("workers_per_node", several), ("network.ports.rendezvous", port))


def _knows_topology(job: Job) -> bool:
    return job.scheduling.gang in ("native", "volcano")


def _has_workers(job: Job) -> bool:
    """Whether something starts several workers; for one of them nothing has to."""
    starts = job.trains_with in ("pytorch", "paddle", "mpi") and job.command is None
    return starts or job.workers_per_node == 1 or job.trains_with == "mpi"


def _idle(path: str, needed: str) -> Error:
    return Error(
        "setting-idle",
        f"{path} would have no effect",
        why=f"it requires {needed}",
        help=f"add that, or remove {path}",
    )
