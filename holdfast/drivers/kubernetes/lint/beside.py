"""Traps of what stands beside the pods: Services, budgets, policies, claims, monitors.

Most of these objects refer to pods by labels, which nothing checks. They are judged only where the
file has pods at all: a file with a Service alone says nothing about whom it serves.
"""

from collections.abc import Iterator

from holdfast.drivers.kubernetes.lint.check import Hit, check
from holdfast.drivers.kubernetes.lint.look import (
    labels,
    name,
    number,
    part,
    parts,
    selects,
    text,
    value,
    words,
)
from holdfast.drivers.kubernetes.lint.spots import RUNTIMES, Spot, containers, runs
from holdfast.drivers.kubernetes.manifests.request import Body

SPARE = ("spare", "standby")
BUILT_IN = ("batch.kubernetes.io/", "job-name", "training.kubeflow.org/", "jobset.sigs.k8s.io/")
WITHOUT_SCALE = ("Pod", "Job", "CronJob", "JobSet", *RUNTIMES)
SERVICE_MAKERS = ("JobSet", "MPIJob", "Volcano Job", *RUNTIMES)
OTHERS = ("volcano.sh/", "trainer.kubeflow.org/")  # labels that controllers add later


def _selector(spot: Spot) -> Body:
    match spot.kind:
        case "Service":
            return {"matchLabels": part(spot.body, "spec", "selector")}
        case "NetworkPolicy":
            return part(spot.body, "spec", "podSelector")
        case _:
            return part(spot.body, "spec", "selector")


def _later(selector: Body) -> bool:
    """Whether it asks for labels that only a controller gives."""
    keys = [*part(selector, "matchLabels")]
    keys += [text(rule, "key") for rule in parts(selector, "matchExpressions")]
    return any(str(key).startswith((*BUILT_IN, *OTHERS)) for key in keys)


def _chosen(spot: Spot, selector: Body) -> list[Spot]:
    return [pod for pod in spot.file.pods if selects(selector, labels(pod.body))]


@check(
    "selects-nothing",
    "error",
    "Service",
    "PodDisruptionBudget",
    "NetworkPolicy",
    "PodMonitor",
    why="no pod of this file carries these labels: the object has no effect",
    help="use the labels of the pod template",
)
def _selects_nothing(spot: Spot) -> Iterator[Hit]:
    selector = _selector(spot)
    wanted = {k: v for k, v in selector.items() if v}
    later = any(runs(pod.body, "submit") for pod in spot.file.pods)  # who makes them then
    foreign = later or bool(spot.file.of("TrainJob"))  # its pods get labels elsewhere
    judged = wanted and spot.file.pods and not (_later(selector) or foreign)
    if judged and not _chosen(spot, selector):
        yield "spec", f"selects {_told(selector)}, which no pod here has"


def _told(selector: Body) -> str:
    found = [f"{k}={v}" for k, v in part(selector, "matchLabels").items()]
    rules = parts(selector, "matchExpressions")
    found += [f"{text(r, 'key')} {text(r, 'operator')} {words(r, 'values')}" for r in rules]
    return ", ".join(found)


@check(
    "workload-selector",
    "error",
    "Deployment",
    "StatefulSet",
    "DaemonSet",
    "ReplicaSet",
    why="Kubernetes rejects a selector that does not match the labels of its own template",
    help="use the same labels in spec.selector and spec.template.metadata",
)
def _workload_selector(spot: Spot) -> Iterator[Hit]:
    found = part(spot.body, "spec", "selector")
    if not selects(found, labels(part(spot.body, "spec", "template"))):
        yield "spec.selector", f"selects {_told(found)}"


# ── names of pods ─────────────────────────────────────────────────────────────────────────────


def _services(spot: Spot) -> list[Body]:
    wanted = text(spot.body, "spec", "subdomain")
    return [b for b in spot.file.of("Service") if wanted and name(b) == wanted]


@check(
    "subdomain-without-service",
    "warning",
    "pod",
    why="a pod gets a DNS name only if a headless Service has the name of its subdomain",
    help="add a Service of that name with clusterIP: None",
)
def _subdomain_without_service(spot: Spot) -> Iterator[Hit]:
    wanted = text(spot.body, "spec", "subdomain")
    if wanted and not _services(spot) and spot.engine not in SERVICE_MAKERS:
        yield "spec.subdomain", f"no Service of this file is called {wanted}"


@check(
    "service-not-headless",
    "error",
    "pod",
    why="a Service with a cluster IP provides no DNS names for single pods",
    help="set clusterIP: None",
)
def _service_not_headless(spot: Spot) -> Iterator[Hit]:
    for service in _services(spot):
        if value(service, "spec", "clusterIP") != "None":
            yield "spec.subdomain", f"the Service {name(service)} is not headless"


@check(
    "service-selects-others",
    "error",
    "pod",
    why="the Service for the DNS name of this pod does not select it",
    help="use a label of the pod in the Service's selector",
)
def _service_selects_others(spot: Spot) -> Iterator[Hit]:
    for service in _services(spot):
        selector = {"matchLabels": part(service, "spec", "selector")}
        taken = selects(selector, labels(spot.body))
        if part(service, "spec", "selector") and not taken and not _later(selector):
            yield "spec.subdomain", f"{name(service)} selects {_told(selector)}"


@check(
    "service-names-too-late",
    "error",
    "pod",
    why="DNS names of pods that are not Ready do not resolve, and ranks resolve each other "
    "before that",
    help="set publishNotReadyAddresses: true in the Service",
)
def _service_names_too_late(spot: Spot) -> Iterator[Hit]:
    for service in _services(spot):
        if spot.ends and value(service, "spec", "publishNotReadyAddresses") is not True:
            yield "spec.subdomain", f"the Service {name(service)} publishes Ready pods only"


@check(
    "port-name-unknown",
    "error",
    "Service",
    "PodMonitor",
    "ServiceMonitor",
    why="a named port that does not exist is ignored silently",
    help="name a port of the pods (or, in a ServiceMonitor, of the Service)",
)
def _port_name_unknown(spot: Spot) -> Iterator[Hit]:
    wanted, known = _ports(spot)
    for port in wanted:
        if known is not None and port and port not in known:
            yield "spec", f"there is no port {port!r}"


def _ports(spot: Spot) -> tuple[list[str], set[str] | None]:
    """Ports that are named, and those there are; None where nobody is selected."""
    spec = part(spot.body, "spec")
    if spot.kind == "ServiceMonitor":
        found = [
            body
            for body in spot.file.of("Service")
            if selects(part(spec, "selector"), labels(body))
        ]
        there = {text(port, "name") for body in found for port in parts(body, "spec", "ports")}
        return [text(e, "port") for e in parts(spec, "endpoints")], there if found else None
    named = [text(e, "port") for e in parts(spec, "podMetricsEndpoints")]
    named += [text(port, "targetPort") for port in parts(spec, "ports")]
    pods = _chosen(spot, _selector(spot))
    inner = [c for pod in pods for c in containers(pod.body, init=True)]
    there = {text(port, "name") for c in inner for port in parts(c, "ports")}
    return named, there if pods and spec.get("selector") else None


@check(
    "monitor-selects-nothing",
    "error",
    "ServiceMonitor",
    why="no Service of this file carries these labels: nothing is scraped",
    help="use the labels of the Service",
)
def _monitor_selects_nothing(spot: Spot) -> Iterator[Hit]:
    services = spot.file.of("Service")
    selector = part(spot.body, "spec", "selector")
    if services and selector and not any(selects(selector, labels(b)) for b in services):
        yield "spec.selector", f"selects {_told(selector)}"


# ── drains, priorities, policies, claims ──────────────────────────────────────────────────────


@check(
    "budget-protects-the-dead",
    "warning",
    "PodDisruptionBudget",
    why="by default a crashed pod still counts: a drain waits for it forever",
    help="set unhealthyPodEvictionPolicy: AlwaysAllow",
)
def _budget_protects_the_dead(spot: Spot) -> Iterator[Hit]:
    if text(spot.body, "spec", "unhealthyPodEvictionPolicy") != "AlwaysAllow":
        yield "spec.unhealthyPodEvictionPolicy", "is IfHealthyBudget, by default"


@check(
    "budget-blocks-drains",
    "warning",
    "PodDisruptionBudget",
    why="no pod can ever be evicted: machines cannot be drained while the job runs",
    help="leave at least one pod more than minAvailable",
)
def _budget_blocks_drains(spot: Spot) -> Iterator[Hit]:
    spec = part(spot.body, "spec")
    least = number(spec, "minAvailable")
    chosen = _chosen(spot, part(spec, "selector"))
    pods = sum(pod.pods for pod in chosen)
    none = value(spec, "maxUnavailable") in (0, "0%") or value(spec, "minAvailable") == "100%"
    if none or (chosen and least is not None and least >= pods):
        yield "spec", "allows no disruption"


@check(
    "budget-needs-scale",
    "warning",
    "PodDisruptionBudget",
    why="maxUnavailable and percentages require the scale subresource of the pods' owner; Jobs "
    "and bare pods have none, so no pod can be evicted",
    help="set minAvailable to a number of pods",
)
def _budget_needs_scale(spot: Spot) -> Iterator[Hit]:
    spec = part(spot.body, "spec")
    relative = "maxUnavailable" in spec or "%" in text(spec, "minAvailable")
    owners = {pod.engine for pod in _chosen(spot, part(spec, "selector"))}
    without = sorted(owners & {*WITHOUT_SCALE})
    if relative and without:
        yield "spec", f"selects pods of a {' and a '.join(without)}"


@check(
    "spare-pushes-others-out",
    "warning",
    "PriorityClass",
    why="a waiting spare should never preempt a working pod",
    help="set preemptionPolicy: Never",
)
def _spare_pushes_others_out(spot: Spot) -> Iterator[Hit]:
    named = any(word in name(spot.body) for word in SPARE)
    if named and spot.body.get("preemptionPolicy") != "Never":
        yield "preemptionPolicy", "is PreemptLowerPriority, by default"


@check(
    "policy-has-no-hold",
    "warning",
    "NetworkPolicy",
    why="pods with the machine's network are not subject to network policies",
    help="filter on the machines, or remove hostNetwork",
)
def _policy_has_no_hold(spot: Spot) -> Iterator[Hit]:
    chosen = _chosen(spot, part(spot.body, "spec", "podSelector"))
    if any(value(pod.body, "spec", "hostNetwork") is True for pod in chosen):
        yield "spec.podSelector", "selects pods with hostNetwork"


@check(
    "claim-not-shared",
    "warning",
    "PersistentVolumeClaim",
    why="a ReadWriteOnce volume is mounted on one machine: every pod that uses it must run there",
    help="use ReadWriteMany, or a volume for each pod (ephemeral.volumeClaimTemplate)",
)
def _claim_not_shared(spot: Spot) -> Iterator[Hit]:
    modes = words(spot.body, "spec", "accessModes")
    users = sum(pod.pods for pod in spot.file.pods if name(spot.body) in _claims(pod.body))
    if users > 1 and not {"ReadWriteMany", "ReadOnlyMany"} & {*modes}:
        yield "spec.accessModes", f"{', '.join(modes) or 'none'} for {users} pods"


def _claims(template: Body) -> list[str]:
    volumes = parts(template, "spec", "volumes")
    return [text(volume, "persistentVolumeClaim", "claimName") for volume in volumes]


@check(
    "object-twice",
    "error",
    "*",
    why="of two objects with the same kind, name and namespace the second replaces the first",
    help="keep one of them",
)
def _object_twice(spot: Spot) -> Iterator[Hit]:
    twins = spot.file.twins(spot.body)
    if name(spot.body) and twins > 1:
        yield "metadata.name", f"{twins} objects are called {name(spot.body)}"


@check(
    "object-unnamed",
    "error",
    "*",
    why="Kubernetes refuses an object without apiVersion, kind and a name",
    help="kubectl apply --dry-run=server -f FILE",
)
def _object_unnamed(spot: Spot) -> Iterator[Hit]:
    named = name(spot.body) or text(spot.body, "metadata", "generateName")
    lacking = [key for key in ("apiVersion", "kind") if not text(spot.body, key)]
    lacking += [] if named else ["metadata.name"]
    if lacking:
        yield "", f"has no {' and no '.join(lacking)}"
