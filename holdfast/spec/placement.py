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
    """Required (`DoNotSchedule`) instead of preferred."""


class Kueue(Section):
    """Admission by Kueue."""

    queue: Object
    """LocalQueue."""
    priority: Object | None = None
    """WorkloadPriorityClass: the order in the queue."""
    spare_priority: Object | None = None
    """WorkloadPriorityClass of the spares if they are a separate workload."""
    topology: str | None = None
    """Label of the topology level, as in `rack`, within which the job should be placed."""
    topology_required: Flag = False
    """Required instead of preferred."""
    partial: Flag = False
    """Start with fewer spares if the quota is insufficient for all of them, and with `elasticity`
    with fewer nodes, but for `min_nodes`."""
    max_time_s: LongSeconds | None = None
    """Maximum execution time after admission."""
    multi: Flag = False
    """MultiKueue: the manager cluster selects the cluster that runs the job."""


class Scheduling(Section):
    """Where nodes may run."""

    node_selector: dict[str, str] = {}
    """Labels that a machine must have."""
    tolerations: tuple[Raw, ...] = ()
    """Tolerations in Kubernetes syntax. Those for GPUs and for fast eviction from failed machines
    are always added."""
    affinity: Raw = {}
    """Affinity in Kubernetes syntax."""
    separate: str | None = None
    """Label of the machines, as in `topology.kubernetes.io/rack`: no two nodes share a value."""
    one_per_machine: Flag | Literal["auto"] = "auto"
    """No two nodes of the job on one machine. `auto`: if they use the host network."""
    spread: tuple[Spread, ...] = ()
    """Topology spread over zones, racks or machines."""
    priority_class: Object | None = None
    """PriorityClass of the nodes."""
    preemption: Literal["PreemptLowerPriority", "Never"] | None = None
    """Whether the nodes may preempt other pods."""
    spare_priority_class: Object | None = None
    """PriorityClass of the spares, so that they are preempted first."""
    replacement_priority_class: Object | None = None
    """PriorityClass of pods that replace lost nodes, so that they preempt other work and the job
    does not wait for free machines. With `preemption: Never` they only come first in the queue."""
    scheduler: Object | None = None
    """Name of another scheduler."""
    gang: Literal["none", "native", "volcano", "coscheduling"] = "none"
    """Gang scheduling: all nodes (without the spares) start together or none does, by native
    PodGroups of Kubernetes, Volcano or the coscheduling plugin."""
    gang_timeout_s: LongSeconds = 600
    """How long a partially placed gang may wait."""
    queue: Object | None = None
    """Volcano queue."""
    topology: str | None = None
    """Place the gang within one value of this machine label, as in `rack`; with Volcano: within one
    HyperNode of the tier of this name."""
    kueue: Kueue | None = None
    """Admission by Kueue."""
