"""Traps of gang scheduling: Kubernetes' own PodGroups, Volcano's, the coscheduling plugin's."""

from collections.abc import Iterator
from fractions import Fraction

from holdfast.drivers.kubernetes.lint.check import Hit, check
from holdfast.drivers.kubernetes.lint.look import (
    annotations,
    labels,
    name,
    number,
    part,
    parts,
    quantity,
    text,
    value,
)
from holdfast.drivers.kubernetes.lint.spots import Spot, containers
from holdfast.drivers.kubernetes.manifests.request import Body

VOLCANO, COSCHEDULING = "Volcano PodGroup", "coscheduling PodGroup"
GROUPS = ("PodGroup", VOLCANO, COSCHEDULING)
NATIVE = {
    (1, 35): ("v1alpha1",),
    (1, 36): ("v1alpha2",),
    (1, 37): ("v1beta1", "v1alpha3"),
}
"""Versions of scheduling.k8s.io with gangs that each minor version serves."""
OLD_FIELD, NEW_FIELD = "workloadRef", "schedulingGroup"


def _group_of(template: Body) -> tuple[str, str]:
    """Kind and name of the group that a pod belongs to, two empty texts for none."""
    native = text(template, "spec", NEW_FIELD, "podGroupName")
    volcano = annotations(template).get("scheduling.k8s.io/group-name")
    plugin = labels(template).get("scheduling.x-k8s.io/pod-group")
    found = (("PodGroup", native), (VOLCANO, volcano), (COSCHEDULING, plugin))
    return next(((kind, str(word)) for kind, word in found if word), ("", ""))


def _members(spot: Spot) -> list[Spot]:
    wanted = (spot.kind, name(spot.body))
    return [pod for pod in spot.file.pods if _group_of(pod.body) == wanted]


def _least(spot: Spot) -> int:
    own = number(spot.body, "spec", "schedulingPolicy", "gang", "minCount")
    return own or number(spot.body, "spec", "minMember") or 0


@check(
    "gang-never-complete",
    "error",
    *GROUPS,
    why="a gang that asks for more pods than there are never starts",
    help="set the minimum to the number of nodes that train, without spares",
)
def _gang_never_complete(spot: Spot) -> Iterator[Hit]:
    members = _members(spot)
    most = sum(pod.pods for pod in members)
    if members and _least(spot) > most:
        yield "spec", f"asks for {_least(spot)} pods, {most} belong to it"


@check(
    "gang-group-unknown",
    "error",
    "pod",
    why="this file contains groups, but the pod refers to a different one and will wait for it",
    help="correct the name of the group",
)
def _gang_group_unknown(spot: Spot) -> Iterator[Hit]:
    kind, wanted = _group_of(spot.body)
    known = {name(body) for body in spot.file.of(kind)}
    if known and wanted not in known:
        yield "", f"no {kind} of this file is called {wanted}"


@check(
    "gang-without-scheduler",
    "error",
    "pod",
    why="only its own scheduler looks at this group; the default one starts pods one by one",
    help="set schedulerName (volcano, scheduler-plugins-scheduler) in the pod",
)
def _gang_without_scheduler(spot: Spot) -> Iterator[Hit]:
    kind, group = _group_of(spot.body)
    found = text(spot.body, "spec", "schedulerName")
    if kind in (VOLCANO, COSCHEDULING) and found in ("", "default-scheduler"):
        yield "spec.schedulerName", f"is the default, and {group} is a {kind}"


@check(
    "gang-mixed-priorities",
    "error",
    *GROUPS,
    why="members of a gang must have the same priority: otherwise the scheduling queue separates "
    "them and they starve",
    help="remove spares of lower priority from the group",
)
def _gang_mixed_priorities(spot: Spot) -> Iterator[Hit]:
    found = {text(pod.body, "spec", "priorityClassName") for pod in _members(spot)}
    if len(found) > 1:
        yield "spec", f"members have {', '.join(sorted(word or 'none' for word in found))}"


@check(
    "gang-priority-ignored",
    "warning",
    "PodGroup",
    why="the priority of a PodGroup overrides that of its pods",
    help="name the same PriorityClass in both",
)
def _gang_priority_ignored(spot: Spot) -> Iterator[Hit]:
    own = text(spot.body, "spec", "priorityClassName")
    for pod in _members(spot):
        theirs = text(pod.body, "spec", "priorityClassName")
        if theirs != own:
            yield "spec.priorityClassName", f"is {own or 'none'}, of its pods {theirs or 'none'}"
            return


@check(
    "gang-resources-of-all",
    "error",
    VOLCANO,
    COSCHEDULING,
    why="minResources must be free before the gang starts: if it includes the spares, the gang "
    "waits for capacity that it does not need",
    help="set minResources to the requests of minMember pods",
)
def _gang_resources_of_all(spot: Spot) -> Iterator[Hit]:
    members = _members(spot)
    for resource, asked in part(spot.body, "spec", "minResources").items():
        each = [_asked(pod.body, str(resource)) for pod in members]
        wanted = quantity(asked)
        if each and wanted is not None and wanted > _least(spot) * max(each) > 0:
            yield "spec.minResources", f"{asked} {resource}, {_least(spot)} pods need less"


def _asked(template: Body, resource: str) -> Fraction:
    found = [quantity(value(c, "resources", "limits", resource)) for c in containers(template)]
    return sum((one for one in found if one is not None), Fraction(0))


# ── Kubernetes' own ───────────────────────────────────────────────────────────────────────────


def _native(spot: Spot) -> list[Body]:
    found = spot.file.of("Workload", "PodGroup")
    return [body for body in found if text(body, "apiVersion").startswith("scheduling.k8s.io/")]


@check(
    "native-gang-version",
    "error",
    "Workload",
    "PodGroup",
    why="the API of native gangs differs between Kubernetes 1.35 (v1alpha1), 1.36 (v1alpha2) and "
    "1.37 (v1beta1), and each serves only its own version; older ones have none",
    help="holdfast render job.yaml --kubernetes-version 1.36",
)
def _native_gang_version(spot: Spot) -> Iterator[Hit]:
    version = spot.file.version
    found = text(spot.body, "apiVersion").partition("/")[2]
    if version is not None and found not in NATIVE.get(version, ()):
        served = " or ".join(NATIVE.get(version, ())) or "none"
        yield "apiVersion", f"is {found}, Kubernetes {version[0]}.{version[1]} has {served}"
    others = {text(body, "apiVersion") for body in _native(spot)}
    if len(others) > 1:
        yield "apiVersion", f"this file has {' and '.join(sorted(others))}"


@check(
    "native-gang-field",
    "error",
    "pod",
    why="a pod names its gang by workloadRef in 1.35 and by schedulingGroup since 1.36; a server "
    "drops the other key, and the pod starts alone",
    help="holdfast render job.yaml --kubernetes-version 1.36",
)
def _native_gang_field(spot: Spot) -> Iterator[Hit]:
    spec = part(spot.body, "spec")
    apis = {text(body, "apiVersion") for body in _native(spot)}
    version = spot.file.version
    old = version == (1, 35) or apis == {"scheduling.k8s.io/v1alpha1"}
    new = (version is not None and version > (1, 35)) or (bool(apis) and not old)
    none = version is not None and version < (1, 35)
    if OLD_FIELD in spec and (new or none):
        yield f"spec.{OLD_FIELD}", "is not supported by this version"
    if NEW_FIELD in spec and (old or none):
        yield f"spec.{NEW_FIELD}", "is not supported by this version"


@check(
    "native-gang-order",
    "error",
    "PodGroup",
    why="admission refuses a PodGroup whose Workload is missing, and pods whose PodGroup is; "
    "kubectl applies a file in its order",
    help="put the Workload first, then the PodGroup, then the pods",
)
def _native_gang_order(spot: Spot) -> Iterator[Hit]:
    here = spot.file.place(spot.root)
    wanted = _workload(spot.body)
    for body in spot.file.of("Workload"):
        if name(body) == wanted and spot.file.place(body) > here:
            yield "spec", f"the Workload {wanted} comes later"
    for pod in _members(spot):
        if spot.file.place(pod.root) < here:
            yield "spec", f"{text(pod.root, 'kind')} {name(pod.root)} comes before its group"
            return


def _workload(body: Body) -> str:
    new = text(body, "spec", "workloadRef", "workloadName")
    return new or text(body, "spec", "podGroupTemplateRef", "workload", "workloadName")


@check(
    "native-gang-template",
    "error",
    "PodGroup",
    why="a PodGroup is made from a template of its Workload, which must have one of that name",
    help="name one of spec.podGroupTemplates of the Workload",
)
def _native_gang_template(spot: Spot) -> Iterator[Hit]:
    old = text(spot.body, "spec", "podGroupTemplateRef", "workload", "podGroupTemplateName")
    wanted = text(spot.body, "spec", "workloadRef", "templateName") or old
    for body in spot.file.of("Workload"):
        if name(body) == _workload(spot.body):
            known = [text(item, "name") for item in parts(body, "spec", "podGroupTemplates")]
            if wanted and wanted not in known:
                yield "spec", f"{name(body)} has no template {wanted!r}"


@check(
    "gang-cannot-be-asked-to-leave",
    "error",
    "EvictionRequest",
    why="EvictionRequest does not work for pods of a PodGroup",
    help="use the eviction subresource of the pod",
)
def _gang_cannot_be_asked_to_leave(spot: Spot) -> Iterator[Hit]:
    wanted = text(spot.body, "spec", "target", "pod", "name")
    for pod in spot.file.pods:
        if pod.engine == "Pod" and name(pod.root) == wanted and _group_of(pod.body)[0]:
            yield "spec.target", f"{wanted} belongs to {_group_of(pod.body)[1]}"
