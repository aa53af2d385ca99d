"""Gangs: the nodes of a job start together or not at all; spares join when there is room.

A gang is an object that says how few pods are enough, and a mark on every pod that belongs to it.
`minimum` is always the nodes that train, never the spares: a job must not wait for a spare. Volcano
and the coscheduling plugin are schedulers of their own; Kubernetes' own gangs are in `native`,
because their shape changes with every release.
"""

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import assert_never

from holdfast.drivers.kubernetes.manifests import native
from holdfast.drivers.kubernetes.manifests.groups import fewest
from holdfast.drivers.kubernetes.manifests.marks import marked, with_spec
from holdfast.drivers.kubernetes.manifests.names import metadata
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.spec.cluster import Engine, Mode
from holdfast.spec.quantities import amount, in_bytes

SCHEDULERS = {"volcano": "volcano", "coscheduling": "scheduler-plugins-scheduler"}
VOLCANO_GROUP = "scheduling.k8s.io/group-name"
COSCHEDULING_GROUP = "scheduling.x-k8s.io/pod-group"

_ALL = ("native", "volcano", "coscheduling")
GANGS: dict[Engine, tuple[str, ...]] = {
    "pods": _ALL,
    "job": _ALL,
    "cronjob": (),  # one group for ever new pods; in managed mode the job it submits has one
    "jobset": _ALL,
    "pytorchjob": _ALL,
    "tfjob": _ALL,
    "jaxjob": _ALL,
    "xgboostjob": _ALL,
    "paddlejob": _ALL,
    "mpijob": ("volcano", "coscheduling"),  # its pods have no field for the others
    "rayjob": ("volcano", "coscheduling"),  # the pod template of older releases lacks the field
    "trainjob": _ALL,
    "volcano": ("volcano",),  # it makes the group itself
}
"""Kinds of gang that work with an engine."""
NATIVE_SINCE: dict[Engine, tuple[int, int]] = dict.fromkeys(GANGS, (1, 36)) | {
    "pods": native.OLDEST,
    "job": native.OLDEST,
}
"""First version of Kubernetes whose own gangs work with an engine: the pod templates inside other
definitions know the field of 1.36, not that of 1.35."""


def possible(engine: Engine, mode: Mode, version: tuple[int, int]) -> tuple[str, ...]:
    """Kinds of gang that work here."""
    by = "pods" if engine == "cronjob" and mode == "managed" else engine
    old = version < NATIVE_SINCE[by]
    return tuple(kind for kind in GANGS[by] if not (old and kind == "native"))


def member(request: Request, template: Body, role: str = "node") -> Body:
    """A pod or a pod template, marked as one of the gang. Spares with a priority of their own stay
    outside it; they use the same scheduler."""
    kind = request.job.scheduling.gang
    match kind:
        case "none":
            return template
        case "native":
            inside = {} if role == "spare" else native.reference(request)
            return with_spec(template, **inside)
        case "volcano":
            mark = {} if role == "spare" else {VOLCANO_GROUP: request.name}
            return _scheduled(request, marked(template, annotations=mark))
        case "coscheduling":
            mark = {} if role == "spare" else {COSCHEDULING_GROUP: request.name}
            return _scheduled(request, marked(template, labels=mark))
        case _:
            assert_never(kind)


def objects(request: Request, template: Body) -> list[Body]:
    """The objects that the members refer to, to be applied before them. `template` is that of a
    node; the gang's resources are reckoned from it."""
    kind = request.job.scheduling.gang
    match kind:
        case "none":
            return []
        case "native":
            return native.objects(request)
        case "volcano":
            return [_volcano(request, template)]
        case "coscheduling":
            return [_coscheduling(request, template)]
        case _:
            assert_never(kind)


def _scheduled(request: Request, template: Body) -> Body:
    scheduling = request.job.scheduling
    name = scheduling.scheduler or SCHEDULERS[scheduling.gang]
    return with_spec(template, schedulerName=name)


def _volcano(request: Request, template: Body) -> Body:
    scheduling = request.job.scheduling
    spec: Body = {
        "minMember": fewest(request),
        "minResources": minimum_resources(request, template),
        "queue": scheduling.queue,
        "priorityClassName": scheduling.priority_class,
        "networkTopology": network_topology(request),
    }
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": metadata(request, request.name),
        "spec": {key: value for key, value in spec.items() if value},
    }


def network_topology(request: Request) -> Body:
    """Volcano's topology: `scheduling.topology` is the name of a tier of its hyper nodes."""
    tier = request.job.scheduling.topology
    return {"mode": "hard", "highestTierName": tier} if tier else {}


def _coscheduling(request: Request, template: Body) -> Body:
    spec: Body = {
        "minMember": fewest(request),
        "minResources": minimum_resources(request, template),
        "scheduleTimeoutSeconds": request.job.scheduling.gang_timeout_s,
    }
    return {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": metadata(request, request.name),
        "spec": {key: value for key, value in spec.items() if value},
    }


def minimum_resources(request: Request, template: Body) -> dict[str, str]:
    """What the smallest gang asks for in all; more than that would keep it waiting for spares."""
    total: dict[str, Fraction] = {}
    for resources in _side_by_side(template["spec"]):
        for name, quantity in {
            **resources.get("limits", {}),
            **resources.get("requests", {}),
        }.items():
            total[name] = total.get(name, Fraction(0)) + amount(str(quantity))
    return {name: _quantity(name, each * fewest(request)) for name, each in total.items()}


def _side_by_side(spec: Body) -> Iterable[Body]:
    """Resources of the containers that run at the same time: sidecars with the main ones."""
    sidecars = (c for c in spec.get("initContainers", []) if c.get("restartPolicy") == "Always")
    return (c.get("resources", {}) for c in (*sidecars, *spec["containers"]))


def _quantity(name: str, total: Fraction) -> str:
    if name.startswith(("memory", "ephemeral-storage", "hugepages-")):
        return in_bytes(total)
    return str(total) if total.denominator == 1 else f"{math.ceil(total * 1000)}m"
