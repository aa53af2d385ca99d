"""Volcano Job: gang scheduling is its nature, and every restart goes by a policy.

Managed: a pod that failed or was evicted is made again, alone. Volcano counts each of these as a
retry of the job and gives up after three, unless told otherwise. The job is complete when as many
pods have ended well as train. No plugins: agents find each other through the controller, and the
list of hosts that `svc` puts into one variable outgrows what Linux allows at some thousand pods.

Plain: any failure starts the whole job again, `max_restarts` times. `svc` gives the pods names; its
NetworkPolicy is switched off, because the job has one that it can leave out. For torch there is a
plugin that wants a `master` beside its workers, and mpirun needs `ssh`.
"""

from holdfast.drivers.kubernetes.manifests import gang, pod, program, security
from holdfast.drivers.kubernetes.manifests.engines import mpijob
from holdfast.drivers.kubernetes.manifests.groups import fewest, groups
from holdfast.drivers.kubernetes.manifests.names import metadata
from holdfast.drivers.kubernetes.manifests.part import Part
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.spec.cluster import FATAL

INT32_MAX = 2**31 - 1
MASTER, WORKER, LAUNCHER = "master", "worker", "launcher"
HOSTS = f"/etc/volcano/{WORKER}.host"  # written by `svc`: one host name in each line
SSHD_AS_ROOT = ("sh", "-c", "mkdir -p /run/sshd && exec /usr/sbin/sshd -De")
PORT_WITHOUT_ROOT = 2222  # of sshd, in Kubeflow's images for MPI
PATIENT = {"name": "OMPI_MCA_plm_rsh_args", "value": "-o ConnectionAttempts=30"}


def bodies(request: Request) -> list[Body]:
    """The Job; Volcano makes its PodGroup itself."""
    scheduling, lifetime = request.job.scheduling, request.job.lifetime
    tasks = _tasks(request)
    spec: Body = {
        "schedulerName": scheduling.scheduler or "volcano",
        "queue": scheduling.queue,
        "priorityClassName": scheduling.priority_class,
        "minAvailable": sum(task["minAvailable"] for task in tasks),
        **_end(request),
        "ttlSecondsAfterFinished": lifetime.keep_s,
        "plugins": _plugins(request),
        "policies": _policies(request),
        "networkTopology": gang.network_topology(request),
        "tasks": tasks,
    }
    return [
        {
            "apiVersion": "batch.volcano.sh/v1alpha1",
            "kind": "Job",
            "metadata": metadata(request, request.name),
            "spec": {key: value for key, value in spec.items() if value not in (None, {})},
        }
    ]


def _end(request: Request) -> Body:
    """When the job is over, well or badly. It fails at `maxRetry` restarts, not above."""
    if request.managed:
        return {"minSuccess": fewest(request), "maxRetry": INT32_MAX}
    return {"maxRetry": request.job.recovery.restarts + 1}


def _policies(request: Request) -> list[Body]:
    """The first that fits decides: a failure with the fatal status is also just a failure. A job
    that is not to be restarted is ended, which keeps the pods that have failed, and their output;
    one at the limit of its restarts has lost them to the last."""
    fatal: list[Body] = [{"exitCode": FATAL, "action": "TerminateJob"}] if request.managed else []
    plain = "RestartJob" if request.job.recovery.restarts else "TerminateJob"
    again = "RestartPod" if request.managed else plain
    lost = [{"event": event, "action": again} for event in ("PodFailed", "PodEvicted")]
    return [*fatal, *lost]


def _plugins(request: Request) -> Body:
    if request.managed:
        return {}
    names = {
        "svc": ["--publish-not-ready-addresses=true", "--disable-network-policy=true"],
        "env": [],
    }
    match request.job.trains_with:
        case "pytorch":
            port = request.job.network.ports.rendezvous
            return {
                **names,
                "pytorch": [f"--master={MASTER}", f"--worker={WORKER}", f"--port={port}"],
            }
        case "mpi":
            return {**names, "ssh": _ssh(request)}
        case _:
            return names


def _ssh(request: Request) -> list[str]:
    port = [f"--ssh-port={PORT_WITHOUT_ROOT}"] if security.rootless(request) else []
    return [f"--ssh-key-file-path={mpijob.ssh_folder(request)}", *port]


# ── tasks ─────────────────────────────────────────────────────────────────────────────────────


def _tasks(request: Request) -> list[Body]:
    if request.managed:
        return _managed(request)
    match request.job.trains_with:
        case "pytorch":
            return _torch(request)
        case "mpi":
            return _mpi(request)
        case _:
            template = _node(request, program.script(request))
            return [_task("node", request.nodes, request.nodes, template)]


def _managed(request: Request) -> list[Body]:
    """Nodes and spares alike, or the spares as a task of their own outside the gang."""
    counts = groups(request)
    parts = {role: Part(role=role, command=program.agent(request)) for role in counts}
    least = {"node": fewest(request), "spare": 0}
    return [
        _task(role, counts[role], least[role], pod.template(request, part))
        for role, part in parts.items()
    ]


def _torch(request: Request) -> list[Body]:
    """The first node is the master that the plugin makes the others meet at; it counts nodes where
    its variables say ranks."""
    static = (
        "--nnodes=$(WORLD_SIZE)",
        "--node-rank=$(RANK)",
        "--master-addr=$(MASTER_ADDR)",
        "--master-port=$(MASTER_PORT)",
    )
    command = program.meeting(request, "$(MASTER_ADDR)", program.torchrun(request, *static))
    template = _node(request, command)
    workers = request.nodes - 1
    tasks = [_task(MASTER, 1, 1, template), _task(WORKER, workers, workers, template)]
    return tasks if workers else tasks[:1]


def _mpi(request: Request) -> list[Body]:
    """sshd on the nodes, and a launcher, whose end is that of the job."""
    rootless = security.rootless(request)
    worker = _node(request, mpijob.sshd(request) if rootless else SSHD_AS_ROOT)
    where = _where(request)
    launcher = mpijob.launcher_template(
        request, "main", worker, *where, restart="Never", env=(PATIENT,)
    )
    done = [{"event": "TaskCompleted", "action": "CompleteJob"}]
    first = {**_task(LAUNCHER, 1, 1, launcher), "policies": done}
    return [first, _task(WORKER, request.nodes, request.nodes, worker)]


def _where(request: Request) -> tuple[str, ...]:
    """How mpirun finds the nodes and how many ranks it starts on each."""
    each = mpijob.slots(request)
    if request.job.mpi.implementation == "OpenMPI":
        return ("--hostfile", HOSTS, "--map-by", f"ppr:{each}:node", "--oversubscribe")
    return ("-f", HOSTS, "-ppn", str(each))


def _node(request: Request, command: tuple[str, ...]) -> Body:
    return pod.template(request, Part(command=command))


def _task(name: str, count: int, least: int, template: Body) -> Body:
    return {"name": name, "replicas": count, "minAvailable": least, "template": template}
