"""What is to be rendered: a job, for one engine, in one mode, for one version of Kubernetes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # who only reads objects of a cluster, as `stop` does, is spared half a second
    from holdfast.spec import Job
    from holdfast.spec.cluster import Engine, Mode

Body = dict[str, Any]
"""A Kubernetes object or a part of one, as plain data. Its key order is that of the output."""

OLDEST, NEWEST = (1, 31), (1, 37)
"""Minor versions of Kubernetes that can be asked for."""


@dataclass(frozen=True)
class Request:
    """One rendering. `namespace` None: no object names one."""

    job: "Job"
    engine: "Engine"
    mode: "Mode"
    namespace: str | None = None
    version: tuple[int, int] = NEWEST
    code: bytes = b""  # what `code` names, as tar.gz
    code_name: str = ""  # name of a ConfigMap that has it already

    @property
    def managed(self) -> bool:
        """Whether the pods run Holdfast's agents."""
        return self.mode == "managed"

    @property
    def name(self) -> str:
        """Name of the job: of its main object, its Service and its label."""
        return self.job.name

    @property
    def nodes(self) -> int:
        """Nodes that train."""
        return self.job.nodes.count

    @property
    def spares(self) -> int:
        """Nodes that wait; only agents can wait."""
        return self.job.nodes.spare_count if self.managed else 0

    @property
    def pods(self) -> int:
        """Pods that run nodes."""
        return self.nodes + self.spares

    @property
    def workers(self) -> int:
        """Workers of each node: as said, or one per GPU, or one."""
        said = self.job.workers_per_node
        return said if isinstance(said, int) else max(1, gpus(self.job))


def gpus(job: "Job") -> int:
    """GPUs of a node, counted or claimed."""
    return job.resources.gpus or sum(
        c.count for c in job.resources.claims if c.device_class and "gpu" in c.device_class
    )
