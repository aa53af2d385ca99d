"""MPIJob: v2beta1 of the mpi-operator and v1 of the training-operator; a cluster has one of them.

Managed: the workers run agents and no sshd; the launcher is an agent that only waits, because the
operator takes the launcher's end for the job's. Plain: the launcher runs mpirun, the workers what
the operator lets them run, sshd (v2beta1) or sleep (v1, which reaches them by `kubectl exec`). A
session of sshd knows nothing of the container's variables, so the ranks get theirs from mpirun: the
launcher has all those of a worker that are the same in every pod, and hands them on.

The launcher of v2beta1 is a batch Job: its retries, `max_restarts`, start the whole run again.
Failed workers are not replaced there, so they restart where they are. A gang is made by an operator
that was started with a gang scheduler; a group of ours by the same name would stop it.
"""

from pathlib import PurePosixPath
from typing import Literal

from holdfast.drivers.kubernetes.manifests import kueue, pod, program, security
from holdfast.drivers.kubernetes.manifests.engines.kubeflow import (
    INT32_MAX,
    beside_root,
    restart_limit,
    run_policy,
)
from holdfast.drivers.kubernetes.manifests.groups import fewest
from holdfast.drivers.kubernetes.manifests.names import metadata
from holdfast.drivers.kubernetes.manifests.part import Part
from holdfast.drivers.kubernetes.manifests.request import Body, Request

V1_CONTAINER = "mpi"
IMAGE_VARIABLES = ("PATH", "LD_LIBRARY_PATH")  # set by the image, unknown to a session of sshd
ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")


def bodies(request: Request) -> list[Body]:
    """The MPIJob, in the version that the cluster serves."""
    version = request.job.kubernetes.mpi_version
    body = {
        "apiVersion": f"kubeflow.org/{version}",
        "kind": "MPIJob",
        "metadata": metadata(request, request.name),
        "spec": _v1(request) if version == "v1" else _v2beta1(request),
    }
    return [kueue.apply(request, body)]


def _v2beta1(request: Request) -> Body:
    command = sshd(request) if security.rootless(request) else ()  # the operator's own is for root
    worker = worker_template(request, "worker", *command)
    launcher = launcher_template(request, "launcher", worker)
    restarts = INT32_MAX if request.managed else request.job.recovery.restarts
    return {
        **_plain_v2beta1(request),
        "launcherCreationPolicy": "AtStartup" if request.managed else "WaitForWorkersReady",
        "runPolicy": run_policy(request, fewest(request) + 1, restarts),
        "mpiReplicaSpecs": {
            "Launcher": _replicas(1, "Never", launcher),
            "Worker": _replicas(request.pods, "OnFailure", worker),
        },
    }


def _plain_v2beta1(request: Request) -> Body:
    if request.managed:
        return {}
    mpi = request.job.mpi
    return {
        "slotsPerWorker": slots(request),
        "mpiImplementation": mpi.implementation,
        "sshAuthMountPath": ssh_folder(request),
    }


def _v1(request: Request) -> Body:
    worker = worker_template(request, V1_CONTAINER)
    launcher = _beside_kubectl(request, launcher_template(request, V1_CONTAINER, worker))
    again = request.job.recovery.restarts and not request.managed
    return {
        **({} if request.managed else {"slotsPerWorker": slots(request)}),
        "mainContainer": V1_CONTAINER,
        "runPolicy": run_policy(request, fewest(request) + 1, restart_limit(request, 1)),
        "mpiReplicaSpecs": {
            "Launcher": _replicas(1, "OnFailure" if again else "Never", launcher),
            "Worker": _replicas(request.pods, "OnFailure", worker),
        },
    }


def _replicas(count: int, restart: str, template: Body) -> Body:
    return {"replicas": count, "restartPolicy": restart, "template": template}


def _beside_kubectl(request: Request, template: Body) -> Body:
    """The launcher of v1, to which the operator adds an init container that copies kubectl, as
    root; in plain mode it also gives it an account that may `exec`, unless the job names one."""
    made = beside_root(template)
    spec = dict(made["spec"])
    if not request.managed:
        spec.pop("automountServiceAccountToken", None)
        if request.job.access.service_account is None:
            spec.pop("serviceAccountName", None)
    return {**made, "spec": spec}


# ── pods, for every engine that starts ranks by mpirun ────────────────────────────────────────


def slots(request: Request) -> int:
    """Ranks on each node."""
    said = request.job.mpi.slots_per_node
    return said if isinstance(said, int) else request.workers


def through_sshd(request: Request) -> bool:
    """Whether our mpirun reaches the ranks by sshd; in v1 that is `kubectl exec`, which keeps the
    variables of the container."""
    v1 = request.engine == "mpijob" and request.job.kubernetes.mpi_version == "v1"
    return request.job.trains_with == "mpi" and not request.managed and not v1


def ssh_folder(request: Request) -> str:
    """Folder of the keys."""
    home = "/home/mpiuser" if security.rootless(request) else "/root"
    return request.job.mpi.ssh_folder or f"{home}/.ssh"


def sshd(request: Request) -> tuple[str, ...]:
    """The server on the nodes; without root it needs a configuration of its own, which Kubeflow's
    images have in the home folder."""
    own = ("-f", str(PurePosixPath(ssh_folder(request)).with_name(".sshd_config")))
    return ("/usr/sbin/sshd", "-De", *(own if security.rootless(request) else ()))


def worker_template(request: Request, container: str, *command: str) -> Body:
    """A node: an agent, or in plain mode `command`, by default the operator's."""
    run = program.agent(request) if request.managed else command
    return pod.template(request, Part(container=container, command=run, restart=None))


def launcher_template(
    request: Request,
    container: str,
    worker: Body,
    *where: str,
    restart: Literal["Never"] | None = None,
    env: tuple[Body, ...] = (),
) -> Body:
    """The launcher: an agent that waits for the end, or mpirun with `where` to find the nodes.

    `env` is for mpirun itself, not for the ranks.
    """
    mpi = request.job.mpi
    variables = [] if request.managed else _shared_variables(worker)
    part = Part(
        role="launcher",
        container=container,
        command=_launch(request, variables, where),
        restart=restart,
        env=(*variables, *_as_root(request), *env),
        small=True,
        cpu=mpi.launcher_cpu,
        memory=mpi.launcher_memory,
    )
    return pod.template(request, part)


def _shared_variables(worker: Body) -> list[Body]:
    """Variables of a worker that are the same in all pods."""
    variables = worker["spec"]["containers"][0].get("env", [])
    return [variable for variable in variables if _shared(variable)]


def _shared(variable: Body) -> bool:
    return not {"fieldRef", "resourceFieldRef"} & variable.get("valueFrom", {}).keys()


def _as_root(request: Request) -> list[Body]:
    """Open MPI refuses to run as root, which most images do, unless told twice."""
    open_mpi = request.job.mpi.implementation == "OpenMPI"
    if request.managed or not open_mpi or security.rootless(request):
        return []
    return [{"name": name, "value": "1"} for name in ROOT]


def _launch(request: Request, variables: list[Body], where: tuple[str, ...]) -> tuple[str, ...]:
    if request.managed:
        return program.agent(request, "--wait")
    if request.job.trains_with != "mpi":
        return program.script(request)  # a command that starts the ranks itself
    ranks = str(request.nodes * slots(request))
    options = (*where, *_exports(request, variables), *request.job.mpi.options)
    return ("mpirun", "-np", ranks, *options, *program.script(request))


def _exports(request: Request, variables: list[Body]) -> list[str]:
    """Variables for the ranks: Open MPI wants them named, the others hand on all there are."""
    if request.job.mpi.implementation != "OpenMPI":
        return []
    names = dict.fromkeys((*IMAGE_VARIABLES, *(variable["name"] for variable in variables)))
    return [word for name in names for word in ("-x", name)]
