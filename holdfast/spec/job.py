"""The job description: one model for laptop and cluster.

Validated by pydantic, frozen once built. Keys are accepted only when they do something; anything
else is an error, because a setting that is silently ignored is worse than one that is missing.
What a laptop has no use for (image, resources, network, ...) stands in sections of its own, which
`holdfast run` leaves alone, so that one file serves both.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from holdfast.devices import DEVICES, DeviceRequest
from holdfast.spec.cluster import (
    Access,
    Cost,
    Disruption,
    Elasticity,
    Kubernetes,
    Lifetime,
    Metadata,
    Monitoring,
    Mpi,
    Roles,
    Schedule,
)
from holdfast.spec.clusters import ClusterChoice
from holdfast.spec.network import Network
from holdfast.spec.notify import Notify
from holdfast.spec.otlp import Otlp
from holdfast.spec.parallel import Parallel
from holdfast.spec.placement import Scheduling
from holdfast.spec.progress import ProgressPatterns
from holdfast.spec.ray import Ray
from holdfast.spec.replicas import ReplicaGroups
from holdfast.spec.resources import Image, Resources, Secret
from holdfast.spec.section import (
    NAME_PATTERN,
    Environment,
    Flag,
    Module,
    Numeric,
    Raw,
    Script,
    Seconds,
    Section,
    Whole,
)
from holdfast.spec.spares import arithmetic, spares_by_default
from holdfast.spec.storage import Checkpoints, Dataset
from holdfast.spec.sweep import Sweep

Framework = Literal["pytorch", "tensorflow", "jax", "xgboost", "paddle", "mpi", "command"]


class Nodes(Section):
    """How many nodes train and how many wait. A plain number is short for `count`."""

    count: Whole = Field(default=1, ge=1, le=100_000)
    """Nodes that train."""
    spares: Annotated[Whole, Field(ge=0, le=10_000)] | Literal["auto"] = 0
    """Warm standby nodes that replace lost nodes. `auto`: as many as cover, with a probability of
    99.9 %, the nodes that fail until a lost one is replaced; `holdfast validate` shows the
    calculation."""

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: object) -> object:
        return value if isinstance(value, (dict, cls)) else {"count": value}

    @property
    def spare_count(self) -> int:
        """Warm standby nodes, counted."""
        return spares_by_default(self.count) if self.spares == "auto" else self.spares

    @property
    def spares_why(self) -> str:
        """Why there are so many, if nobody has said a number."""
        return arithmetic(self.count) if self.spares == "auto" else ""


class Warm(Section):
    """Processes kept ready for the next attempt, so that a restart does not pay for imports."""

    mode: Literal["auto", "script", "imports", "off"] = "auto"
    """`script` runs everything above `join()` ahead of time; `imports` only imports modules; `auto`
    selects `script` if the script calls `join()` of `holdfast.train`, otherwise `imports`; `off`
    disables warm workers."""
    preload: tuple[str, ...] = ()
    """Modules to import ahead of time, in addition to those of the framework."""
    preload_imports: Flag = True
    """Also import ahead of time what the script imports at its top, above its first statement that
    is not an import or a definition. Only installed packages are imported, not your own code."""


class Snapshots(Section):
    """Copies of the training state in shared memory, which outlive the worker."""

    every_steps: Annotated[Whole, Field(ge=1)] | Literal["auto"] = "auto"
    """Steps between two snapshots. `auto`: every step if that costs less than `max_overhead`,
    otherwise as few steps apart as `max_overhead` allows."""
    max_overhead: Annotated[float, Field(gt=0, le=1), Numeric] = 0.01
    """Fraction of the step time that `auto` may spend on snapshots, counting both blocking time and
    the slowdown of steps during an asynchronous copy."""
    copies: Whole = Field(default=1, ge=0, le=3)
    """Number of other nodes that keep a copy of state that only one rank has. That many nodes may
    be lost at once."""
    beside: Flag = True
    """Copy state that only the optimizer changes during the next forward and backward pass, so that
    training does not wait. A change that is not made by a tracked optimizer is detected."""


CloudNotices = Literal["auto", "off", "aws", "gcp", "azure"]
RESTARTS = 20  # where the job names no number


class Recovery(Section):
    """When to restart, how long to wait, when to give up."""

    max_restarts: Annotated[Whole, Field(ge=0, le=1_000_000)] | None = None
    """Restarts allowed within `window_s`, and in a row without progress however long they take; one
    more ends the job. A number is applied strictly: that many restarts, also for errors of the
    script; but what several nodes, or the only one, cannot import or compile before the first step
    is tried for a minute. Without a number, 20 restarts are allowed, an error of the script that
    repeats at the same place ends the job the second time, and errors of the environment (network,
    storage) are retried until they have lasted for `window_s`."""
    window_s: Seconds = 3600.0
    """Length of the sliding window in which restarts are counted."""
    heartbeat_timeout_s: Seconds = 5.0
    """A node without a heartbeat for this long is lost; after two fifths of it if its machine sends
    no TCP acknowledgements, or nothing answers once its connection has ended, while other nodes are
    heard from."""
    restart_grace_s: Seconds = 2.0
    """Between SIGTERM and SIGKILL when workers are stopped to be restarted."""
    stop_grace_s: Seconds = 15.0
    """Between SIGTERM and SIGKILL when the job is asked to stop; pods get at least 30 s."""
    node_wait_s: Seconds = 600.0
    """How long to wait for missing nodes before giving up."""
    hangs: Literal["auto", "off"] = "auto"
    """Whether workers that make no progress are examined, and restarted if they hang. A script that
    does not report its steps is watched by those of its optimizer, or printed ones; where none are
    seen, by output, processors, reads and writes: it is told as idle, and restarted if it hangs."""
    hang_timeout_s: Seconds = 600.0
    """Workers of a script that reports its steps count as hung without progress for this long,
    whatever they do; blocked and idle ones count as hung long before. Must exceed the longest
    evaluation or save of the script. Where steps are only seen, workers that work are not taken for
    hung without `step_timeout_s`. Where no step is seen, as in a script that only sleeps, they are
    after this long only if nothing but they themselves could wake them, or others wait for them in
    a collective."""
    step_timeout_s: Seconds | None = None
    """Maximum duration of a step, including the wait for its data, in a script that marks all
    else that takes long by `with run.section(...)`: a rank that computes or waits longer counts as
    hung, unless it compiles. In a script that does not report its steps: time from a step of its
    optimizer, or a printed one, to the next or to the end of the script, so it must exceed its
    longest evaluation, save, and what it does after the last step. Where no steps are seen: time in
    which no worker prints, computes, reads or writes, 120 s at least. Default: up to a minute, as
    it may be an evaluation; in such scripts unlimited. Not with `hangs: off`."""
    stragglers: Literal["tell", "replace", "off"] = "tell"
    """What to do when all ranks wait for the same one, step after step: `tell` reports it and what
    explains it; `replace` also replaces its node by a spare, unless its input or its share of the
    work explains it; `off` disables detection."""
    controller_absence_s: Seconds = 86_400.0
    """How long agents continue without a controller before they exit."""
    on_nan: Literal["restart", "stop", "ignore"] = "restart"
    """What to do when the loss is NaN or infinite (or 20 gradient norms in a row are, or, in a
    script without `holdfast.train`, gradients make parameters NaN or infinite): `restart` from a
    snapshot taken before and, if it recurs, once from an older checkpoint, then the job ends as
    failed; `stop` ends it immediately; `ignore` continues and only notes it."""
    skip_batches: Whole = Field(default=0, ge=0, le=100_000_000)
    """Total number of batches that the job may skip. If numbers are not finite at the same step
    again after going back, the batches from the restored step to the bad one are skipped; if that
    is more than allowed, the last of them. `0`: none. Needs a loader in `run.track()` of
    `holdfast.train`; not with `elasticity.batch: scale_lr`."""
    plateau_steps: Whole = Field(default=0, ge=0, le=100_000_000)
    """If the loss has not fallen by `plateau_share` within this many steps, `holdfast status` and
    `holdfast why` note it; nothing else is done. Set it to several minutes of steps or more: the
    loss is sampled a few times a second. `0` disables this."""
    plateau_share: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False), Numeric] = 0.01
    """Share of the loss that it has to fall by within `plateau_steps`."""
    mode: Literal["auto", "processes", "in_process", "replicas"] = "auto"
    """What happens to the surviving workers when another one fails: `processes` replaces them all
    by warm ones; `in_process` keeps their processes if their process groups allow it: they discard
    the step, recreate their groups and resume from the last snapshot. Those that do not within
    1.5 steps, `restart_grace_s` at least, are replaced; so are all if a step takes more than 10 s
    and more than new processes and `restart_grace_s`. `auto`: `in_process` if the script declares
    `holdfast.train.join(in_process=True)`, otherwise `processes`. `replicas` keeps them also when
    the number of nodes changes: each node is a replica of the model (or several nodes are, see
    `replicas`), the others continue immediately without a lost one, which rejoins when it is ready.
    Requires `elasticity`."""
    replicas: ReplicaGroups | None = None
    """Nodes of a replica, and outer steps. Requires `mode: replicas`."""
    check: Literal["auto", "off", "spares", "quick"] = "auto"
    """Checks of machines, some seconds long, as by `holdfast check --quick`; one that fails is
    replaced. `spares`: of each spare, once the job trains; until it has passed it does not count as
    one. `quick`: of every new node, before it may train or wait. With both, machines are also
    checked when consecutive attempts make no progress for an unknown reason. `auto`: `spares` on
    Kubernetes, `off` where all nodes are on this machine."""
    cloud_notices: CloudNotices = "auto"
    """Whose metadata service each agent asks, every 3 s, whether its machine is about to be taken
    away: `aws` (spot interruptions, scheduled events), `gcp` (preemption, host maintenance) or
    `azure` (scheduled events). A notice starts a hand-over to a spare. `auto`: the cloud that the
    firmware (DMI) names, and `off` where it names none of them or all nodes are on this machine."""
    group_tests: Literal["auto", "off"] = "auto"
    """Whether groups of nodes repeat a step, to find a node that fails only in a group: when
    consecutive attempts make no progress, the loss is not finite again, or the third hang or
    corruption within `window_s` identifies no node. `auto`: for scripts that call
    `holdfast.train.join()`, if a spare is available, and once per `window_s` if no node is found;
    training is paused meanwhile. `off`: only `holdfast replay --isolate` does that."""
    check_replicas_every: Whole = Field(default=0, ge=0, le=1_000_000)
    """Steps between two comparisons, bit for bit, of the parameters that data-parallel ranks hold
    alike, to find silent data corruption; each snapshot is compared, too. If they differ, the job
    goes back to the last step at which they were equal. `0` disables this."""
    update_trial_steps: Whole = Field(default=100, ge=0, le=100_000_000)
    """Steps after `holdfast update` within which a failure that new code may have caused, or a loss
    far above the usual, reverts to the previous version. For a script that reports no steps, the
    first minute counts. `0` disables this."""
    mttf_h: Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False), Numeric] | None = None
    """Mean time between failures of the whole job in hours, for `every_s: auto` of checkpoints.
    Default: one failure a day is assumed."""

    @model_validator(mode="after")
    def _somebody_looks(self) -> Self:
        if self.hangs == "off" and self.step_timeout_s is not None:
            raise ValueError("step_timeout_s has no effect with hangs: off; remove one of them")
        return self

    @property
    def keeps_processes(self) -> bool:
        """Whether workers that live may go on in the next attempt, those that can."""
        return self.mode != "processes"

    @property
    def nodes_each(self) -> int:
        """Nodes that train together or not at all."""
        return self.replicas.nodes_each if self.replicas is not None else 1

    @property
    def restarts(self) -> int:
        """Restarts allowed within `window_s`."""
        return RESTARTS if self.max_restarts is None else self.max_restarts


class Logs(Section):
    """What happens to the output of the workers."""

    terminal: Literal["all", "rank0", "none"] = "all"
    """Ranks whose output a foreground `run` shows, each line with its rank."""
    max_bytes: Whole = Field(default=64 * 1024 * 1024, ge=64 * 1024)
    """Size at which a worker's log file is rotated; one older part is kept."""


class Job(Section):
    """A training job: what to run, on how many nodes, and how to keep it going."""

    name: str = Field(min_length=1, max_length=50, pattern=NAME_PATTERN)
    """Name of the job: lower-case letters, digits and dashes."""
    script: Script | None = None
    """Python file to run. Exactly one of `script`, `module` and `command` is required."""
    module: Module | None = None
    """Python module to run, as with `python -m`."""
    command: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Any program and its first arguments."""
    args: tuple[str, ...] = ()
    """Arguments for the script, module or command."""
    env: Environment = {}
    """Environment variables for the workers."""
    workdir: str = "."
    """Working directory of the workers, relative to the folder of the job file."""
    code: str | None = None
    """Folder with the code, relative to the job file, that is shipped to every node of a cluster.
    `script` and `workdir` are then relative to it, also in a local run."""
    framework: Framework | None = None
    """How the workers of an attempt find each other, and what their environment contains for it.
    `pytorch`: a rendezvous store, and torch is preloaded; `jax`: coordinator, process id and count;
    `tensorflow`: TF_CONFIG; `xgboost`: a tracker; `paddle`: the variables of its launcher; `mpi`:
    the program is started by `mpirun`, one rank for each worker; `command`: any other program.
    Default: `pytorch` for `script` and `module`, `command` for `command`."""
    nodes: Nodes = Nodes()
    """Number of nodes and spares."""
    workers_per_node: Annotated[Whole, Field(ge=1, le=1024)] | Literal["auto"] = "auto"
    """Worker processes per node. `auto`: one per GPU, or one where there is none."""
    device: DeviceRequest = "auto"
    """What the workers compute on. `auto`: what the machine has. `cuda`: NVIDIA; `rocm`: AMD;
    `xpu`: Intel; `tpu`: Google, with `framework: jax`; `cpu`: no accelerator, although there may
    be one. It chooses how devices are counted, the resource on Kubernetes, and the backend."""
    parallel: Parallel | None = None
    """How the ranks divide model and data. Default: all do the same with other samples (DDP)."""
    warm: Warm = Warm()
    """Warm worker processes for the next attempt."""
    instrument: Literal["auto", "off"] = "auto"
    """`auto` counts the steps of PyTorch optimizers in a script or module that does not use
    `holdfast.train`, by a hook of PyTorch, to show its progress, and checks their gradients for
    NaN; `off` does not."""
    integrate: Literal["auto", "off"] = "auto"
    """`auto` keeps the state of a script that does not use `holdfast.train` but runs a trainer that
    Holdfast knows (Trainer of Hugging Face, of Lightning), as the integration for that trainer
    does; `off` leaves it to its own checkpoints."""
    progress: ProgressPatterns | None = None
    """Where the step and the loss of a script that does not use `holdfast.train` are read: patterns
    for its output, or a file."""
    snapshots: Snapshots = Snapshots()
    """Memory snapshots."""
    recovery: Recovery = Recovery()
    """Restart limits and grace times."""
    logs: Logs = Logs()
    """Output of the workers."""
    monitoring: Monitoring = Monitoring()
    """Prometheus."""
    cost: Cost | None = None
    """Prices."""
    track: tuple[Literal["tensorboard", "wandb", "mlflow", "trackio"], ...] = ()
    """Experiment trackers that get the metrics of all attempts as one run; their packages have to
    be installed where the workers run, and their own variables apply."""
    notify: tuple[Notify, ...] = Field(default=(), max_length=20)
    """Notifications about incidents and the end of the job."""
    otlp: Otlp | None = None
    """OpenTelemetry: traces of incidents, and the log of the controller."""

    # ── what follows describes the job on a cluster; a laptop has no use for it ──

    kubernetes: Kubernetes = Kubernetes()
    """Engine and mode on Kubernetes."""
    image: Image | None = None
    """Container image; required on Kubernetes. A string is short for `name`."""
    secrets: tuple[Secret, ...] = ()
    """Kubernetes Secrets as variables or files."""
    resources: Resources = Resources()
    """Resources that each node requests."""
    network: Network = Network()
    """Network of the nodes."""
    datasets: tuple[Dataset, ...] = ()
    """Folders with data."""
    checkpoints: Checkpoints = Checkpoints()
    """Locations for durable checkpoints."""
    scheduling: Scheduling = Scheduling()
    """Where nodes may run."""
    lifetime: Lifetime = Lifetime()
    """Time limits."""
    schedule: Schedule | None = None
    """Times at which a `cronjob` submits the job."""
    elasticity: Elasticity | None = None
    """Elastic number of nodes."""
    roles: Roles = Roles()
    """Processes in addition to the workers."""
    mpi: Mpi = Mpi()
    """Settings of an MPIJob."""
    ray: Ray = Ray()
    """Where nodes go in a Ray cluster."""
    sweep: Sweep | None = None
    """Independent trials instead of one training."""
    metadata: Metadata = Metadata()
    """Labels and annotations."""
    access: Access = Access()
    """Service account and rights."""
    disruption: Disruption = Disruption()
    """PodDisruptionBudget."""
    clusters: tuple[ClusterChoice, ...] = Field(default=(), max_length=16)
    """Clusters that may run the job, in the order in which `holdfast submit` tries them; `holdfast
    federate` also moves it. More than one requires `checkpoints.archive`, from which the job
    continues."""
    overlay: Raw = {}
    """Strategic merge patch for every pod template, including the controller's, for settings that
    have no key of their own. The container `main` stands for the main container of each pod, `*`
    for every container."""

    @model_validator(mode="after")
    def _one_program(self) -> Self:
        given = [k for k in ("script", "module", "command") if getattr(self, k) is not None]
        if len(given) != 1:
            found = " and ".join(given) if given else "none"
            raise ValueError(f"give exactly one of script, module and command (found {found})")
        return self

    @model_validator(mode="after")
    def _device_is_usable(self) -> Self:
        if self.device == "tpu" and self.trains_with == "pytorch":
            raise ValueError(
                "device: tpu requires framework: jax, or command for a script that sets up "
                "torch_xla by itself: holdfast.train does not support torch_xla"
            )
        if self.device == "cpu" and self.resources.gpus:
            raise ValueError("device: cpu and resources.gpus are mutually exclusive")
        return self

    @model_validator(mode="after")
    def _may_move(self) -> Self:
        places = [(choice.context, choice.namespace) for choice in self.clusters]
        if len(set(places)) < len(places):
            raise ValueError("clusters: duplicate entry")
        if len(places) > 1 and self.checkpoints.archive is None:
            raise ValueError(
                "clusters: a job with several clusters requires checkpoints.archive, from which "
                "it continues"
            )
        return self

    @model_validator(mode="after")
    def _replicas_may_be_missing(self) -> Self:
        groups, elastic = self.recovery.replicas, self.elasticity
        if self.recovery.mode != "replicas":
            if groups is not None:
                raise ValueError("recovery.replicas requires recovery.mode: replicas")
            return self
        fewest = elastic.min_nodes if elastic is not None else self.nodes.count
        if fewest >= self.nodes.count:
            raise ValueError(
                "recovery.mode: replicas requires elasticity.min_nodes below nodes.count: the "
                "number of nodes with which training may continue"
            )
        most = elastic.max_nodes if elastic is not None else None
        counts = {
            "nodes.count": self.nodes.count,
            "elasticity.min_nodes": fewest,
            "elasticity.max_nodes": most,
        }
        workers = None if self.workers_per_node == "auto" else self.workers_per_node
        check_every = self.recovery.check_replicas_every
        if groups and (why := groups.misfit(counts, workers, self.parallel, check_every)):
            raise ValueError(why)
        return self

    @model_validator(mode="after")
    def _batches_stay_the_same(self) -> Self:
        elastic = self.elasticity
        if self.recovery.skip_batches and elastic is not None and elastic.batch == "scale_lr":
            raise ValueError(
                "recovery.skip_batches requires elasticity.batch: keep_global_batch: with scale_lr "
                "a batch of the same number consists of other samples at another number of nodes"
            )
        return self

    @model_validator(mode="after")
    def _layout_fits(self) -> Self:
        if self.workers_per_node != "auto" and (why := self.misfit(self.workers_per_node)):
            raise ValueError(f"parallel: {why}")
        return self

    def misfit(self, workers: int) -> str:
        """Why the layout does not fit nodes with so many workers each; empty if it does."""
        if self.parallel is None:
            return ""
        fewest = most = self.nodes.count
        if self.elasticity is not None:
            fewest, most = self.elasticity.min_nodes, self.elasticity.max_nodes or most
        unit = self.recovery.nodes_each
        for nodes in sorted({fewest, min(fewest + unit, most), self.nodes.count, most}):
            try:
                self.parallel.layout.resolve(nodes * workers)
            except ValueError as error:
                size = "1 node" if nodes == 1 else f"{nodes} nodes"
                return f"{error} ({size} with {workers} workers each)"
        return ""

    @property
    def trains_with(self) -> Framework:
        """The framework, said or guessed."""
        return self.framework or ("command" if self.command is not None else "pytorch")

    @property
    def gpu_resource(self) -> str:
        """Name of the resource that `resources.gpus` counts."""
        usual = (
            DEVICES["cuda"].resources if self.device == "auto" else DEVICES[self.device].resources
        )
        return self.resources.gpu_resource or (usual or DEVICES["cuda"].resources)[0]

    @property
    def uses_torch(self) -> bool:
        """Whether workers get a torch rendezvous store and torch preloaded."""
        return self.trains_with == "pytorch"
