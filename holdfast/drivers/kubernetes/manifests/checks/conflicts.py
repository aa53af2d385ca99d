"""Settings that contradict each other: two sources of one truth, or two wishes of which one fails.

Who sets what: torchrun and the operators give every process its rank and the address of the first
one. A value of the user's would either be lost or win, and both end in a job that waits for itself.
"""

from collections.abc import Iterator, Mapping

from holdfast.devices import by_resource
from holdfast.drivers.kubernetes.manifests import program
from holdfast.drivers.kubernetes.manifests.groups import fewest, spares_apart
from holdfast.drivers.kubernetes.manifests.pod import CONTROLLER_PORT
from holdfast.drivers.kubernetes.manifests.request import Request
from holdfast.drivers.kubernetes.manifests.support.services import METRICS_PORT
from holdfast.errors import Error
from holdfast.spec import Job

TORCHRUN = frozenset(
    ("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
     "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
)  # fmt: skip
OPERATORS: dict[str, frozenset[str]] = {
    "pytorchjob": TORCHRUN,
    "tfjob": frozenset(("TF_CONFIG",)),
    "jaxjob": frozenset(("COORDINATOR_ADDRESS", "COORDINATOR_PORT", "NUM_PROCESSES", "PROCESS_ID")),
    "xgboostjob": frozenset(
        ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "WORKER_ADDRS", "WORKER_PORT")
    ),
    "paddlejob": frozenset(("POD_IP_DUMMY", "PADDLE_MASTER", "PADDLE_NNODES", "PADDLE_TRAINER_ID")),
    "mpijob": frozenset(("K_MPI_JOB_ROLE", "OMPI_MCA_orte_default_hostfile")),
    "rayjob": frozenset(
        (
            *("KUBERAY_GEN_RAY_START_CMD", "FQ_RAY_IP", "RAY_IP", "RAY_ADDRESS"),
            *("RAY_CLUSTER_NAME", "RAY_CLUSTER_NAMESPACE"),
        )
    ),
    "volcano": frozenset(("VK_TASK_INDEX", "VC_TASK_INDEX")),
}
OURS = "HOLDFAST_"
PREFIXES = ("TORCHELASTIC_", "PET_")  # of variables that are never the user's
KEYS = {
    "HOLDFAST_JOB": "name",
    "HOLDFAST_SNAPSHOT_EVERY": "snapshots.every_steps",
    "HOLDFAST_SNAPSHOT_MAX_OVERHEAD": "snapshots.max_overhead",
    "HOLDFAST_CHECKPOINTS": "checkpoints",
    "HOLDFAST_CHECKPOINT_LOCAL": "checkpoints.local",
    "HOLDFAST_CHECKPOINT_SHARED": "checkpoints.shared",
    "HOLDFAST_CHECKPOINT_ARCHIVE": "checkpoints.archive",
    "HOLDFAST_RESTORE_FROM": "checkpoints.start_from",
    "HOLDFAST_RESTORE_FRESH": "checkpoints.fresh",
}
"""Variables that Holdfast sets from a key of the job file."""
TLS = "HOLDFAST_TLS"  # for agents and the controller; only an overlay sets it
LISTED_TRIALS_MAX = 1000
ARGUMENT_MAX = 131_071  # bytes of one argument, on Linux
INDEXED = frozenset(("job", "cronjob", "jobset", "trainjob"))
STORES = 16  # ports from `ports.stores` on that agents may use at a time


def problems(request: Request) -> Iterator[Error]:
    """One problem for each contradiction."""
    yield from _two_ranks(request)
    yield from _two_values(request.job)
    yield from _placement(request)
    yield from _ports(request)
    yield from _spares(request)
    yield from _elastic(request)
    yield from _sweep(request)
    yield from _overlap(request)
    yield from _receivers(request)


def variables(job: Job) -> dict[str, str]:
    """Where each variable that the job names comes from."""
    found = {name: f"env.{name}" for name in job.env}
    for index, secret in enumerate(job.secrets):
        found |= {name: f"secrets[{index}].env.{name}" for name in secret.env}
    return found


def _two_ranks(request: Request) -> Iterator[Error]:
    for name, path in variables(request.job).items():
        if path == f"env.{TLS}" and request.managed:
            yield _not_for_workers(path)
        elif name in KEYS:
            yield _has_a_key(name, path)
        elif name.startswith(OURS):
            yield _reserved(name, path)
        elif _set_by_others(request, name):
            yield Error(
                "settings-conflict",
                f"{path}: {name} would be set twice",
                why=f"{_who(request, name)} sets it for every process and every attempt",
                help=f"remove {path}; a script reads {name} from its environment",
            )


def _not_for_workers(path: str) -> Error:
    return Error(
        "settings-conflict",
        f"{path}: agents and the controller would not get {TLS}",
        why=f"{path} sets a variable of the workers; {TLS} is read by agents and the controller, "
        "which also need the certificates in a volume",
        help=f"remove {path} and set it with the key overlay: under overlay.spec.containers write "
        f'{{name: "*", env: [{{name: {TLS}, value: /etc/holdfast-tls}}]}}, and add the volume as '
        "docs/guides/security.md shows",
    )


def _has_a_key(name: str, path: str) -> Error:
    return Error(
        "settings-conflict",
        f"{path}: {name} would be set twice",
        why=f"Holdfast sets it from the key {KEYS[name]} of the job file",
        help=f"remove {path} and set {KEYS[name]}",
    )


def _reserved(name: str, path: str) -> Error:
    return Error(
        "settings-conflict",
        f"{path}: the name {name} is reserved",
        why=f"variables whose names start with {OURS} are set by Holdfast only",
        help=f"remove {path}, or choose another name; a script reads the variables of Holdfast "
        "from its environment",
    )


def _set_by_others(request: Request, name: str) -> bool:
    torch = request.job.uses_torch and (request.managed or request.job.command is None)
    indexed = request.engine in INDEXED and name == "JOB_COMPLETION_INDEX"
    operators = OPERATORS.get(request.engine, frozenset()) if not request.managed else frozenset()
    reserved = name.startswith(PREFIXES)
    return reserved or indexed or name in operators or (torch and name in TORCHRUN)


def _who(request: Request, name: str) -> str:
    if request.managed:
        return "Holdfast"
    if name in OPERATORS.get(request.engine, frozenset()) or name == "JOB_COMPLETION_INDEX":
        return f"the engine {request.engine}"
    return "torchrun"


def _two_values(job: Job) -> Iterator[Error]:
    """One variable, two places of the job file."""
    network = job.network
    interface = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if network.interface else ()
    places = [("network.nccl", network.nccl), ("network.interface", dict.fromkeys(interface, ""))]
    plain: Mapping[str, object] = job.env
    for index, secret in enumerate(job.secrets):
        places.append((f"secrets[{index}].env", secret.env))
    for place, names in places:
        for name in names:
            if name in plain:
                yield _twice(name, f"env.{name}", place)
    if network.interface and set(interface) & network.nccl.keys():
        yield _twice("NCCL_SOCKET_IFNAME", "network.nccl", "network.interface")


def _twice(name: str, one: str, other: str) -> Error:
    return Error(
        "settings-conflict",
        f"{one}: {other} sets {name} too",
        why="only one of the two would take effect",
        help=f"keep {name} in one of them",
    )


def _placement(request: Request) -> Iterator[Error]:
    job = request.job
    scheduling, network = job.scheduling, job.network
    kueue = scheduling.kueue
    level = scheduling.topology or (kueue.topology if kueue and kueue.topology_required else None)
    pods = request.pods
    if scheduling.separate and scheduling.separate == level and pods > 1:
        yield _clash(
            "scheduling.separate",
            "scheduling.topology" if scheduling.topology else "scheduling.kueue.topology",
            f"no two nodes may share a {level}, but all of them must be placed in one",
        )
    if network.host and scheduling.one_per_machine is False and pods > 1:
        yield _clash(
            "network.host",
            "scheduling.one_per_machine",
            f"two nodes on one machine would both bind port {_first_port(request)} of the host "
            "network",
        )
    if network.host and network.attach:
        yield _clash(
            "network.host",
            "network.attach",
            "a pod with host network cannot have additional interfaces",
        )
    kind = by_resource(job.gpu_resource) if job.resources.gpus else None
    for label in kind.selectors if kind is not None else ():
        if label not in scheduling.node_selector:
            yield Error(
                "settings-conflict",
                f"{job.gpu_resource} requires a node selector {label}",
                why="without it the cluster does not know which devices, in which topology",
                help=f"add {label} to scheduling.node_selector",
            )


def _first_port(request: Request) -> int:
    ports = request.job.network.ports
    return ports.agent if request.managed else ports.rendezvous


def _ports(request: Request) -> Iterator[Error]:
    """Two listeners on one port; with the host's network those of the machine count too."""
    ports = request.job.network.ports
    if not request.managed:
        return
    stores = range(ports.stores, ports.stores + STORES)
    if ports.agent in stores:
        yield _clash(
            "network.ports.agent",
            "network.ports.stores",
            f"port {ports.agent} is one of the {STORES} from {ports.stores} on, which rendezvous "
            "stores use",
        )
    if ports.storage in (ports.agent, *stores):
        other = "agent" if ports.storage == ports.agent else "stores"
        yield _clash(
            "network.ports.storage",
            f"network.ports.{other}",
            f"port {ports.storage} is already used by that setting",
        )
    for taken in (CONTROLLER_PORT, METRICS_PORT):
        if request.job.network.host and taken in (ports.agent, ports.storage, *stores):
            yield Error(
                "settings-conflict",
                f"network.ports: {taken} is the port of the controller",
                why="with host network, agents and the controller share the ports of the machine",
                help=f"choose another port than {taken}",
            )


def _spares(request: Request) -> Iterator[Error]:
    job = request.job
    kueue = job.scheduling.kueue
    if kueue is not None and kueue.partial and job.scheduling.gang == "native":
        yield _clash(
            "scheduling.kueue.partial",
            "scheduling.gang",
            "Kueue admits fewer pods by changing the size of the Job, but the size of a Job in a "
            "native gang is fixed",
        )
    if kueue is not None and kueue.partial and spares_apart(request):
        by_class = job.scheduling.spare_priority_class
        own = "spare_priority_class" if by_class else "kueue.spare_priority"
        yield _clash(
            "scheduling.kueue.partial",
            f"scheduling.{own}",
            "spares with their own priority are a separate workload, which Kueue admits as a "
            "whole or not at all",
        )
    if job.scheduling.replacement_priority_class and job.scheduling.gang != "none":
        yield _clash(
            "scheduling.replacement_priority_class",
            "scheduling.gang",
            "the members of a gang share one priority",
        )
    claimed = [claim for claim in job.resources.claims if "gpu" in (claim.device_class or "")]
    if job.resources.gpus and claimed:
        yield _clash(
            "resources.gpus",
            "resources.claims",
            "each node would request its GPUs twice, as extended resource and as claim",
        )


def _elastic(request: Request) -> Iterator[Error]:
    job = request.job
    elastic, kueue, gang = job.elasticity, job.scheduling.kueue, job.scheduling.gang
    if elastic is None:
        return
    grows = elastic.max_nodes is not None and elastic.max_nodes > job.nodes.count
    gated = request.managed and request.engine == "jobset"
    if grows and gated and not job.kubernetes.elastic_jobset:
        yield Error(
            "engine-unsupported",
            "elasticity.max_nodes: the JobSet cannot grow",
            why="the JobSet controller refuses another number of pods, unless it has the alpha "
            "feature gate ElasticJobSet (JobSet 0.12 or newer)",
            help="if it has, set kubernetes.elastic_jobset: true; or use engines `pods`, `job` or "
            "`pytorchjob`, or remove elasticity.max_nodes",
        )
    if kueue is not None and (grows or kueue.topology):
        yield _clash(
            "elasticity",
            "scheduling.kueue",
            "Kueue reserves a fixed quota; it neither lets an elastic job grow beyond "
            "nodes.count, nor supports topologies for it",
        )
    if gang != "none" and job.scheduling.topology and fewest(request) < request.nodes:
        yield _clash(
            "elasticity",
            "scheduling.topology",
            f"nodes cannot join a running gang of {gang} with a topology constraint, so a job "
            "that has shrunk could not grow back",
        )


def _sweep(request: Request) -> Iterator[Error]:
    job = request.job
    if job.sweep is None:
        return
    for path, wrong in (
        ("nodes.count", job.nodes.count > 1),
        ("elasticity", job.elasticity is not None),
        ("scheduling.gang", job.scheduling.gang != "none"),
    ):
        if wrong:
            yield _clash("sweep", path, "trials are independent: each is a single pod")
    if not (job.sweep.over or job.sweep.ranges):
        return
    remedy = "have the script turn JOB_COMPLETION_INDEX into values, and set sweep.trials only"
    if job.sweep.size > LISTED_TRIALS_MAX:
        yield Error(
            "settings-conflict",
            f"sweep.over and sweep.ranges give {job.sweep.size} trials; at most "
            f"{LISTED_TRIALS_MAX} fit on Kubernetes",
            why="the values of all of them are part of the manifest, whose size is limited",
            help=remedy,
        )
    elif (size := max(len(word.encode()) for word in program.trial(request, ()))) > ARGUMENT_MAX:
        yield Error(
            "settings-conflict",
            f"the values of all {job.sweep.size} trials take {size} bytes; at most {ARGUMENT_MAX} "
            "fit into the command of a pod",
            why="all pods of a Job have the same command, which chooses by JOB_COMPLETION_INDEX",
            help=f"choose fewer trials or shorter values, or {remedy}",
        )


def _overlap(request: Request) -> Iterator[Error]:
    schedule = request.job.schedule
    if schedule is not None and schedule.overlap == "Allow" and request.managed:
        yield _clash(
            "schedule.overlap",
            "kubernetes.mode",
            "each submission of a managed job reuses the name of the previous one, which must "
            "have ended",
        )


def _clash(one: str, other: str, why: str) -> Error:
    return Error(
        "settings-conflict",
        f"{one} contradicts {other}",
        why=why,
        help=f"change {one} or {other}",
    )


def _receivers(request: Request) -> Iterator[Error]:
    """The controller's pod has no variables of the user's."""
    for index, rule in enumerate(request.job.notify):
        if rule.url_env is not None:
            yield Error(
                "settings-conflict",
                f"notify[{index}].url_env: the controller's pod has no variable {rule.url_env}",
                why="notifications are sent by the controller, which runs in a pod of its own",
                help="kubectl create secret generic notify --from-literal=url=...   "
                "(and `url_secret: {name: notify, key: url}`)",
            )
