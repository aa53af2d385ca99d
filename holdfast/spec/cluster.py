"""How a job lives on a cluster: engine, life time, rights, monitoring, the engines' own keys."""

from typing import Annotated, Literal, get_args

from pydantic import Field

from holdfast.spec.section import (
    Flag,
    Folder,
    LongSeconds,
    Numeric,
    Object,
    Quantity,
    Section,
    Whole,
)

Engine = Literal[
    "pods",
    "job",
    "cronjob",
    "jobset",
    "pytorchjob",
    "tfjob",
    "jaxjob",
    "xgboostjob",
    "paddlejob",
    "mpijob",
    "rayjob",
    "trainjob",
    "volcano",
]
ENGINES: tuple[Engine, ...] = get_args(Engine)
Mode = Literal["managed", "plain"]

FATAL = 113  # exit status of an agent whose job is not to be tried again
FATAL_BELOW_128 = 13  # the same, for operators that try again after any status from 128 on
BELOW_128 = frozenset(("pytorchjob", "tfjob", "jaxjob", "xgboostjob", "paddlejob"))


def fatal_status(engine: str) -> int:
    """The exit status by which an agent tells this engine to give up."""
    return FATAL_BELOW_128 if engine in BELOW_128 else FATAL


class JournalClaim(Section):
    """A volume for the controller's journal. With it a job goes on even if its controller and all
    of its agents are lost at once; a former job's journal stays there, in a folder of its own."""

    pvc: Object
    """Name of the PersistentVolumeClaim; several jobs may share one."""
    storage_class: Object | None = None
    """StorageClass; if set, the claim is part of the manifests."""
    size: Quantity = "1Gi"
    """Size of a claim that is part of the manifests."""
    access_mode: Literal["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"] = "ReadWriteOnce"
    """Access mode of a claim that is part of the manifests. With ReadWriteMany a new controller can
    start immediately when the machine of the previous one has failed."""


class Kubernetes(Section):
    """The engine that supplies the nodes; options of the command line come first."""

    engine: Engine = "pods"
    """The engine that creates the pods."""
    mode: Mode = "managed"
    """`managed`: pods run Holdfast's agents, and Holdfast handles recovery. `plain`: the engine's
    native manifests, for images without Holdfast."""
    namespace: Object | None = None
    """Namespace. Default: the namespace that the manifests are applied to."""
    controller_image: Annotated[str, Field(min_length=1, pattern=r"^\S+$")] | None = None
    """Image of the controller. Default: the image of the nodes. An image without torch is smaller.
    """
    journal: JournalClaim | None = None
    """Where the controller writes its journal. Default: an ephemeral volume of its pod, with copies
    in the memory of agents."""
    mpi_version: Literal["v2beta1", "v1"] = "v2beta1"
    """Version of MPIJob that the cluster serves: the mpi-operator's or the training-operator's."""
    elastic_jobset: Flag = False
    """The JobSet controller of the cluster has its alpha feature gate `ElasticJobSet` enabled
    (JobSet 0.12 or newer): the JobSet of an elastic job is then resized."""


class Lifetime(Section):
    """How long a job may run and how long its remains are kept."""

    time_limit_s: LongSeconds | None = None
    """Time limit of the job, counted from its start. A plain JobSet supports it only without
    restarts, because each restart resets it."""
    keep_s: LongSeconds | None = None
    """Time from the end of the job until Kubernetes deletes it."""
    suspend: Flag = False
    """Create it without starting it."""


class Schedule(Section):
    """When a `cronjob` submits the job."""

    cron: str = Field(pattern=r"^(\S+ ){4}\S+$|^@(hourly|daily|weekly|monthly|yearly)$")
    """Cron schedule: five fields, or a macro such as `@daily`."""
    time_zone: str | None = None
    """Time zone of the schedule, as in `Europe/Oslo`. Default: the time zone of
    kube-controller-manager."""
    overlap: Literal["Forbid", "Allow", "Replace"] = "Forbid"
    """What to do when the previous run is still active."""
    late_s: LongSeconds = 3600
    """A start that is delayed by more than this is skipped."""
    keep_succeeded: Whole = Field(default=3, ge=0, le=100)
    """Number of finished jobs to keep."""
    keep_failed: Whole = Field(default=3, ge=0, le=100)
    """Number of failed jobs to keep."""


class Elasticity(Section):
    """Fewer or more nodes than `nodes.count`: fewer when nodes are lost and none come in time, more
    when `holdfast scale` asks for them."""

    min_nodes: Whole = Field(ge=1, le=100_000)
    """Minimum number of training nodes."""
    max_nodes: Whole | None = Field(default=None, ge=1, le=100_000)
    """Maximum number of training nodes. Default: `nodes.count`."""
    batch: Literal["keep_global_batch", "scale_lr"] = "keep_global_batch"
    """What another number of nodes means. `keep_global_batch`: the samples of an optimizer step
    stay the same and are dealt out again. `scale_lr`: those of a rank stay the same, and
    `run.lr_scale` grows and shrinks with the number of ranks."""
    warmup_steps: Whole = Field(default=0, ge=0, le=1_000_000)
    """With `scale_lr`: steps over which `run.lr_scale` goes from the old value to the new one."""


class Roles(Section):
    """Roles of TensorFlow's processes: on this machine and, in plain mode, as a TFJob."""

    chief: Flag = False
    """One node of `nodes.count` is the chief (TensorFlow) instead of worker 0."""
    ps: Whole = Field(default=0, ge=0, le=1000)
    """Parameter servers (TensorFlow)."""
    evaluator: Flag = False
    """An evaluator next to the training (TensorFlow)."""
    cpu: Quantity | None = None
    """CPU cores of each of them."""
    memory: Quantity | None = None
    """Memory of each of them."""


class Mpi(Section):
    """Settings of `mpirun`, and of an MPIJob."""

    slots_per_node: Annotated[Whole, Field(ge=1, le=1024)] | Literal["auto"] = "auto"
    """Ranks on each node. `auto`: `workers_per_node`, or one per GPU."""
    implementation: Literal["OpenMPI", "Intel", "MPICH"] = "OpenMPI"
    """MPI implementation in the image."""
    options: tuple[str, ...] = ()
    """Options of `mpirun`, before the program."""
    ssh_folder: Folder | None = None
    """Where the engine mounts the SSH keys: `.ssh` in the home directory of the image's user.
    Default: the home of root, or with `image.root: false` the home of `mpiuser`, Kubeflow's
    user."""
    launcher_cpu: Quantity = "1"
    """CPU of the launcher."""
    launcher_memory: Quantity = "2Gi"
    """Memory of the launcher."""


class Metadata(Section):
    """Labels and annotations of every object and pod."""

    labels: dict[str, str] = {}
    """Labels."""
    annotations: dict[str, str] = {}
    """Annotations."""


class Access(Section):
    """In whose name pods and controller act."""

    service_account: Object | None = None
    """An existing ServiceAccount for the pods. Default: one is created, without permissions."""
    annotations: dict[str, str] = {}
    """Annotations of the created ServiceAccount, as cloud providers use them for workload identity.
    """
    cordon: Flag = False
    """The controller may taint machines that it has moved away from, and notes there what they did
    to the job. Requires a ClusterRole for nodes."""
    cordon_share: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), Numeric] = 0.1
    """Maximum share of the cluster's machines, but at least one, that all jobs together may cordon
    at a time. `0`: none."""


class Disruption(Section):
    """How much of a job may be taken away at once by drains."""

    budget: Flag = True
    """A PodDisruptionBudget."""
    max_unavailable: Whole | None = Field(default=None, ge=0)
    """Number of pods. Default: the number of spares, at least 1."""


class Cost(Section):
    """Prices, for metrics of cost. In whatever currency."""

    gpu_hour: Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False), Numeric]
    """Price of one GPU for an hour; without GPUs, of one worker."""


class Monitoring(Section):
    """Prometheus: where it scrapes, and objects of its operator."""

    port: Annotated[Whole, Field(ge=0, le=65_535)] | None = None
    """Port of a local job's metrics, on the loopback interface: `/metrics` for the controller,
    `/targets` for the controller and all agents, as Prometheus' `http_sd_configs` reads it. `0`: a
    free port, which `holdfast status` shows. Default: none. On Kubernetes the ports are always
    open: `metrics` (7072) of the controller, `agent` of the nodes."""
    enabled: Flag = False
    """A PodMonitor for the nodes, a ServiceMonitor for the controller, a PrometheusRule."""
    labels: dict[str, str] = {}
    """Labels that the Prometheus instance selects, as in `release: prometheus`."""
    interval_s: Whole = Field(default=15, ge=1, le=3600)
    """Time between two scrapes."""
    profile_slowdown: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False), Numeric] = 0.0
    """If steps take longer than they used to in this attempt by this share (`0.2`: a fifth; of a
    token, where tokens are logged), five of them are profiled and the result is noted, at most once
    in an attempt and once an hour; see `holdfast profile`. `0`: never."""
