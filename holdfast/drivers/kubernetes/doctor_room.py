"""Whether a cluster has room for a job: quotas of the namespace, and free machines.

The arithmetic is that of the scheduler for what nodes ask for: requests against what machines have
to give, less the requests of pods that are there; taints, the node selector and readiness decide
which machines count. Affinities are left to the scheduler: room that is found here is an upper
bound. A new job beside the old one is assumed, so a job that runs already counts twice.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import msgspec

from holdfast.counts import count
from holdfast.drivers.kubernetes.cluster import NODES, PODS, QUOTAS, DeniedError
from holdfast.drivers.kubernetes.doctor import ClusterCheck, Patient
from holdfast.drivers.kubernetes.manifests.engines import pods as own_pods
from holdfast.drivers.kubernetes.manifests.placement import one_per_machine
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.spec.quantities import amount

Amounts = dict[str, Fraction]


class _Meta(msgspec.Struct, frozen=True):
    name: str
    labels: dict[str, str] = {}


class _Needs(msgspec.Struct, frozen=True):
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}


class _Container(msgspec.Struct, rename="camel", frozen=True):
    resources: _Needs = _Needs()
    restart_policy: str = ""


class _PodSpec(msgspec.Struct, rename="camel", frozen=True):
    containers: list[_Container] = []
    init_containers: list[_Container] = []
    node_name: str = ""


class _Phase(msgspec.Struct, frozen=True):
    phase: str = ""


class Using(msgspec.Struct, frozen=True):
    """A pod and what it has reserved."""

    spec: _PodSpec = _PodSpec()
    status: _Phase = _Phase()


class _Taint(msgspec.Struct, frozen=True):
    key: str
    effect: str = ""
    value: str = ""


class _NodeSpec(msgspec.Struct, frozen=True):
    taints: list[_Taint] = []
    unschedulable: bool = False


class _Condition(msgspec.Struct, frozen=True):
    type: str
    status: str


class _NodeStatus(msgspec.Struct, frozen=True):
    allocatable: dict[str, str] = {}
    conditions: list[_Condition] = []


class NodeObject(msgspec.Struct, frozen=True):
    """A machine of the cluster."""

    metadata: _Meta
    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()

    @property
    def ready(self) -> bool:
        """Whether it takes pods at all."""
        up = any(c.type == "Ready" and c.status == "True" for c in self.status.conditions)
        return up and not self.spec.unschedulable


class _Limits(msgspec.Struct, frozen=True):
    hard: dict[str, str] = {}
    used: dict[str, str] = {}


class Quota(msgspec.Struct, frozen=True):
    """A ResourceQuota."""

    metadata: _Meta
    status: _Limits = _Limits()


@dataclass(frozen=True)
class Room:
    """How many nodes fit, and on how many machines what is missing."""

    nodes: int
    machines: int  # that may be used
    of: int
    lacking: dict[str, int]  # resource → machines that may be used and have too little of it


def needs(request: Request) -> Amounts:
    """What one node asks the scheduler for."""
    spec = own_pods.template(request)["spec"]
    containers = msgspec.convert(spec["containers"], list[_Container])
    return _total(containers)


def _total(containers: Iterable[_Container]) -> Amounts:
    found: Amounts = {}
    for container in containers:
        said = {**container.resources.limits, **container.resources.requests}
        for name, quantity in said.items():
            found[name] = found.get(name, Fraction(0)) + amount(quantity)
    return found


# ── quotas ────────────────────────────────────────────────────────────────────────────────────


async def quotas(patient: Patient) -> list[ClusterCheck]:
    """Every quota of the namespace."""
    where = patient.cluster.namespace
    try:
        found = (await patient.cluster.listed(QUOTAS, Quota)).items
    except DeniedError:
        return [ClusterCheck("quota", True, "no permission to list quotas", "")]
    if not found:
        return [ClusterCheck("quota", True, f"namespace {where} has no quotas", "")]
    asked = demand(patient.request)
    return [_quota(quota, asked, where) for quota in found]


def demand(request: Request) -> Amounts:
    """What the whole job asks a quota for, under all the names that quotas use."""
    each = needs(request)
    found: Amounts = {"pods": Fraction(request.pods + (1 if request.managed else 0))}
    for name, size in each.items():
        found[f"requests.{name}"] = size * request.pods
        if name in ("cpu", "memory", "ephemeral-storage"):
            found[name] = size * request.pods
    return found


def _quota(quota: Quota, asked: Amounts, namespace: str) -> ClusterCheck:
    short = []
    for name, hard in quota.status.hard.items():
        free = amount(hard) - amount(quota.status.used.get(name, "0"))
        if name in asked and asked[name] > free:
            short.append(f"{name} {_plain(free)} free of {hard}, {_plain(asked[name])} required")
    name = quota.metadata.name
    remedy = f"request less, stop other jobs, or raise the quota: kubectl edit quota {name} "
    remedy += f"-n {namespace}"
    return ClusterCheck("quota", not short, f"{name}: {'; '.join(short) or 'sufficient'}", remedy)


def _plain(number: Fraction) -> str:
    for unit, size in (("Gi", 2**30), ("Mi", 2**20)):
        if number >= size:
            return f"{float(number / size):.4g}{unit}"
    return f"{float(number):g}"


# ── machines ──────────────────────────────────────────────────────────────────────────────────


async def machines(patient: Patient) -> list[ClusterCheck]:
    """Room on machines for every node of the job."""
    request = patient.request
    try:
        found = (await patient.cluster.listed(NODES, NodeObject)).items
    except DeniedError:
        return [ClusterCheck("machines", True, "no permission to list machines", "")]
    try:
        pods = (await patient.cluster.listed(PODS, Using, namespace="")).items
    except DeniedError:
        pods, note = [], " if they were empty (no permission to list the pods of other namespaces)"
    else:
        note = ""
    have = room(request, found, pods)
    spares = f" + {request.spares}" if request.spares else ""
    told = f"capacity for {min(have.nodes, request.pods)} of {request.nodes}{spares} nodes{note}, "
    told += f"{have.machines} of {have.of} machines are usable"
    ok = have.nodes >= request.nodes
    if have.nodes < request.pods:
        told += _short(request, have)
    return [ClusterCheck("machines", ok, told, _remedy(have))]


def _short(request: Request, have: Room) -> str:
    """How many nodes short, and of what."""
    short = request.pods - have.nodes
    what = sorted(have.lacking, key=lambda name: -have.lacking[name])
    lack = "machine has", "machines have"
    of = f": {count(have.lacking[what[0]], *lack)} insufficient {what[0]}" if what else ""
    return f"; {count(short, 'node')} short{of}"


def _remedy(have: Room) -> str:
    if not have.machines:
        return (
            "no machine is ready, untainted and matches the selector: compare "
            "scheduling.node_selector and scheduling.tolerations with kubectl get nodes "
            "--show-labels"
        )
    return (
        "add machines, wait for other jobs to end (holdfast list --on kubernetes -A), or request "
        "less"
    )


def room(request: Request, machines: Iterable[NodeObject], pods: Iterable[Using]) -> Room:
    """How many nodes of the job fit on the machines, beside the pods that are there."""
    spec = own_pods.template(request)["spec"]
    need, at_most = needs(request), 1 if one_per_machine(request.job) else request.pods
    used = _used(pods)
    everything = list(machines)
    usable = [m for m in everything if m.ready and _selected(m, spec) and _tolerated(m, spec)]
    fits, lacking = 0, dict[str, int]()
    for machine in usable:
        free = _free(machine, used.get(machine.metadata.name, {}))
        short = [name for name, size in need.items() if free.get(name, Fraction(0)) < size]
        for name in short:
            lacking[name] = lacking.get(name, 0) + 1
        each = [free.get(name, Fraction(0)) // size for name, size in need.items() if size]
        each.append(int(free.get("pods", Fraction(at_most))))
        fits += max(0, min(at_most, *each))  # some are overbooked
    return Room(fits, len(usable), len(everything), lacking)


def _used(pods: Iterable[Using]) -> dict[str, Amounts]:
    """By machine, what its pods have reserved; sidecars count, other init containers end."""
    found: dict[str, Amounts] = {}
    for pod in pods:
        if not pod.spec.node_name or pod.status.phase in ("Succeeded", "Failed"):
            continue
        sidecars = [c for c in pod.spec.init_containers if c.restart_policy == "Always"]
        here = found.setdefault(pod.spec.node_name, {"pods": Fraction(0)})
        for name, size in {
            **_total([*pod.spec.containers, *sidecars]),
            "pods": Fraction(1),
        }.items():
            here[name] = here.get(name, Fraction(0)) + size
    return found


def _free(machine: NodeObject, used: Mapping[str, Fraction]) -> Amounts:
    have = {name: amount(quantity) for name, quantity in machine.status.allocatable.items()}
    return {name: size - used.get(name, Fraction(0)) for name, size in have.items()}


def _selected(machine: NodeObject, spec: Body) -> bool:
    wanted = spec.get("nodeSelector") or {}
    return all(machine.metadata.labels.get(key) == value for key, value in wanted.items())


def _tolerated(machine: NodeObject, spec: Body) -> bool:
    barring = [t for t in machine.spec.taints if t.effect in ("NoSchedule", "NoExecute")]
    tolerations = spec.get("tolerations") or []
    return all(any(_tolerates(t, taint) for t in tolerations) for taint in barring)


def _tolerates(toleration: dict[str, Any], taint: _Taint) -> bool:
    if toleration.get("effect") not in (None, "", taint.effect):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, "", taint.key)
    return toleration.get("key") == taint.key and toleration.get("value", "") == taint.value
