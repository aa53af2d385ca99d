"""What a run on this machine makes of a job that was described for a cluster.

Sections for a cluster are left alone, so that one file serves both; they are named once, so that
nobody waits for a data set to appear. What only an operator can run is refused.
"""

from holdfast.errors import Error
from holdfast.spec.job import Job

CLUSTER = (
    "kubernetes", "image", "secrets", "resources", "network", "datasets", "checkpoints",
    "scheduling", "lifetime", "schedule", "roles", "mpi", "metadata", "access",
    "disruption", "monitoring", "clusters", "overlay",
)  # fmt: skip
"""Sections that a local run has no use for."""


def require_local(job: Job) -> None:
    """Raise `Error` with slug `cluster-only` if only a cluster can run the job."""
    if job.sweep is not None:
        raise _only("a sweep", "its trials are the indexes of a Kubernetes Job")
    require_bounds(job)


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


def unused_sections(job: Job) -> list[str]:
    """Sections of the job that a local run leaves alone."""
    given = (name for name in CLUSTER if name in job.model_fields_set)
    unused = (name for name in given if getattr(job, name) != Job.model_fields[name].default)
    used = ["checkpoints"] if job.checkpoints.on_laptop(job.name) else []
    used += ["monitoring"] if job.monitoring.port is not None else []
    return [name for name in unused if name not in used]


def _only(what: str, why: str) -> Error:
    return Error(
        "cluster-only",
        f"{what} runs on Kubernetes only",
        why=why,
        help="holdfast render job.yaml --mode plain   (prints its manifests)",
    )
