"""Traps of MPIJobs: v2beta1 of the mpi-operator, v1 of the training-operator."""

from collections.abc import Iterator
from itertools import pairwise

from holdfast.drivers.kubernetes.lint.check import Hit, check
from holdfast.drivers.kubernetes.lint.look import count, number, part, text
from holdfast.drivers.kubernetes.lint.spots import (
    Spot,
    containers,
    gpus,
    managed,
    program,
    roles,
)

ONLY_NEW = (
    "sshAuthMountPath",
    "launcherCreationPolicy",
    "mpiImplementation",
    "runLauncherAsWorker",
)
ONLY_OLD = ("mainContainer", "cleanPodPolicy")
COUNTS = ("-np", "-n", "-c", "--np")


def _new(spot: Spot) -> bool:
    return text(spot.body, "apiVersion").endswith("/v2beta1")


def _launcher(spot: Spot) -> dict[str, object]:
    return roles(spot.body).get("Launcher", {})


def _workers(spot: Spot) -> int:
    return count(roles(spot.body).get("Worker", {}), "replicas")


@check(
    "mpijob-two-versions",
    "error",
    "MPIJob",
    why="v1 and v2beta1 are two definitions of one name, from two operators: a cluster can have "
    "only one of them",
    help="kubectl get crd mpijobs.kubeflow.org -o jsonpath={.spec.versions[*].name}",
)
def _mpijob_two_versions(spot: Spot) -> Iterator[Hit]:
    found = sorted({text(body, "apiVersion") for body in spot.file.of("MPIJob")})
    if len(found) > 1:
        yield "apiVersion", f"this file has {' and '.join(found)}"


@check(
    "mpijob-other-version",
    "error",
    "MPIJob",
    why="this key belongs to the other version of MPIJob, which another operator serves",
    help="kubectl get crd mpijobs.kubeflow.org -o jsonpath={.spec.versions[*].name}",
)
def _mpijob_other_version(spot: Spot) -> Iterator[Hit]:
    for key in ONLY_OLD if _new(spot) else ONLY_NEW:
        if key in part(spot.body, "spec"):
            yield f"spec.{key}", f"in {text(spot.body, 'apiVersion')}"


@check(
    "mpijob-launcher",
    "error",
    "MPIJob",
    why="an MPIJob has exactly one Launcher, whose exit is the job's",
    help="add a Launcher with replicas: 1 that runs mpirun",
)
def _mpijob_launcher(spot: Spot) -> Iterator[Hit]:
    if "Launcher" not in roles(spot.body):
        yield "spec.mpiReplicaSpecs", "has no Launcher"
    elif count(_launcher(spot), "replicas") != 1:
        yield "spec.mpiReplicaSpecs.Launcher.replicas", f"is {_launcher(spot)['replicas']}"


@check(
    "mpijob-worker-lost-for-good",
    "warning",
    "MPIJob",
    why="the operator recreates a worker pod that is missing, never one that is there and Failed: "
    "with Never a worker that crashed is lost for the life of the job",
    help="set restartPolicy: OnFailure for the Worker",
)
def _mpijob_worker_lost_for_good(spot: Spot) -> Iterator[Hit]:
    found = text(roles(spot.body).get("Worker", {}), "restartPolicy") or "Never"
    if _new(spot) and "Worker" in roles(spot.body) and found == "Never":
        yield "spec.mpiReplicaSpecs.Worker.restartPolicy", "is Never"


@check(
    "mpijob-launcher-too-early",
    "warning",
    "MPIJob",
    why="a launcher that starts before its workers fails to reach them, and each retry waits twice "
    "as long as the one before (10 s, 20 s, 40 s, ...)",
    help="set launcherCreationPolicy: WaitForWorkersReady",
)
def _mpijob_launcher_too_early(spot: Spot) -> Iterator[Hit]:
    found = text(spot.body, "spec", "launcherCreationPolicy")
    waits = managed(part(_launcher(spot), "template"))  # an agent waits by itself
    if _new(spot) and not waits and found != "WaitForWorkersReady":
        yield "spec.launcherCreationPolicy", f"is {found or 'AtStartup, by default'}"


@check(
    "mpijob-too-many-ranks",
    "error",
    "MPIJob",
    why="mpirun refuses more ranks than the hostfile has slots",
    help="keep -np at slotsPerWorker times the workers",
)
def _mpijob_too_many_ranks(spot: Spot) -> Iterator[Hit]:
    hosts = _workers(spot) + (part(spot.body, "spec").get("runLauncherAsWorker") is True)
    slots = (number(spot.body, "spec", "slotsPerWorker") or 1) * hosts
    asked = _ranks(spot)
    if asked is not None and asked > slots:
        yield "spec.mpiReplicaSpecs.Launcher", f"{asked} ranks on {slots} slots"


@check(
    "mpijob-idle-slots",
    "warning",
    "MPIJob",
    why="slots without a rank are idle GPUs",
    help="set -np to slotsPerWorker times the workers",
)
def _mpijob_idle_slots(spot: Spot) -> Iterator[Hit]:
    slots = (number(spot.body, "spec", "slotsPerWorker") or 1) * _workers(spot)
    asked = _ranks(spot)
    if asked is not None and asked < slots:
        yield "spec.mpiReplicaSpecs.Launcher", f"{asked} ranks on {slots} slots"


def _ranks(spot: Spot) -> int | None:
    """Ranks that mpirun is asked for, None where the command does not say."""
    for container in containers(part(_launcher(spot), "template")):
        line = program(container)
        if not any("mpirun" in word or "mpiexec" in word for word in line[:1]):
            continue
        for word, after in pairwise(line):
            if word in COUNTS and after.isdigit():
                return int(after)
    return None


@check(
    "mpijob-launcher-takes-gpus",
    "warning",
    "MPIJob",
    why="the launcher only starts the ranks elsewhere; its GPUs stay idle",
    help="ask for GPUs in the Worker only, or set runLauncherAsWorker: true",
)
def _mpijob_launcher_takes_gpus(spot: Spot) -> Iterator[Hit]:
    works = part(spot.body, "spec").get("runLauncherAsWorker") is True
    asked = gpus(part(_launcher(spot), "template"))
    if asked and not works and _workers(spot):
        yield "spec.mpiReplicaSpecs.Launcher", f"asks for {asked} GPUs"


@check(
    "mpijob-gang-without-launcher",
    "warning",
    "MPIJob",
    why="the gang of an MPIJob counts the launcher too: one less than all may start all workers "
    "but not the launcher, or leave a worker out",
    help="set minAvailable to the workers and one more",
)
def _mpijob_gang_without_launcher(spot: Spot) -> Iterator[Hit]:
    least = number(spot.body, "spec", "runPolicy", "schedulingPolicy", "minAvailable")
    agents = any(managed(part(spec, "template")) for spec in roles(spot.body).values())
    if least is not None and not agents and least <= _workers(spot):
        yield "spec.runPolicy.schedulingPolicy.minAvailable", f"is {least}"
