"""Traps of kubeflow.org/v1 jobs, run by the training-operator."""

from collections.abc import Iterator

from holdfast.drivers.kubernetes.lint.check import Hit, check
from holdfast.drivers.kubernetes.lint.look import count, labels, number, part, text, value
from holdfast.drivers.kubernetes.lint.spots import (
    REPLICA_SPECS,
    Spot,
    containers,
    env,
    gpus,
    managed,
    program,
    roles,
)

CONTAINERS = {
    "PyTorchJob": "pytorch",
    "TFJob": "tensorflow",
    "XGBoostJob": "xgboost",
    "JAXJob": "jax",
    "PaddleJob": "paddle",
}
ALL = tuple(CONTAINERS)
ROLES = {
    "PyTorchJob": {"Master", "Worker"},
    "TFJob": {"Chief", "Master", "Worker", "PS", "Evaluator"},
    "XGBoostJob": {"Master", "Worker"},
    "JAXJob": {"Worker"},
    "PaddleJob": {"Master", "Worker"},
}
SINGLE = ("Master", "Chief", "Evaluator")
POLICIES = ("Always", "OnFailure", "Never", "ExitCode")
RANKS = {
    "PyTorchJob": ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    "TFJob": ("TF_CONFIG",),
    "JAXJob": ("COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID"),
    "XGBoostJob": ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    "PaddleJob": ("PADDLE_MASTER", "PADDLE_NNODES", "PADDLE_TRAINER_ID"),
}
"""What the operator tells the pods of each kind."""
QUEUE = "kueue.x-k8s.io/queue-name"


def _place(spot: Spot, role: str, *keys: str) -> str:
    return ".".join(("spec", REPLICA_SPECS[spot.kind], role, *keys))


def _elastic(spot: Spot) -> bool:
    return "elasticPolicy" in part(spot.body, "spec")


def _agents(spot: Spot) -> bool:
    return any(managed(part(spec, "template")) for spec in roles(spot.body).values())


@check(
    "kubeflow-container-name",
    "error",
    *ALL,
    why="the operator sets ports and rank variables for, and reads exit codes from, only the "
    "container with this name",
    help="name it pytorch, tensorflow, xgboost, jax or paddle, depending on the kind",
)
def _kubeflow_container_name(spot: Spot) -> Iterator[Hit]:
    wanted = CONTAINERS[spot.kind]
    for role, spec in roles(spot.body).items():
        found = [text(c, "name") for c in containers(part(spec, "template"))]
        if found and wanted not in found:
            place = _place(spot, role, "template.spec.containers")
            yield place, f"{', '.join(found)} instead of {wanted}"


@check(
    "kubeflow-template-restart-policy",
    "warning",
    *ALL,
    why="the operator overwrites the restartPolicy of the pod template with that of the role",
    help="set restartPolicy beside replicas, and none in the template",
)
def _kubeflow_template_restart_policy(spot: Spot) -> Iterator[Hit]:
    for role, spec in roles(spot.body).items():
        if text(spec, "template", "spec", "restartPolicy"):
            yield _place(spot, role, "template.spec.restartPolicy"), "is overwritten"


@check(
    "kubeflow-restart-policy-unknown",
    "error",
    *ALL,
    why="the CRD accepts any string, but the operator supports only Always, OnFailure, Never and "
    "ExitCode",
    help="use ExitCode: below 128 the job fails, from 128 on the pod is replaced",
)
def _kubeflow_restart_policy_unknown(spot: Spot) -> Iterator[Hit]:
    for role, spec in roles(spot.body).items():
        if text(spec, "restartPolicy") not in ("", *POLICIES):
            yield _place(spot, role, "restartPolicy"), f"is {text(spec, 'restartPolicy')}"


@check(
    "kubeflow-never",
    "warning",
    *ALL,
    why="with Never one pod that fails, for whatever reason, fails the whole job",
    help="use ExitCode: below 128 the job fails, from 128 on the pod is replaced",
)
def _kubeflow_never(spot: Spot) -> Iterator[Hit]:
    for role, spec in roles(spot.body).items():
        if text(spec, "restartPolicy") == "Never" and role in ("Worker", "PS"):
            yield _place(spot, role, "restartPolicy"), "is Never"


@check(
    "kubeflow-restarts-in-place",
    "warning",
    *ALL,
    why="with OnFailure the kubelet restarts one container with increasing back-off, forever, "
    "while the other ranks hang in a collective",
    help="use ExitCode, or torchrun with elasticPolicy, so that all ranks start again together",
)
def _kubeflow_restarts_in_place(spot: Spot) -> Iterator[Hit]:
    spec = part(spot.body, "spec")
    several = sum(count(role, "replicas") for role in roles(spot.body).values()) > 1
    for role, found in roles(spot.body).items():
        again = text(found, "restartPolicy") in ("OnFailure", "Always") and role != "PS"
        if several and again and "elasticPolicy" not in spec:
            yield _place(spot, role, "restartPolicy"), f"is {text(found, 'restartPolicy')}"


@check(
    "kubeflow-backoff-limit",
    "error",
    *ALL,
    why="backoffLimit counts restarts of running pods and the operator's own retries; with 0 the "
    "first restart fails the job",
    help="leave backoffLimit out: it is unlimited then",
)
def _kubeflow_backoff_limit(spot: Spot) -> Iterator[Hit]:
    restarts = any(text(s, "restartPolicy") not in ("", "Never") for s in roles(spot.body).values())
    if value(spot.body, "spec", "runPolicy", "backoffLimit") == 0 and restarts:
        yield "spec.runPolicy.backoffLimit", "is 0, with a restart policy"


@check(
    "kubeflow-first-exit-ends-all",
    "warning",
    "PyTorchJob",
    "PaddleJob",
    why="with elasticPolicy the first worker that exits with 0 makes the whole job Succeeded",
    help="make all workers exit together (a barrier at the end), or remove elasticPolicy",
)
def _kubeflow_first_exit_ends_all(spot: Spot) -> Iterator[Hit]:
    if _elastic(spot) and "Master" not in roles(spot.body):
        yield "spec.elasticPolicy", "is set, without a Master"


@check(
    "kubeflow-elastic-with-master",
    "error",
    "PyTorchJob",
    "PaddleJob",
    why="an elastic job finds its ranks by rendezvous on worker 0; a Master gets a fixed rank and "
    "stays outside",
    help="make the Master a Worker, or remove elasticPolicy",
)
def _kubeflow_elastic_with_master(spot: Spot) -> Iterator[Hit]:
    if _elastic(spot) and "Master" in roles(spot.body):
        yield "spec.elasticPolicy", "is set beside a Master"


@check(
    "kubeflow-elastic-range",
    "error",
    "PyTorchJob",
    "PaddleJob",
    why="the operator refuses to scale, and torchrun to start, outside of minReplicas and "
    "maxReplicas",
    help="keep minReplicas <= replicas <= maxReplicas",
)
def _kubeflow_elastic_range(spot: Spot) -> Iterator[Hit]:
    policy = part(spot.body, "spec", "elasticPolicy")
    least, most = number(policy, "minReplicas"), number(policy, "maxReplicas")
    found = count(roles(spot.body).get("Worker", {}), "replicas")
    if not (least or found) <= found <= (found if most is None else most):
        yield "spec.elasticPolicy", f"{found} workers, allowed are {least} to {most}"


@check(
    "kubeflow-elastic-never-grows",
    "warning",
    "PyTorchJob",
    "PaddleJob",
    why="the autoscaler for the number of workers is created only if metrics are set",
    help="set elasticPolicy.metrics, or scale the Worker replicas yourself",
)
def _kubeflow_elastic_never_grows(spot: Spot) -> Iterator[Hit]:
    policy = part(spot.body, "spec", "elasticPolicy")
    found = count(roles(spot.body).get("Worker", {}), "replicas")
    if (number(policy, "maxReplicas") or 0) > found and not policy.get("metrics"):
        yield "spec.elasticPolicy", f"the number of workers stays {found}"


@check(
    "kubeflow-no-ranks",
    "warning",
    "PyTorchJob",
    why="without a Master the operator sets no MASTER_ADDR, RANK and WORLD_SIZE, only PET_*, which "
    "torchrun reads",
    help="start the script with torchrun, or make one replica the Master",
)
def _kubeflow_no_ranks(spot: Spot) -> Iterator[Hit]:
    worker = roles(spot.body).get("Worker", {})
    line = [w for c in containers(part(worker, "template")) for w in program(c)]
    reads = any("torchrun" in w or "torch.distributed" in w or "holdfast" in w for w in line)
    if "Master" not in roles(spot.body) and count(worker, "replicas") > 1 and line and not reads:
        yield _place(spot, "Worker", "template"), f"starts {line[0]}"


@check(
    "kubeflow-world-size",
    "warning",
    "PyTorchJob",
    why="WORLD_SIZE is multiplied by nprocPerNode only if that is a number; with auto or gpu it is "
    "the number of pods",
    help="write the number of GPUs, or start with torchrun",
)
def _kubeflow_world_size(spot: Spot) -> Iterator[Hit]:
    found = text(spot.body, "spec", "nprocPerNode")
    if "Master" in roles(spot.body) and found and not found.isdigit():
        yield "spec.nprocPerNode", f"is {found}"


@check(
    "kubeflow-rank-from-two-sources",
    "warning",
    *ALL,
    why="the operator sets these variables; one of the two is wrong, and which wins depends on "
    "their order",
    help="remove them from env",
)
def _kubeflow_rank_from_two_sources(spot: Spot) -> Iterator[Hit]:
    for role, spec in roles(spot.body).items():
        for container in containers(part(spec, "template")):
            twice = sorted(set(RANKS[spot.kind]) & env(container).keys())
            if twice:
                yield _place(spot, role, "template.spec.containers"), f"{', '.join(twice)} in env"


@check(
    "kubeflow-roles",
    "error",
    *ALL,
    why="the operator supports a few roles, of which Master, Chief and Evaluator must have one "
    "replica; other roles make the job fail",
    help="kubectl explain pytorchjob.spec",
)
def _kubeflow_roles(spot: Spot) -> Iterator[Hit]:
    found = roles(spot.body)
    for role, spec in found.items():
        if role not in ROLES[spot.kind]:
            yield _place(spot, role), "is not a role of this kind"
        elif role in SINGLE and count(spec, "replicas") != 1:
            yield _place(spot, role, "replicas"), f"is {count(spec, 'replicas')}, must be 1"
    if {"Chief", "Master"} <= found.keys():
        yield "spec.tfReplicaSpecs", "has a Chief and a Master"
    if spot.kind == "XGBoostJob" and found and "Master" not in found:
        yield "spec.xgbReplicaSpecs", "has no Master, which the operator requires"


@check(
    "tfjob-one-worker-ends-all",
    "warning",
    "TFJob",
    why="without a Chief the job has succeeded when worker 0 has",
    help="set successPolicy: AllWorkers",
)
def _tfjob_one_worker_ends_all(spot: Spot) -> Iterator[Hit]:
    chief = {"Chief", "Master"} & roles(spot.body).keys()
    several = count(roles(spot.body).get("Worker", {}), "replicas") > 1
    if several and not chief and text(spot.body, "spec", "successPolicy") != "AllWorkers":
        yield "spec.successPolicy", "is worker 0, by default"


@check(
    "kubeflow-keeps-pods",
    "warning",
    *ALL,
    "MPIJob",
    why="with cleanPodPolicy None pods that still run when the job has ended keep their GPUs",
    help="set runPolicy.cleanPodPolicy: Running",
)
def _kubeflow_keeps_pods(spot: Spot) -> Iterator[Hit]:
    asked = any(gpus(part(spec, "template")) for spec in roles(spot.body).values())
    if text(spot.body, "spec", "runPolicy", "cleanPodPolicy") == "None" and asked:
        yield "spec.runPolicy.cleanPodPolicy", "is None"


@check(
    "kubeflow-not-queued",
    "warning",
    *ALL,
    why="Kueue's default configuration leaves these kinds out: the label does nothing then, and "
    "the job starts without quota",
    help="kubectl -n kueue-system get configmap kueue-manager-config -o yaml",
)
def _kubeflow_not_queued(spot: Spot) -> Iterator[Hit]:
    if QUEUE in labels(spot.body):
        yield "metadata.labels", f"{QUEUE} on a {spot.kind}"


@check(
    "kubeflow-gang-too-small",
    "error",
    *ALL,
    why="a gang larger than the job is never complete, so no pod is scheduled",
    help="set minAvailable to the number of pods that train, or leave it out",
)
def _kubeflow_gang_too_small(spot: Spot) -> Iterator[Hit]:
    least = number(spot.body, "spec", "runPolicy", "schedulingPolicy", "minAvailable") or 0
    most = sum(count(spec, "replicas") for spec in roles(spot.body).values())
    if roles(spot.body) and least > most:
        yield "spec.runPolicy.schedulingPolicy.minAvailable", f"is {least} of {most} pods"


# ── with Holdfast's agents ────────────────────────────────────────────────────────────────────


@check(
    "managed-kubeflow-restarts",
    "error",
    *ALL,
    why="Holdfast counts restarts itself: the operator should only replace deleted pods (143) "
    "and fail the job on the agent's exit status (13)",
    help="use restartPolicy ExitCode, no runPolicy.backoffLimit, cleanPodPolicy Running",
)
def _managed_kubeflow_restarts(spot: Spot) -> Iterator[Hit]:
    if not _agents(spot):
        return
    for role, spec in roles(spot.body).items():
        if text(spec, "restartPolicy") != "ExitCode" and managed(part(spec, "template")):
            yield _place(spot, role, "restartPolicy"), f"is {text(spec, 'restartPolicy')!r}"
    if "backoffLimit" in part(spot.body, "spec", "runPolicy"):
        yield "spec.runPolicy.backoffLimit", "is set"


@check(
    "managed-kubeflow-shape",
    "error",
    *ALL,
    why="all agents are equal, so there are Workers only (and the Master that an XGBoostJob "
    "requires); elasticPolicy would end the job with the first spare that leaves, and a "
    "TFJob ends with worker 0 unless AllWorkers is asked for",
    help="use one Worker role without elasticPolicy; for a TFJob, successPolicy AllWorkers",
)
def _managed_kubeflow_shape(spot: Spot) -> Iterator[Hit]:
    if not _agents(spot):
        return
    wanted = {"Worker", "Master"} if spot.kind == "XGBoostJob" else {"Worker"}
    others = sorted(set(roles(spot.body)) - wanted)
    if others:
        yield f"spec.{REPLICA_SPECS[spot.kind]}", f"has {', '.join(others)}"
    if _elastic(spot):
        yield "spec.elasticPolicy", "is set"
    if spot.kind == "TFJob" and text(spot.body, "spec", "successPolicy") != "AllWorkers":
        yield "spec.successPolicy", "is not AllWorkers"
