"""Where the nodes of a job may run, in which order, and together with whom."""

from typing import Literal

from pydantic import Field

from holdfast.spec.section import Flag, LongSeconds, Object, Raw, Section, Whole


class Spread(Section):
    """Spread the nodes evenly over the values of a machine's label."""

    key: str = Field(min_length=1)
    """Label of the machines, as in `topology.kubernetes.io/zone`."""
    max_skew: Whole = Field(default=1, ge=1)
    """Largest difference between two values."""
    required: Flag = False
    """Rather wait than break it."""


class Kueue(Section):
    """Admission by Kueue."""

    queue: Object
    """LocalQueue."""
    priority: Object | None = None
    """WorkloadPriorityClass: the order in the queue."""
    spare_priority: Object | None = None
    """WorkloadPriorityClass of the spares, where they are a workload of their own."""
    topology: str | None = None
    """Label of the topology level, as in `rack`, that should hold the job."""
    topology_required: Flag = False
    """Rather wait than be split."""
    partial: Flag = False
    """Start with fewer spares when the quota does not allow for all of them."""
    max_time_s: LongSeconds | None = None
    """Longest time in admission."""
    multi: Flag = False
    """MultiKueue: the cluster that runs the job is chosen by the manager cluster."""


class Scheduling(Section):
    """Where nodes may run."""

    node_selector: dict[str, str] = {}
    """Labels that a machine must have."""
    tolerations: tuple[Raw, ...] = ()
    """Tolerations as Kubernetes takes them. Those for GPUs and for a quick leave of dead machines
    are there anyway."""
    affinity: Raw = {}
    """Affinity as Kubernetes takes it."""
    separate: str | None = None
    """Label of the machines, as in `topology.kubernetes.io/rack`: no two nodes with the same."""
    one_per_machine: Flag | Literal["auto"] = "auto"
    """No two nodes of the job on one machine. `auto`: where they use the host's network."""
    spread: tuple[Spread, ...] = ()
    """Even spreading over zones, racks or machines."""
    priority_class: Object | None = None
    """PriorityClass of the nodes."""
    preemption: Literal["PreemptLowerPriority", "Never"] | None = None
    """Whether the nodes may push out others."""
    spare_priority_class: Object | None = None
    """PriorityClass of the spares, so that they are the first to go."""
    scheduler: Object | None = None
    """Name of another scheduler."""
    gang: Literal["none", "native", "volcano", "coscheduling"] = "none"
    """All nodes (without the spares) start together or none does: by Kubernetes' own PodGroups, by
    Volcano or by the coscheduling plugin."""
    gang_timeout_s: LongSeconds = 600
    """How long the gang may wait half-placed."""
    queue: Object | None = None
    """Queue of Volcano."""
    topology: str | None = None
    """Keep the gang within one value of this label of the machines, as in `rack`; with Volcano:
    within one hyper node of the tier of this name."""
    kueue: Kueue | None = None
    """Admission by Kueue."""
