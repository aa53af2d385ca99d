"""Kubernetes' own gangs: a Workload and its PodGroup, in the shape of one minor version each.

The API is young and changed with every release: 1.35 had groups inside the Workload, 1.36 made the
PodGroup an object, 1.37 renamed fields. One function for each shape keeps that in view, and a new
release is one more line in the table. The order is Workload, PodGroup, pods: a PodGroup whose
Workload is missing is refused.
"""

from collections.abc import Callable

from holdfast.drivers.kubernetes.manifests.groups import fewest
from holdfast.drivers.kubernetes.manifests.names import metadata
from holdfast.drivers.kubernetes.manifests.request import Body, Request

GROUP = "node"  # the group's name inside its Workload


def reference(request: Request) -> Body:
    """Keys of a pod's spec that make it a member."""
    if request.version < (1, 36):
        return {"workloadRef": {"name": request.name, "podGroup": GROUP}}
    return {"schedulingGroup": {"podGroupName": request.name}}


def objects(request: Request) -> list[Body]:
    """Workload and PodGroup for the request's version of Kubernetes, which has gangs."""
    newest = max(version for version in SHAPES if version <= request.version)
    return SHAPES[newest](request)


def _v1alpha1(request: Request) -> list[Body]:
    group: Body = {"name": GROUP, "policy": _gang(request)}
    return [_object(request, "v1alpha1", "Workload", {"podGroups": [group]})]


def _v1alpha2(request: Request) -> list[Body]:
    whole = "PodGroup" if _all_or_none(request) else "Pod"
    topology = request.job.scheduling.topology
    group = _group(request, {"topology": [{"key": topology}]} if topology else {}, whole)
    inner = {"workloadName": request.name, "podGroupTemplateName": GROUP}
    return _pair(request, "v1alpha2", group, {"podGroupTemplateRef": {"workload": inner}})


def _v1beta1(request: Request) -> list[Body]:
    whole: Body = {"all": {}} if _all_or_none(request) else {"single": {}}
    topology = request.job.scheduling.topology
    group = _group(request, {"topology": [{"key": topology}]} if topology else {}, whole)
    inner = {"workloadName": request.name, "templateName": GROUP}
    return _pair(request, "v1beta1", group, {"workloadRef": inner})


SHAPES: dict[tuple[int, int], Callable[[Request], list[Body]]] = {
    (1, 35): _v1alpha1,
    (1, 36): _v1alpha2,
    (1, 37): _v1beta1,
}
"""Shape of the objects by the first version of Kubernetes that has it."""
OLDEST = min(SHAPES)
TOPOLOGY_SINCE = (1, 36)
"""First version whose groups can be kept within one value of a label."""


def _pair(request: Request, api: str, group: Body, reference: Body) -> list[Body]:
    template = {"name": GROUP, **group}
    return [
        _object(request, api, "Workload", {"podGroupTemplates": [template]}),
        _object(request, api, "PodGroup", {**reference, **group}),
    ]


def _group(request: Request, constraints: Body, disruption: object) -> Body:
    group: Body = {
        "schedulingPolicy": _gang(request),
        "schedulingConstraints": constraints,
        "disruptionMode": disruption,
        "priorityClassName": request.job.scheduling.priority_class,
    }
    return {key: value for key, value in group.items() if value}


def _gang(request: Request) -> Body:
    return {"gang": {"minCount": fewest(request)}}


def _all_or_none(request: Request) -> bool:
    """Whether losing one pod to a preemption is as bad as losing all of them."""
    return request.spares == 0 and request.job.elasticity is None


def _object(request: Request, api: str, kind: str, spec: Body) -> Body:
    return {
        "apiVersion": f"scheduling.k8s.io/{api}",
        "kind": kind,
        "metadata": metadata(request, request.name),
        "spec": spec,
    }
