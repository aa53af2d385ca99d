"""What a run on this machine makes of a job that was described for a cluster.

Sections for a cluster are left alone, so that one file serves both; they are named once, so that
nobody waits for a data set to appear. What only an operator can run is refused.
"""

from holdfast.errors import Error
from holdfast.spec.job import Job

CLUSTER = (
    "kubernetes", "image", "secrets", "resources", "network", "datasets", "checkpoints", "ray",
    "scheduling", "lifetime", "schedule", "roles", "mpi", "metadata", "access",
    "disruption", "monitoring", "clusters", "overlay",
)  # fmt: skip
"""Sections that a local run has no use for."""


def require_local(job: Job) -> None:
    """Raise `Error` with slug `cluster-only` if only a cluster can run the job."""
    if job.trains_with == "mpi" and job.mpi.implementation == "Intel":
        raise _only("mpi.implementation: Intel", "agents start OpenMPI and MPICH")
    require_bounds(job)


def with_roles(job: Job) -> Job:
    """The job with a node for each process that `roles` adds to those that train. Raises `Error`
    with slug `size-impossible` where a node has several workers."""
    beside = job.roles.ps + job.roles.evaluator if job.trains_with == "tensorflow" else 0
    if not beside:
        return job
    if job.workers_per_node != 1 or job.elasticity is not None:
        raise Error(
            "size-impossible",
            "roles.ps and roles.evaluator need nodes with one worker each, and a fixed number",
            why="a parameter server or evaluator is a node of its own",
            help="set workers_per_node: 1 and remove elasticity, or remove these roles",
        )
    nodes = job.nodes.model_copy(update={"count": job.nodes.count + beside})
    return job.model_copy(update={"nodes": nodes})


def require_bounds(job: Job) -> None:
    """Raise `Error` with slug `size-impossible` if the number of nodes is not within its bounds."""
    elastic, count = job.elasticity, job.nodes.count
    if elastic is None:
        return
    most = elastic.max_nodes if elastic.max_nodes is not None else count
    if not elastic.min_nodes <= count <= most:
        raise Error(
            "size-impossible",
            "elasticity: nodes.count is out of range",
            why=f"min_nodes {elastic.min_nodes} <= nodes.count {count} <= max_nodes {most} does "
            "not hold",
            help="change one of the three",
        )


def unused_sections(job: Job, *, on_ray: bool = False) -> list[str]:
    """Sections of the job that a local run leaves alone."""
    given = (name for name in CLUSTER if name in job.model_fields_set)
    unused = (name for name in given if getattr(job, name) != Job.model_fields[name].default)
    used = ["checkpoints"] if job.checkpoints.on_laptop(job.name) else []
    used += ["resources", "ray"] if on_ray else []
    used += ["monitoring"] if job.monitoring.port is not None else []
    used += ["datasets"] if any(one.source is not None for one in job.datasets) else []
    used += {"mpi": ["mpi"], "tensorflow": ["roles"]}.get(job.trains_with, [])
    return [name for name in unused if name not in used]


def _only(what: str, why: str) -> Error:
    return Error(
        "cluster-only",
        f"{what} runs on Kubernetes only",
        why=why,
        help="holdfast render job.yaml --mode plain   (prints its manifests)",
    )
