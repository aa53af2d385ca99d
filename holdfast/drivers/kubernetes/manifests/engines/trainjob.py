"""Kubeflow Trainer v2: a TrainJob and the TrainingRuntime it needs, made for this job alone.

The runtime holds everything about the pods and all failure rules, which a TrainJob cannot carry;
the TrainJob says how many and when, nothing twice. It is namespaced and named after the job, since
the number of nodes that have to succeed stands in it.

Managed: one Indexed Job that replaces pods and is kept out of the way, and no machine learning
policy, whose variables would be a second source of ranks. Plain: the policy of the framework gives
the variables, and any failure starts the whole set again, `max_restarts` times. The gang is our
own: the policies for gangs here count every pod, spares too.
"""

from holdfast.drivers.kubernetes.manifests import gang, indexed, kueue, pod, program
from holdfast.drivers.kubernetes.manifests.engines import mpijob
from holdfast.drivers.kubernetes.manifests.marks import marked
from holdfast.drivers.kubernetes.manifests.names import metadata
from holdfast.drivers.kubernetes.manifests.part import Part
from holdfast.drivers.kubernetes.manifests.request import Body, Request

API = "trainer.kubeflow.org/v1alpha1"
NODE = "node"  # Trainer looks for a Job and a container of this name
LAUNCHER = "launcher"
STEP = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
FRAMEWORK = "trainer.kubeflow.org/framework"
POLICIES = {"pytorch": "torch", "jax": "jax", "xgboost": "xgboost", "mpi": "mpi"}
"""Frameworks for which Trainer has a policy, and its name there."""


def bodies(request: Request) -> list[Body]:
    """The gang's objects, the runtime, which has to be there first, and the TrainJob."""
    node = _node(request)
    train = kueue.apply(request, _train_job(request))
    runtime = kueue.topology(request, _runtime(request, node))
    return [*gang.objects(request, node), runtime, train]


def _train_job(request: Request) -> Body:
    lifetime = request.job.lifetime
    limit = {"activeDeadlineSeconds": lifetime.time_limit_s} if lifetime.time_limit_s else {}
    spec = {
        **({"suspend": True} if lifetime.suspend else {}),
        "runtimeRef": {
            "apiGroup": API.split("/")[0],
            "kind": "TrainingRuntime",
            "name": request.name,
        },
        **limit,
        "trainer": {"numNodes": request.pods, **_processes(request)},
    }
    return _object(request, "TrainJob", spec)


def _processes(request: Request) -> Body:
    match _policy(request):
        case "torch":
            return {"numProcPerNode": request.workers}
        case "mpi":
            return {"numProcPerNode": mpijob.slots(request)}
        case _:
            return {}


def _runtime(request: Request, node: Body) -> Body:
    by_launcher = _policy(request) == "mpi"
    ends = LAUNCHER if by_launcher else NODE
    restarts = 0 if request.managed else request.job.recovery.restarts
    template = {
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": [ends]},
            "failurePolicy": {"maxRestarts": restarts},
            "replicatedJobs": _mpi_jobs(request, node) if by_launcher else [_nodes(request, node)],
        }
    }
    found = _object(request, "TrainingRuntime", {"mlPolicy": _ml(request), "template": template})
    framework = POLICIES.get(request.job.trains_with, request.job.trains_with)
    return marked(found, labels={FRAMEWORK: framework})


def _object(request: Request, kind: str, spec: Body) -> Body:
    return {
        "apiVersion": API,
        "kind": kind,
        "metadata": metadata(request, request.name),
        "spec": spec,
    }


def _policy(request: Request) -> str | None:
    """Trainer's policy for what the pods run; agents want none."""
    return None if request.managed else POLICIES.get(request.job.trains_with)


def _ml(request: Request) -> Body:
    """`mlPolicy`. With MPI its count is that of the launchers; the nodes' is in the TrainJob."""
    match _policy(request):
        case None:
            return {"numNodes": request.pods}
        case "mpi":
            mpi = request.job.mpi
            folder = {"sshAuthMountPath": mpijob.ssh_folder(request)}
            return {"numNodes": 1, "mpi": {"mpiImplementation": mpi.implementation, **folder}}
        case policy:
            return {"numNodes": request.pods, policy: {}}


def _nodes(request: Request, template: Body) -> Body:
    """The Job of the nodes; Trainer sets the size of that whose label says `trainer`."""
    if request.managed:
        rules = indexed.spec(request, NODE, template)
    else:
        rules = _once(request.pods, template)
    return {"name": NODE, "template": {"metadata": {"labels": dict(STEP)}, "spec": rules}}


def _once(count: int, template: Body) -> Body:
    """A Job that gives up at its first failure: the set starts again as a whole."""
    return {**indexed.size(count), "backoffLimit": 0, "template": template}


def _mpi_jobs(request: Request, node: Body) -> list[Body]:
    """Nodes that run sshd, and the launcher once they do."""
    launcher = mpijob.launcher_template(request, NODE, node, restart="Never")
    step = {"metadata": {"labels": dict(STEP)}}
    return [
        {"name": NODE, "template": {"spec": _once(request.pods, node)}},
        {
            "name": LAUNCHER,
            "dependsOn": [{"name": NODE, "status": "Ready"}],
            "template": {**step, "spec": _once(1, launcher)},
        },
    ]


def _node(request: Request) -> Body:
    """Template of a node, as a member of the gang."""
    part = Part(container=NODE, command=_program(request))
    return gang.member(request, pod.template(request, part))


def _program(request: Request) -> tuple[str, ...]:
    if request.managed:
        return program.agent(request)
    match _policy(request):
        case "torch":
            return program.torchrun(request)  # takes PET_* from its environment
        case "mpi":
            return mpijob.sshd(request)
        case _:
            return program.script(request)
