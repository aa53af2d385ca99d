"""Where there is something to look at: objects, the batch Jobs inside them, the pods inside them.

A pod template stands in a dozen places, by kind; a check of pods should not know them. A spot is
one such place with its surroundings: the object it belongs to, the file, how many pods come of it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from holdfast.devices import by_resource
from holdfast.drivers.kubernetes.lint.look import count, number, part, parts, text, value, words
from holdfast.drivers.kubernetes.manifests.request import Body

Version = tuple[int, int]

REPLICA_SPECS = {
    "PyTorchJob": "pytorchReplicaSpecs",
    "TFJob": "tfReplicaSpecs",
    "XGBoostJob": "xgbReplicaSpecs",
    "JAXJob": "jaxReplicaSpecs",
    "PaddleJob": "paddleReplicaSpecs",
    "MPIJob": "mpiReplicaSpecs",
}
"""Kubeflow's kinds and the key of their roles."""
SERVING = frozenset(("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"))
RUNTIMES = ("TrainingRuntime", "ClusterTrainingRuntime")
ALIASES = {
    ("batch.volcano.sh", "Job"): "Volcano Job",
    ("scheduling.volcano.sh", "PodGroup"): "Volcano PodGroup",
    ("scheduling.x-k8s.io", "PodGroup"): "coscheduling PodGroup",
    ("kueue.x-k8s.io", "Workload"): "Kueue Workload",
}


class File:
    """The objects of a job, with what every check asks for kept: files may have a thousand pods."""

    def __init__(self, bodies: Sequence[Body], version: Version | None = None):
        self.bodies = tuple(bodies)
        self.version = version

    def of(self, *kinds: str) -> list[Body]:
        """The objects of these kinds."""
        return [body for kind in kinds for body in self._by_kind.get(kind, ())]

    def twins(self, body: Body) -> int:
        """How many objects have the kind, the name and the namespace of this one."""
        return self._identities[identity(body)]

    def place(self, body: Body) -> int:
        """Which object of the file it is."""
        return self._places[id(body)]

    @cached_property
    def spots(self) -> "list[Spot]":
        """Every spot: each object, then the Jobs, then the pods inside it."""
        return [spot for body in self.bodies for spot in _spots(self, body)]

    @cached_property
    def pods(self) -> "list[Spot]":
        """The pod templates."""
        return [spot for spot in self.spots if spot.kind == "pod"]

    @cached_property
    def _by_kind(self) -> dict[str, list[Body]]:
        found: dict[str, list[Body]] = {}
        for body in self.bodies:
            found.setdefault(kind_of(body), []).append(body)
        return found

    @cached_property
    def _identities(self) -> Counter[tuple[str, ...]]:
        return Counter(map(identity, self.bodies))

    @cached_property
    def _places(self) -> dict[int, int]:
        return {id(body): index for index, body in enumerate(self.bodies)}


@dataclass(frozen=True)
class Spot:
    """Something to look at. `kind` is that of the object, or `job` or `pod` for what is inside."""

    kind: str
    body: Body
    path: str
    root: Body
    file: File
    pods: int = 1  # that come of this template

    @property
    def ends(self) -> bool:
        """Whether what runs here is to end some day."""
        return kind_of(self.root) not in SERVING

    @property
    def engine(self) -> str:
        """Kind of the object around."""
        return kind_of(self.root)


def kind_of(body: Body) -> str:
    """The kind, made unambiguous where several projects use one word."""
    group, kind = text(body, "apiVersion").partition("/")[0], text(body, "kind")
    return ALIASES.get((group, kind), kind)


def identity(body: Body) -> tuple[str, ...]:
    """What no two objects of a cluster have in common."""
    group = text(body, "apiVersion").rpartition("/")[0]
    meta = part(body, "metadata")
    return group, text(body, "kind"), text(meta, "namespace"), text(meta, "name")


def _spots(file: File, body: Body) -> Iterator[Spot]:
    whole = Spot(kind_of(body), body, "", body, file)
    yield whole
    jobs = list(_jobs(whole))
    yield from (job for job in jobs if job.kind == "job")
    yield from (pod for job in jobs for pod in _pods(job))


def _jobs(whole: Spot) -> Iterator[Spot]:
    """Batch Jobs inside an object; of objects without one, the object itself."""
    match whole.kind:
        case "Job":
            yield _job(whole, part(whole.body, "spec"), "spec", 1)
        case "CronJob":
            spec = part(whole.body, "spec", "jobTemplate", "spec")
            yield _job(whole, spec, "spec.jobTemplate.spec", 1)
        case "JobSet":
            yield from _replicated(whole, part(whole.body, "spec"), "spec", 0)
        case "TrainingRuntime" | "ClusterTrainingRuntime":
            nodes = runtime_nodes(whole) or 0
            yield from _replicated(
                whole, part(whole.body, "spec", "template", "spec"), "spec.template.spec", nodes
            )
        case _:
            yield whole


def runtime_nodes(runtime: Spot) -> int | None:
    """Nodes of a runtime: as the TrainJob of this file asks for them, else as itself says."""
    mine = text(runtime.body, "metadata", "name")
    asked = [
        number(body, "spec", "trainer", "numNodes")
        for body in runtime.file.of("TrainJob")
        if text(body, "spec", "runtimeRef", "name") == mine
    ]
    said = next((found for found in asked if found is not None), None)
    return said or number(runtime.body, "spec", "mlPolicy", "numNodes")


def _replicated(whole: Spot, spec: Body, path: str, nodes: int) -> Iterator[Spot]:
    for index, item in enumerate(parts(spec, "replicatedJobs")):
        place = f"{path}.replicatedJobs[{index}].template.spec"
        job = _job(whole, part(item, "template", "spec"), place, count(item, "replicas"))
        yield replace(job, pods=nodes) if nodes and item.get("name") == "node" else job


def _job(whole: Spot, spec: Body, path: str, times: int) -> Spot:
    pods = max(times * count(spec, "parallelism"), 0)
    return replace(whole, kind="job", body=spec, path=path, pods=pods)


def _pods(spot: Spot) -> Iterator[Spot]:
    match spot.kind:
        case "job":
            yield _pod(spot, part(spot.body, "template"), "template", spot.pods)
        case "Pod":
            yield _pod(spot, spot.body, "", 1)
        case "Volcano Job":
            for index, task in enumerate(parts(spot.body, "spec", "tasks")):
                place = f"spec.tasks[{index}].template"
                yield _pod(spot, part(task, "template"), place, count(task, "replicas"))
        case kind if kind in SERVING:
            times = count(spot.body, "spec", "replicas")
            yield _pod(spot, part(spot.body, "spec", "template"), "spec.template", times)
        case "RayCluster":
            yield from _ray_nodes(spot, part(spot.body, "spec"), "spec")
        case "RayJob":
            cluster = part(spot.body, "spec", "rayClusterSpec")
            yield from _ray_nodes(spot, cluster, "spec.rayClusterSpec")
            if submitter := part(spot.body, "spec", "submitterPodTemplate"):
                yield _pod(spot, submitter, "spec.submitterPodTemplate", 1)
        case kind if kind in REPLICA_SPECS:
            for role, spec in roles(spot.body).items():
                place = f"spec.{REPLICA_SPECS[kind]}.{role}.template"
                yield _pod(spot, part(spec, "template"), place, count(spec, "replicas"))


def _ray_nodes(spot: Spot, spec: Body, path: str) -> Iterator[Spot]:
    if head := part(spec, "headGroupSpec", "template"):
        yield _pod(spot, head, f"{path}.headGroupSpec.template", 1)
    for index, group in enumerate(parts(spec, "workerGroupSpecs")):
        place = f"{path}.workerGroupSpecs[{index}].template"
        yield _pod(spot, part(group, "template"), place, count(group, "replicas"))


def _pod(spot: Spot, template: Body, place: str, times: int) -> Spot:
    return replace(spot, kind="pod", body=template, path=joined(spot.path, place), pods=times)


def roles(body: Body) -> dict[str, Body]:
    """The roles of one of Kubeflow's jobs (v1) or of an MPIJob."""
    found = part(body, "spec", REPLICA_SPECS.get(kind_of(body), ""))
    return {str(role): spec for role, spec in found.items() if isinstance(spec, dict)}


def joined(*places: str) -> str:
    """A path of its parts, empty ones left out."""
    return ".".join(place for place in places if place)


def containers(template: Body, *, init: bool = False) -> list[Body]:
    """Containers of a pod; with `init`, those that run before or beside them too."""
    spec = part(template, "spec")
    return [*(parts(spec, "initContainers") if init else ()), *parts(spec, "containers")]


def program(container: Body) -> list[str]:
    """Command and arguments of a container."""
    return [*words(container, "command"), *words(container, "args")]


def runs(template: Body, verb: str) -> bool:
    """Whether a container of this pod runs `holdfast VERB`."""
    return any(
        one.rpartition("/")[2] == "holdfast" and other == verb
        for container in containers(template)
        for line in [program(container)]
        for one, other in pairwise(line)
    )


def managed(template: Body) -> bool:
    """Whether Holdfast's agent runs in this pod."""
    return runs(template, "agent")


def gpus(template: Body) -> int:
    """GPUs of a pod, by any of their names."""
    found = 0
    for container in containers(template):
        for resource, asked in part(container, "resources", "limits").items():
            known = "gpu" in str(resource) or by_resource(str(resource)) is not None
            found += int(asked) if known and str(asked).isdigit() else 0
    return found


def env(container: Body) -> dict[str, object]:
    """Variables of a container; what comes from elsewhere is None."""
    return {text(item, "name"): value(item, "value") for item in parts(container, "env")}
