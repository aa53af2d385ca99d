"""Traps of Kubeflow Trainer: TrainJob and the runtimes it refers to."""

import re
from collections.abc import Iterator

from holdfast.drivers.kubernetes.lint.check import Hit, check
from holdfast.drivers.kubernetes.lint.look import count, name, number, part, parts, text, value
from holdfast.drivers.kubernetes.lint.spots import RUNTIMES, Spot, joined, managed, runtime_nodes
from holdfast.drivers.kubernetes.manifests.names import LONGEST
from holdfast.drivers.kubernetes.manifests.request import Body

STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
RESERVED = ("node", "dataset-initializer", "model-initializer")
CONTROLLERS = ("", "trainer.kubeflow.org/trainjob-controller", "kueue.x-k8s.io/multikueue")
GONE = ("podTemplateOverrides", "podSpecOverrides", "modelConfig", "datasetConfig")


def _env(body: object, *keys: str) -> list[str]:
    return [text(item, "name") for item in parts(body, *keys, "env")]


@check(
    "trainjob-pet-variables",
    "error",
    "TrainJob",
    why="Trainer sets PET_* for torchrun itself and refuses a TrainJob that sets them",
    help="use numNodes and numProcPerNode",
)
def _trainjob_pet_variables(spot: Spot) -> Iterator[Hit]:
    found = [n for n in _env(spot.body, "spec", "trainer") if n.startswith("PET_")]
    if found:
        yield "spec.trainer.env", f"sets {', '.join(found)}"


@check(
    "trainjob-patched-env",
    "error",
    "TrainJob",
    why="variables of the containers node, dataset-initializer and model-initializer may not be "
    "patched; admission refuses the TrainJob",
    help="set them in spec.trainer.env",
)
def _trainjob_patched_env(spot: Spot) -> Iterator[Hit]:
    for patch in parts(spot.body, "spec", "runtimePatches"):
        jobs = parts(patch, "trainingRuntimeSpec", "template", "spec", "replicatedJobs")
        for job in jobs:
            pod = part(job, "template", "spec", "template", "spec")
            for container in (*parts(pod, "containers"), *parts(pod, "initContainers")):
                if text(container, "name") in RESERVED and container.get("env"):
                    yield "spec.runtimePatches", f"sets env of {container['name']}"


@check(
    "trainjob-removed-field",
    "error",
    "TrainJob",
    *RUNTIMES,
    why="Trainer 2.2 renamed the overrides to runtimePatches and took elasticPolicy and "
    "numProcPerNode out of the runtimes",
    help="use runtimePatches, and numProcPerNode of the TrainJob",
)
def _trainjob_removed_field(spot: Spot) -> Iterator[Hit]:
    found = part(spot.body, "spec")
    yield from ((f"spec.{key}", "was removed") for key in GONE if key in found)
    torch = part(found, "mlPolicy", "torch")
    if spot.kind != "TrainJob":
        gone = [key for key in ("elasticPolicy", "numProcPerNode") if key in torch]
        yield from ((f"spec.mlPolicy.torch.{key}", "was removed") for key in gone)


@check(
    "trainjob-name",
    "error",
    "TrainJob",
    why="a TrainJob's name must start with a letter, and its pods are called NAME-node-0-INDEX "
    f"with six more characters, {LONGEST} in all",
    help="choose a shorter name that starts with a letter",
)
def _trainjob_name(spot: Spot) -> Iterator[Hit]:
    found = name(spot.body)
    last = (number(spot.body, "spec", "trainer", "numNodes") or 1) - 1
    longest = len(f"{found}-node-0-{last}-xxxxx")
    if found and not re.match("[a-z]", found):
        yield "metadata.name", f"{found!r} starts with a digit"
    if longest > LONGEST:
        yield "metadata.name", f"the last pod's name has {longest} characters"


def _runtimes(spot: Spot) -> list[Body]:
    """The runtimes of this file that the TrainJob may mean."""
    wanted = text(spot.body, "spec", "runtimeRef", "kind") or "ClusterTrainingRuntime"
    return spot.file.of(wanted)


@check(
    "trainjob-before-runtime",
    "error",
    "TrainJob",
    why="the runtime must exist when the TrainJob is created: admission refuses it otherwise, and "
    "kubectl applies a file in its order",
    help="put the runtime above the TrainJob",
)
def _trainjob_before_runtime(spot: Spot) -> Iterator[Hit]:
    wanted = text(spot.body, "spec", "runtimeRef", "name")
    for body in _runtimes(spot):
        if name(body) == wanted and spot.file.place(body) > spot.file.place(spot.root):
            yield "spec.runtimeRef", f"{wanted} comes later in the file"


@check(
    "trainjob-runtime-unknown",
    "warning",
    "TrainJob",
    why="this file contains runtimes, but the TrainJob refers to a different one",
    help="kubectl get trainingruntimes,clustertrainingruntimes",
)
def _trainjob_runtime_unknown(spot: Spot) -> Iterator[Hit]:
    wanted = text(spot.body, "spec", "runtimeRef", "name")
    known = {name(body) for body in spot.file.of(*RUNTIMES)}
    if known and wanted not in {name(body) for body in _runtimes(spot)}:
        yield "spec.runtimeRef", f"{wanted} is not among {', '.join(sorted(known))}"


@check(
    "trainjob-managed-by",
    "error",
    "TrainJob",
    why="Trainer accepts only its own controller and MultiKueue's",
    help="leave managedBy out",
)
def _trainjob_managed_by(spot: Spot) -> Iterator[Hit]:
    found = text(spot.body, "spec", "managedBy")
    if found not in CONTROLLERS:
        yield "spec.managedBy", f"is {found}"


# ── runtimes ──────────────────────────────────────────────────────────────────────────────────


def _jobs(spot: Spot) -> list[Body]:
    return parts(spot.body, "spec", "template", "spec", "replicatedJobs")


def _nodes(spot: Spot) -> int:
    return runtime_nodes(spot) or 1


def _needed(spot: Spot) -> int | None:
    """Pods that have to succeed, where a rule says so."""
    rules = [
        rule
        for job in _jobs(spot)
        for rule in parts(job, "template", "spec", "successPolicy", "rules")
    ]
    return next((number(rule, "succeededCount") for rule in rules), None)


@check(
    "trainingruntime-gang-with-spares",
    "error",
    *RUNTIMES,
    why="the gang of a runtime always includes all of its nodes: without capacity for every "
    "spare nothing starts",
    help="remove podGroupPolicy, or set spares to 0",
)
def _trainingruntime_gang_with_spares(spot: Spot) -> Iterator[Hit]:
    needed = _needed(spot)
    gang = part(spot.body, "spec", "podGroupPolicy")
    if gang and needed is not None and needed < _nodes(spot):
        yield "spec.podGroupPolicy", f"{needed} of {_nodes(spot)} nodes train"


@check(
    "trainingruntime-success-count",
    "error",
    *RUNTIMES,
    why="more successes are asked for than the runtime has nodes",
    help="set succeededCount to the number of nodes that train",
)
def _trainingruntime_success_count(spot: Spot) -> Iterator[Hit]:
    needed = _needed(spot)
    if needed is not None and needed > _nodes(spot):
        yield "spec.template.spec.replicatedJobs", f"succeededCount {needed} of {_nodes(spot)}"


@check(
    "trainingruntime-retries-by-default",
    "warning",
    *RUNTIMES,
    why="retries cannot be set in a TrainJob: without failurePolicy, backoffLimit and "
    "restartPolicy the runtime restarts single containers six times, then fails without a reason",
    help="set failurePolicy.maxRestarts, and backoffLimit and restartPolicy of the node's Job",
)
def _trainingruntime_retries_by_default(spot: Spot) -> Iterator[Hit]:
    if "failurePolicy" not in part(spot.body, "spec", "template", "spec"):
        yield "spec.template.spec.failurePolicy", "is missing"
    for index, job in enumerate(_jobs(spot)):
        spec = part(job, "template", "spec")
        policy = text(spec, "template", "spec", "restartPolicy")
        place = f"spec.template.spec.replicatedJobs[{index}].template.spec"
        if "backoffLimit" not in spec:
            yield joined(place, "backoffLimit"), "is 6, by default"
        if policy != "Never":
            yield joined(place, "template.spec.restartPolicy"), f"is {policy or 'OnFailure'}"


@check(
    "trainingruntime-without-step",
    "warning",
    *RUNTIMES,
    why="Trainer finds the Job to which image, command and numNodes of a TrainJob belong by a "
    f"label: {STEP}: trainer",
    help="put the label into the template of the replicated Job called node",
)
def _trainingruntime_without_step(spot: Spot) -> Iterator[Hit]:
    steps = [text(part(job, "template", "metadata", "labels"), STEP) for job in _jobs(spot)]
    if _jobs(spot) and "trainer" not in steps:
        yield "spec.template.spec.replicatedJobs", "none is the trainer's"


@check(
    "managed-trainingruntime",
    "error",
    *RUNTIMES,
    why="agents start the workers and give them their ranks: a torch or MPI policy would too, "
    "and restarts of the whole set discard what agents keep in memory",
    help="use mlPolicy with numNodes only, and failurePolicy.maxRestarts: 0",
)
def _managed_trainingruntime(spot: Spot) -> Iterator[Hit]:
    pods = [part(job, "template", "spec", "template") for job in _jobs(spot)]
    mine = [part(body, "spec", "trainer") for body in spot.file.of("TrainJob")]
    commands = [{"spec": {"containers": [trainer]}} for trainer in mine]
    if not any(managed(pod) for pod in (*pods, *commands)):
        return
    policies = sorted(set(part(spot.body, "spec", "mlPolicy")) - {"numNodes"})
    if policies:
        yield "spec.mlPolicy", f"has {', '.join(policies)}"
    if value(spot.body, "spec", "template", "spec", "failurePolicy", "maxRestarts") not in (
        0,
        None,
    ):
        yield "spec.template.spec.failurePolicy.maxRestarts", "is not 0"


@check(
    "trainingruntime-node-replicas",
    "error",
    *RUNTIMES,
    why="numNodes sets parallelism and completions of one Job, so its replicas must be 1",
    help="leave replicas out",
)
def _trainingruntime_node_replicas(spot: Spot) -> Iterator[Hit]:
    for index, job in enumerate(_jobs(spot)):
        if job.get("name") == "node" and count(job, "replicas") != 1:
            place = f"spec.template.spec.replicatedJobs[{index}].replicas"
            yield place, f"is {count(job, 'replicas')}"
