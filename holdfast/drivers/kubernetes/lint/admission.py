"""Traps of Kueue: labels and annotations that a schema takes for any text."""

from collections.abc import Iterator

from holdfast.drivers.kubernetes.lint.check import Hit, check
from holdfast.drivers.kubernetes.lint.look import (
    annotations,
    count,
    labels,
    name,
    number,
    part,
    parts,
    text,
)
from holdfast.drivers.kubernetes.lint.spots import REPLICA_SPECS, Spot
from holdfast.drivers.kubernetes.manifests.request import Body

DOMAIN = "kueue.x-k8s.io"
QUEUE, MAX_TIME = f"{DOMAIN}/queue-name", f"{DOMAIN}/max-exec-time-seconds"
PARTIAL, EQUAL = f"{DOMAIN}/job-min-parallelism", f"{DOMAIN}/job-completions-equal-parallelism"
ELASTIC = f"{DOMAIN}/elastic-job"
GROUP, TOTAL = f"{DOMAIN}/pod-group-name", f"{DOMAIN}/pod-group-total-count"
TOPOLOGY = tuple(
    f"{DOMAIN}/podset-{word}-topology" for word in ("required", "preferred", "unconstrained")
)
SCALES = ("Job", "RayCluster", "RayJob", "RayService")
KINDS = ("Job", "JobSet", "TrainJob", "Volcano Job", "Deployment", "Pod", *REPLICA_SPECS)


@check(
    "kueue-partial-kind",
    "error",
    *(kind for kind in KINDS if kind != "Job"),
    why="partial admission exists for batch/v1 Jobs only; elsewhere the annotation does nothing "
    "and the job waits for quota for every spare",
    help="use the engine job, or ask for the spares as a workload of their own",
)
def _kueue_partial_kind(spot: Spot) -> Iterator[Hit]:
    if PARTIAL in annotations(spot.body):
        yield "metadata.annotations", f"{PARTIAL} on a {spot.kind}"


@check(
    "kueue-partial-size",
    "error",
    "Job",
    why="job-min-parallelism must be a whole number below parallelism, as text",
    help="set it to the number of nodes that train",
)
def _kueue_partial_size(spot: Spot) -> Iterator[Hit]:
    found = annotations(spot.body).get(PARTIAL)
    most = count(spot.body, "spec", "parallelism")
    fits = isinstance(found, str) and found.isdigit() and 0 < int(found) < most
    if found is not None and not fits:
        yield "metadata.annotations", f"{PARTIAL} is {found!r} with parallelism {most}"


@check(
    "kueue-partial-completions",
    "error",
    "Job",
    why="Kueue shrinks parallelism; unless completions follow, the pods that were left out run "
    "later, alone",
    help=f'set the annotation {EQUAL}: "true" and equal numbers',
)
def _kueue_partial_completions(spot: Spot) -> Iterator[Hit]:
    found, spec = annotations(spot.body), part(spot.body, "spec")
    if PARTIAL not in found or spec.get("completionMode") != "Indexed":
        return
    if found.get(EQUAL) != "true":
        yield "metadata.annotations", f"{EQUAL} is missing"
    if number(spec, "completions") != number(spec, "parallelism"):
        yield "spec.completions", "differ from parallelism"


@check(
    "kueue-partial-with-gang",
    "error",
    "Job",
    why="a Job whose pods form a gang of Kubernetes may not be resized, which partial admission "
    "does",
    help="remove one of the two",
)
def _kueue_partial_with_gang(spot: Spot) -> Iterator[Hit]:
    spec = part(spot.body, "spec")
    gang = "scheduling" in spec or "schedulingGroup" in part(spec, "template", "spec")
    if PARTIAL in annotations(spot.body) and gang:
        yield "metadata.annotations", f"{PARTIAL} and a gang"


@check(
    "kueue-elastic",
    "error",
    *KINDS,
    why="elastic workloads exist for Jobs and Ray, and exclude partial admission, topologies and "
    "MultiKueue",
    help="remove one of them",
)
def _kueue_elastic(spot: Spot) -> Iterator[Hit]:
    said = {**labels(spot.body), **annotations(spot.body)}
    if said.get(ELASTIC) != "true":
        return
    if spot.kind not in SCALES:
        yield "metadata.annotations", f"{ELASTIC} on a {spot.kind}"
    if PARTIAL in said:
        yield "metadata.annotations", f"{ELASTIC} and {PARTIAL}"
    if text(spot.body, "spec", "managedBy").startswith(DOMAIN):
        yield "spec.managedBy", f"{ELASTIC} and MultiKueue"
    pods = [pod for pod in spot.file.pods if pod.root is spot.root]
    if any(key in annotations(pod.body) for pod in pods for key in TOPOLOGY):
        yield "metadata.annotations", f"{ELASTIC} and a topology"


@check(
    "kueue-topology-twice",
    "error",
    "pod",
    why="a topology is required, preferred or unconstrained; Kueue refuses two of them",
    help="keep one; with preferred, replacements can be placed elsewhere",
)
def _kueue_topology_twice(spot: Spot) -> Iterator[Hit]:
    found = [key for key in TOPOLOGY if key in annotations(spot.body)]
    if len(found) > 1:
        yield "metadata.annotations", " and ".join(found)


@check(
    "kueue-topology-place",
    "error",
    "Job",
    "JobSet",
    *REPLICA_SPECS,
    why="Kueue reads topologies from the pod template only; on the object they do nothing",
    help="move the annotation to the metadata of the pod template",
)
def _kueue_topology_place(spot: Spot) -> Iterator[Hit]:
    for key in TOPOLOGY:
        if key in annotations(spot.body):
            yield "metadata.annotations", key


@check(
    "kueue-fights-placement",
    "warning",
    "pod",
    why="with a topology Kueue pins each pod to the machine that it has reserved; an additional "
    "required node affinity can make a pod unschedulable",
    help="remove rules on host names",
)
def _kueue_fights_placement(spot: Spot) -> Iterator[Hit]:
    host = "kubernetes.io/hostname" in part(spot.body, "spec", "nodeSelector")
    if host and any(key in annotations(spot.body) for key in TOPOLOGY):
        yield "spec.nodeSelector", "names a machine"


@check(
    "kueue-group-count",
    "error",
    "Pod",
    why="a pod group is admitted when it has exactly its total count of pods: with fewer it "
    "waits forever, and Kueue deletes excess pods",
    help=f"set the annotation {TOTAL} to the number of pods with that {GROUP}",
)
def _kueue_group_count(spot: Spot) -> Iterator[Hit]:
    members = _group(spot)
    found = {str(annotations(body).get(TOTAL)) for body in members}
    if members and found != {str(len(members))}:
        said = ", ".join(sorted(found))
        yield "metadata.annotations", f"{TOTAL} is {said}, the group has {len(members)} pods"


def _group(spot: Spot) -> list[Body]:
    """The pods of a group, for the first of them."""
    group = labels(spot.body).get(GROUP)
    pods = spot.file.of("Pod") if group else []
    first = next((body for body in pods if labels(body).get(GROUP) == group), None)
    mine = first is spot.root
    return [body for body in pods if mine and labels(body).get(GROUP) == group]


@check(
    "kueue-group-differs",
    "error",
    "Pod",
    why="pods of a group without a queue, or of two queues, are never admitted together",
    help=f"give every pod of the group the same {QUEUE}",
)
def _kueue_group_differs(spot: Spot) -> Iterator[Hit]:
    queues = {labels(body).get(QUEUE, "none") for body in _group(spot)}
    if len(queues) > 1 or "none" in queues:
        yield "metadata.labels", f"queues of the group: {', '.join(sorted(queues))}"


@check(
    "kueue-max-time",
    "error",
    *KINDS,
    why="Kueue refuses a workload whose time limit is not a whole number of seconds",
    help='write seconds, as in "86400"',
)
def _kueue_max_time(spot: Spot) -> Iterator[Hit]:
    found = part(spot.body, "metadata", "labels").get(MAX_TIME)
    if found is not None and not (isinstance(found, str) and found.isdigit() and int(found)):
        yield "metadata.labels", f"{MAX_TIME} is {found!r}"


@check(
    "kueue-old-version",
    "warning",
    "LocalQueue",
    "ClusterQueue",
    "ResourceFlavor",
    "Topology",
    "WorkloadPriorityClass",
    why="v1beta1 of Kueue is deprecated; use v1beta2",
    help="kubectl explain clusterqueue --api-version kueue.x-k8s.io/v1beta2",
)
def _kueue_old_version(spot: Spot) -> Iterator[Hit]:
    if text(spot.body, "apiVersion") == f"{DOMAIN}/v1beta1":
        yield "apiVersion", f"is v1beta1 ({name(spot.body)})"


@check(
    "kueue-quota-uncovered",
    "error",
    "ClusterQueue",
    why="a flavor must give a quota for each covered resource and for no other",
    help="list the same resources in coveredResources and in every flavor",
)
def _kueue_quota_uncovered(spot: Spot) -> Iterator[Hit]:
    for group in parts(spot.body, "spec", "resourceGroups"):
        covered = set(map(str, group.get("coveredResources") or ()))
        for flavor in parts(group, "flavors"):
            given = {text(item, "name") for item in parts(flavor, "resources")}
            if given != covered:
                odd = ", ".join(sorted(given ^ covered))
                yield "spec.resourceGroups", f"flavor {text(flavor, 'name')}: {odd}"
