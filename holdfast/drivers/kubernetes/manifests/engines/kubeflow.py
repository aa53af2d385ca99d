"""Kubeflow's training-operator v1: PyTorchJob, TFJob, JAXJob, XGBoostJob, PaddleJob.

They have one shape, a run policy and for each role a count, a restart policy and a pod template;
a table holds the words in which they differ. Managed pods are alike, so they are all `Worker`; an
XGBoostJob is refused without a `Master`, which then is simply the first of them. `ExitCode` is the
only restart policy under which the operator makes a pod anew (128 and above, at once) and still
ends the job on a verdict (below 128). No `elasticPolicy` there: the first pod that exits 0 would
end the job. `backoffLimit` stays unset, as the operator counts against it what is ours to count.

In plain mode a container that fails starts again where it is, all of them in turn, and the limit
is the job's `max_restarts` of every container. `ExitCode` would give up there at the first error,
since Python ends with 1 and torchrun too. Weak it is all the same, and `holdfast lint` says so: the
others notice a lost peer only by an error or a timeout of theirs, and each waits longer each time.
"""

from dataclasses import replace
from typing import NamedTuple

from holdfast.drivers.kubernetes.manifests import gang, kueue, pod, program
from holdfast.drivers.kubernetes.manifests.groups import fewest
from holdfast.drivers.kubernetes.manifests.names import metadata
from holdfast.drivers.kubernetes.manifests.part import Part
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.spec.cluster import Engine

INT32_MAX = 2**31 - 1


class JobKind(NamedTuple):
    """What the operator calls things in one kind of job."""

    name: str
    replicas: str  # key of the roles
    container: str  # it sets its variables, and reads exit statuses, only there
    port: str  # name of the port whose number becomes the address of the rendezvous
    number: int  # of the port, if the job does not say
    first: str | None = None  # role of the first node, where it is one of its own


KINDS: dict[Engine, JobKind] = {
    "pytorchjob": JobKind("PyTorchJob", "pytorchReplicaSpecs", "pytorch", "pytorchjob-port", 23456),
    "tfjob": JobKind("TFJob", "tfReplicaSpecs", "tensorflow", "tfjob-port", 2222),
    "jaxjob": JobKind("JAXJob", "jaxReplicaSpecs", "jax", "jaxjob-port", 6666),
    "xgboostjob": JobKind(
        "XGBoostJob", "xgbReplicaSpecs", "xgboost", "xgboostjob-port", 9999, "Master"
    ),
    "paddlejob": JobKind("PaddleJob", "paddleReplicaSpecs", "paddle", "master", 36543),
}

ELASTIC: tuple[Engine, ...] = ("pytorchjob", "paddlejob")
"""Engines with an `elasticPolicy`."""


class ReplicaSpec(NamedTuple):
    """Some pods that are alike."""

    name: str
    pods: int
    part: Part


def bodies(request: Request) -> list[Body]:
    """The gang's objects and the job."""
    kind = KINDS[request.engine]
    roles = _roles(request, kind)
    count = sum(role.pods for role in roles)
    least = fewest(request) + count - request.pods
    body = {
        "apiVersion": "kubeflow.org/v1",
        "kind": kind.name,
        "metadata": metadata(request, request.name),
        "spec": {
            **_own(request),
            "runPolicy": run_policy(request, least, restart_limit(request, count)),
            kind.replicas: {role.name: _replicas(request, role) for role in roles},
        },
    }
    node = pod.template(request, roles[0].part)
    return [*gang.objects(request, node), kueue.apply(request, body)]


def run_policy(request: Request, least: int, limit: int | None) -> Body:
    """`runPolicy`: the gang is `least` pods; `limit`: restarts that the operator allows."""
    lifetime = request.job.lifetime
    return _said(
        cleanPodPolicy="Running",
        backoffLimit=limit,
        activeDeadlineSeconds=lifetime.time_limit_s,
        ttlSecondsAfterFinished=lifetime.keep_s,
        suspend=lifetime.suspend or None,
        schedulingPolicy=_gang(request, least),
    )


def _gang(request: Request, least: int) -> Body:
    """What an operator reads that makes gangs by itself; without it, it waits for the spares too.

    It gives its group the name of the job, as we do, and so finds ours and agrees with it.
    """
    scheduling = request.job.scheduling
    gang = scheduling.gang != "none"
    if not (gang or scheduling.priority_class or request.spares):
        return {}
    return _said(
        minAvailable=least,
        queue=scheduling.queue,
        priorityClass=scheduling.priority_class,
        scheduleTimeoutSeconds=scheduling.gang_timeout_s if gang else None,
    )


def restart_limit(request: Request, containers: int) -> int | None:
    """`max_restarts` of so many containers, as the operator counts: the job fails at the limit."""
    restarts = request.job.recovery.restarts
    if request.managed or not restarts:
        return None
    return min(restarts * containers + 1, INT32_MAX)


def _said(**keys: object) -> Body:
    return {key: value for key, value in keys.items() if value not in (None, {})}


# ── what one kind has and the others do not ──────────────────────────────────────────────────


def _own(request: Request) -> Body:
    if request.engine == "tfjob":
        return {"successPolicy": "AllWorkers"}
    if request.managed:
        return {}
    workers = {"nprocPerNode": str(request.workers)} if request.engine == "pytorchjob" else {}
    return {**workers, **_elastic(request)}


def _elastic(request: Request) -> Body:
    elastic = request.job.elasticity
    if elastic is None or request.engine not in ELASTIC:
        return {}
    policy: Body = {
        "minReplicas": elastic.min_nodes,
        "maxReplicas": elastic.max_nodes or request.nodes,
        "maxRestarts": request.job.recovery.restarts,
    }
    if request.engine == "pytorchjob":
        policy = {"rdzvBackend": "c10d", "rdzvId": request.name, **policy}
    return {"elasticPolicy": policy}


# ── roles ─────────────────────────────────────────────────────────────────────────────────────


def _roles(request: Request, kind: JobKind) -> list[ReplicaSpec]:
    """Roles with their pods; a role without pods is left out, as the operator refuses it."""
    part = _part(request, kind)
    first = _first(request, kind)
    found = [ReplicaSpec(first, 1, _leader(part, first))] if first else []
    found.append(ReplicaSpec("Worker", request.pods - len(found), part))
    return [role for role in [*found, *_beside(request, part)] if role.pods]


def _first(request: Request, kind: JobKind) -> str | None:
    """Role of the first node. A PyTorchJob gives torchrun an address only if it has a Master."""
    if request.engine == "pytorchjob" and not request.managed and not request.job.elasticity:
        return "Master"
    if request.engine == "tfjob" and not request.managed and request.job.roles.chief:
        return "Chief"
    return kind.first


def _leader(part: Part, role: str) -> Part:
    return replace(part, role="chief") if role == "Chief" else part


def _beside(request: Request, part: Part) -> list[ReplicaSpec]:
    """Parameter servers and evaluator of TensorFlow; the evaluator reads data and checkpoints."""
    if request.engine != "tfjob" or request.managed:
        return []
    asked = request.job.roles
    small = replace(part, small=True, cpu=asked.cpu, memory=asked.memory)
    return [
        ReplicaSpec("PS", asked.ps, replace(small, role="ps")),
        ReplicaSpec("Evaluator", int(asked.evaluator), replace(small, role="evaluator", data=True)),
    ]


def _part(request: Request, kind: JobKind) -> Part:
    """A node. The port is that of the rendezvous; agents have their own and leave it alone."""
    port = kind.number if request.managed else request.job.network.ports.rendezvous
    return Part(
        container=kind.container,
        command=_program(request),
        restart=None,  # said for the role; the operator overwrites it in the template
        port=(kind.port, port),
    )


def _program(request: Request) -> tuple[str, ...]:
    if request.managed:
        return program.agent(request)
    match request.engine:
        case "pytorchjob":
            return program.torchrun(request)  # takes PET_* from its environment
        case "paddlejob":
            return program.paddle(request)
        case _:
            return program.script(request)


def _replicas(request: Request, role: ReplicaSpec) -> Body:
    beside = role.part.small  # outside the gang, like a spare
    template = pod.template(request, role.part)
    if request.engine == "pytorchjob" and not request.managed:
        template = beside_root(template)  # one that waits for the Master
    return {
        "replicas": role.pods,
        "restartPolicy": restart(request),
        "template": gang.member(request, template, "spare" if beside else "node"),
    }


def beside_root(template: Body) -> Body:
    """`template` for an operator that adds an init container of its own, which runs as root: that
    ours must not is said by each of them, not by the pod."""
    spec, context = template["spec"], dict(template["spec"].get("securityContext", {}))
    said = context.pop("runAsNonRoot", None)
    if said is None:
        return template
    kinds = [key for key in ("initContainers", "containers") if key in spec]
    ours = {key: [_own_user(each, said) for each in spec[key]] for key in kinds}
    return {**template, "spec": {**spec, "securityContext": context, **ours}}


def _own_user(container: Body, without_root: bool) -> Body:
    own = {"runAsNonRoot": without_root, **container.get("securityContext", {})}
    return {**container, "securityContext": own}


def restart(request: Request) -> str:
    """Restart policy of a role."""
    if request.managed:
        return "ExitCode"
    return "OnFailure" if request.job.recovery.restarts else "Never"
