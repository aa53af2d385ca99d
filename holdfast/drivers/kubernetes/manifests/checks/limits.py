"""Which engine honours which setting, in which mode: one table, read by the checks and by the docs.

What is not in the table is honoured everywhere. A managed CronJob hands the job file on to pods of
its own, so it honours what they do. An entry for a section stands for all that is in it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.drivers.kubernetes.manifests import gang, kueue
from holdfast.drivers.kubernetes.manifests.checks.given import given
from holdfast.drivers.kubernetes.manifests.request import Request
from holdfast.errors import Error
from holdfast.spec.cluster import ENGINES, Engine, Mode

Place = tuple[Engine, Mode]
MODES: tuple[Mode, ...] = ("managed", "plain")
EVERYWHERE: frozenset[Place] = frozenset((engine, mode) for engine in ENGINES for mode in MODES)


def managed(*engines: Engine) -> frozenset[Place]:
    """These engines in managed mode; none named: all."""
    return frozenset((engine, "managed") for engine in engines or ENGINES)


def plain(*engines: Engine) -> frozenset[Place]:
    """These engines in plain mode; none named: all."""
    return frozenset((engine, "plain") for engine in engines or ENGINES)


def both(*engines: Engine) -> frozenset[Place]:
    """These engines in both modes."""
    return managed(*engines) | plain(*engines)


@dataclass(frozen=True)
class Limit:
    """Where a setting is honoured, and why not elsewhere."""

    where: frozenset[Place]
    why: str


AGENTS = Limit(
    managed(), "it is for Holdfast's agents and controller, which plain mode does not have"
)
TENSORFLOW = Limit(plain("tfjob"), "only the operator of TFJob supports these roles")
TORCHRUN: tuple[Engine, ...] = ("pods", "job", "cronjob", "jobset", "pytorchjob")
ELASTIC = Limit(
    (managed() - managed("rayjob")) | plain(*TORCHRUN, "paddlejob"),
    "the processes that the engine starts there are not elastic; KubeRay disregards changes of the "
    "RayCluster of a RayJob",
)
SUBMITTED = Limit(both("cronjob"), "only a CronJob supports a schedule")
TRIALS = Limit(plain("job", "cronjob"), "trials are the indexes of a Job, without agents")
MPIRUN = Limit(plain("mpijob", "trainjob", "volcano"), "it does not run mpirun")
SPARES = Limit(
    managed() - managed("rayjob"),
    "agents wait as spares, which plain mode does not have; a RayJob submits nothing before every "
    "pod of its RayCluster is ready, so a spare without room would hold it back",
)
LAUNCHER = Limit(MPIRUN.where | managed("mpijob"), "it has no launcher")
HEAD = Limit(both("rayjob"), "only a RayCluster has a head")
KUEUE = frozenset((*kueue.RUN, "pods"))

LIMITS: dict[str, Limit] = {
    "nodes.spares": SPARES,
    "warm": AGENTS,
    "snapshots": AGENTS,
    "recovery.window_s": AGENTS,
    "recovery.heartbeat_timeout_s": AGENTS,
    "recovery.restart_grace_s": AGENTS,
    "recovery.node_wait_s": AGENTS,
    "recovery.controller_absence_s": AGENTS,
    "recovery.hangs": AGENTS,
    "recovery.hang_timeout_s": AGENTS,
    "recovery.step_timeout_s": AGENTS,
    "recovery.on_nan": AGENTS,
    "recovery.skip_batches": AGENTS,
    "recovery.group_tests": AGENTS,
    "recovery.stragglers": AGENTS,
    "recovery.plateau_steps": AGENTS,
    "recovery.plateau_share": AGENTS,
    "recovery.mode": AGENTS,
    "recovery.replicas": AGENTS,
    "recovery.check": AGENTS,
    "recovery.cloud_notices": AGENTS,
    "recovery.check_replicas_every": AGENTS,
    "recovery.update_trial_steps": AGENTS,
    "instrument": AGENTS,
    "integrate": AGENTS,
    "progress": AGENTS,
    "logs": AGENTS,
    "resources.state": AGENTS,
    "network.ports.agent": AGENTS,
    "network.ports.stores": AGENTS,
    "network.ports.storage": AGENTS,
    "recovery.mttf_h": AGENTS,
    "checkpoints.start_from": AGENTS,
    "checkpoints.fresh": AGENTS,
    "checkpoints.take_over": AGENTS,
    "checkpoints.local.every_s": AGENTS,
    "checkpoints.local.keep": AGENTS,
    "checkpoints.local.max_bytes_per_s": AGENTS,
    "checkpoints.shared.every_s": AGENTS,
    "checkpoints.shared.keep": AGENTS,
    "checkpoints.shared.max_bytes_per_s": AGENTS,
    "checkpoints.archive.every_s": AGENTS,
    "checkpoints.archive.golden_every_steps": AGENTS,
    "checkpoints.archive.keep": AGENTS,
    "checkpoints.archive.max_bytes_per_s": AGENTS,
    "network.ports.rendezvous": Limit(
        EVERYWHERE - managed() - plain("mpijob", "rayjob", "trainjob"),
        "agents, mpirun, Ray and Trainer choose their own ports",
    ),
    "kubernetes.controller_image": AGENTS,
    "kubernetes.journal": AGENTS,
    "kubernetes.elastic_jobset": Limit(
        managed("jobset"), "only JobSet has this feature gate, and only Holdfast resizes by it"
    ),
    "kubernetes.mpi_version": Limit(both("mpijob"), "only MPIJobs have these versions"),
    "access.cordon": AGENTS,
    "access.cordon_share": AGENTS,
    "monitoring": AGENTS,
    "cost": AGENTS,
    "notify": AGENTS,
    "otlp": AGENTS,
    "track": AGENTS,
    "clusters": AGENTS,
    "parallel": AGENTS,
    "elasticity": ELASTIC,
    "elasticity.max_nodes": Limit(
        managed("pods", "cronjob", "job", "jobset", "pytorchjob") | plain(*TORCHRUN, "paddlejob"),
        "the engine creates a fixed number of pods (the trainer of a TrainJob is immutable); "
        "Holdfast adds more with engines `pods`, `job` and `pytorchjob`",
    ),
    "elasticity.batch": AGENTS,
    "elasticity.warmup_steps": AGENTS,
    "roles": TENSORFLOW,
    "mpi.slots_per_node": MPIRUN,
    "mpi.implementation": Limit(
        managed() | plain("mpijob", "volcano"),
        "it does not run mpirun, or is Trainer, which supports OpenMPI only",
    ),
    "mpi.options": Limit(managed() | MPIRUN.where, "it does not run mpirun"),
    "mpi.ssh_folder": MPIRUN,
    "mpi.launcher_cpu": LAUNCHER,
    "mpi.launcher_memory": LAUNCHER,
    "ray.head_cpu": HEAD,
    "ray.head_memory": HEAD,
    "workers_per_node": Limit(
        EVERYWHERE - plain("rayjob"), "the script tells Ray how many workers to start"
    ),
    "schedule": SUBMITTED,
    "sweep": TRIALS,
    "lifetime.time_limit_s": Limit(EVERYWHERE - both("volcano"), "Volcano's jobs have no limit"),
    "lifetime.keep_s": Limit(
        EVERYWHERE - both("pods", "rayjob", "trainjob"),
        "Kubernetes has no TTL for pods and TrainJobs; that of a RayJob is of its RayCluster only",
    ),
    "lifetime.suspend": Limit(
        EVERYWHERE - both("volcano"), "Volcano jobs can be suspended by commands only"
    ),
    "scheduling.replacement_priority_class": Limit(
        managed("pods", "cronjob"),
        "the engine makes a replacement from the template of the pod that was lost; only pods "
        "that the controller makes can have another priority",
    ),
    "scheduling.spare_priority_class": Limit(
        managed("pods", "job", "cronjob", "jobset", "volcano"),
        "all pods of the engine have the same template, including spares",
    ),
    "scheduling.topology": Limit(
        EVERYWHERE - both("mpijob") - plain("cronjob"), "its gangs do not support topologies"
    ),
    "scheduling.kueue": Limit(both(*KUEUE), "Kueue does not support this kind"),
    "scheduling.kueue.partial": Limit(
        managed(*kueue.PARTIAL), "Kueue supports partial admission for batch Jobs only"
    ),
    "scheduling.kueue.spare_priority": Limit(
        managed(*kueue.APART, "cronjob"), "the spares are part of the same workload"
    ),
    "scheduling.kueue.multi": Limit(
        both(*kueue.RUN) - managed("cronjob"), "MultiKueue does not support pods"
    ),
}
"""Settings that not every engine honours in every mode."""


def honours(path: str, engine: Engine, mode: Mode) -> bool:
    """Whether this engine honours the setting at `path` in this mode."""
    steps = path.split(".")
    above = [".".join(steps[: end + 1]) for end in range(len(steps))]
    return all((engine, mode) in LIMITS[at].where for at in above if at in LIMITS)


def problems(request: Request) -> Iterator[Error]:
    """One problem for each setting that was given and cannot be honoured."""
    place = (request.engine, request.mode)
    for path, limit in LIMITS.items():
        if place not in limit.where and given(request.job, path) is not None:
            yield _unfit(request, path, limit)
    if not request.managed:
        for index, dataset in enumerate(request.job.datasets):
            if dataset.source is not None:
                yield _unfit(request, f"datasets[{index}].source", AGENTS)
    yield from _gang(request)
    if request.engine == "cronjob" and request.job.schedule is None:
        yield Error(
            "engine-unsupported",
            "schedule: required with engine cronjob",
            why="the job file has no `schedule`",
            help='add `schedule: {cron: "0 3 * * *"}`, or use another engine',
        )
    if request.job.access.cordon and request.namespace is None:
        yield Error(
            "engine-unsupported",
            "access.cordon: the namespace is required",
            why="permissions on machines need a ClusterRoleBinding, which refers to a namespace",
            help="holdfast render --namespace NAME, or kubernetes.namespace in the job file",
        )


def _gang(request: Request) -> Iterator[Error]:
    """The kind of gang counts, not only that there is one."""
    kind = request.job.scheduling.gang
    able = [
        engine for engine in ENGINES if kind in gang.possible(engine, request.mode, request.version)
    ]
    newest = gang.possible(request.engine, request.mode, (9, 0))
    if kind == "none" or kind in newest:
        return
    yield Error(
        "engine-unsupported",
        f"scheduling.gang: {request.engine} in {request.mode} mode does not support gangs of kind "
        f"{kind}",
        why=f"supported kinds: {', '.join(newest) or 'none'}",
        help=f"engines that can: {', '.join(able)}; or remove scheduling.gang",
    )


def _unfit(request: Request, path: str, limit: Limit) -> Error:
    return Error(
        "engine-unsupported",
        f"{path}: {request.engine} in {request.mode} mode does not support it",
        why=limit.why,
        help=f"use {told(limit.where)}, or remove {path}",
    )


def told(where: frozenset[Place]) -> str:
    """Engines and modes in words."""
    kinds = {mode: [e for e in ENGINES if (e, mode) in where] for mode in MODES}
    said = [_in_mode(mode, engines) for mode, engines in kinds.items() if engines]
    if len(said) == len(MODES) and kinds["managed"] == kinds["plain"]:
        return ", ".join(kinds["plain"])
    return " or ".join(said)


def _in_mode(mode: str, engines: list[Engine]) -> str:
    which = "any engine" if len(engines) == len(ENGINES) else ", ".join(engines)
    return f"{which} with --mode {mode}"
