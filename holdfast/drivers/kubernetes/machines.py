"""Machines whose devices failed: keep this job off them, and with the right to, everybody.

With `access.cordon` a machine gets a taint of our own key, with owner, reason and expiry beside it.
Not the `unschedulable` flag, which people and autoscalers use for their own ends. A budget keeps a
bug in a job from emptying a cluster. Without the right, new pods of this job avoid the machine.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

import msgspec

from holdfast.drivers.kubernetes.cluster import (
    NODES,
    ApiError,
    Cluster,
    ConflictError,
    NotFoundError,
)
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.drivers.kubernetes.pods import Condition
from holdfast.drivers.kubernetes.talk import say

TAINT = "holdfast.dev/unhealthy"
OWNER, REASON = "holdfast.dev/cordoned-by", "holdfast.dev/cordon-reason"
EXPIRES = "holdfast.dev/cordon-expires"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
EXPIRES_AFTER = timedelta(hours=24)
PER_HOUR = 3
SHARE = 0.1  # of the job's nodes, at least one
TRIES = 5
HOSTNAME = "kubernetes.io/hostname"
RACKS = (
    "fabric.topograph.run/tier-0",
    "network.topology.nvidia.com/leaf",
    "oci.oraclecloud.com/host.rack_id",
    "cloud.google.com/gce-topology-subblock",
    "topology.k8s.aws/network-node-layer-3",
)
"""Labels of a machine that name its rack, or the switch nearest to it; the first that is there."""


class _Meta(msgspec.Struct, rename="camel", frozen=True):
    """Metadata."""

    name: str
    resource_version: str = ""
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}


class Taint(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """One taint."""

    key: str
    effect: str
    value: str = ""
    time_added: str | None = None


class _Spec(msgspec.Struct, frozen=True):
    """Taints."""

    taints: list[Taint] = []
    unschedulable: bool = False


class _Status(msgspec.Struct, frozen=True):
    """What the kubelet and others say of it."""

    conditions: list[Condition] = []


class Machine(msgspec.Struct, frozen=True):
    """A machine of the cluster (a Node, in Kubernetes' words)."""

    metadata: _Meta
    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def cordoned(self) -> bool:
        """Whether it carries our taint."""
        return any(taint.key == TAINT for taint in self.spec.taints)

    def expired(self, now: datetime) -> bool:
        """Whether our taint should have gone by now."""
        said = self.metadata.annotations.get(EXPIRES)
        return self.cordoned and said is not None and datetime.fromisoformat(said) < now


class Machines:
    """The machines that this job has left."""

    def __init__(self, cluster: Cluster, request: Request) -> None:
        self._cluster = cluster
        self._request = request
        self._left: dict[str, str] = {}  # machine → why
        self._cordons: list[float] = []  # monotonic times

    async def leave(self, machine: str, why: str) -> None:
        """New pods of this job avoid it; with the right to, it is tainted."""
        self._left[machine] = why
        if not self._request.job.access.cordon:
            return
        refusal = self._over_budget()
        if refusal is not None:
            say(f"machine {machine} is not cordoned: {refusal}")
            return
        self._cordons.append(time.monotonic())
        owner = f"{self._cluster.namespace}/{self._request.name}"
        await cordon(self._cluster, machine, owner=owner, why=why)

    async def fenced(self, machine: str) -> bool:
        """Whether nothing can run there any more: it is no part of the cluster now, or somebody has
        declared it out of service. Unknown without the right to look at machines."""
        if not (machine and self._request.job.access.cordon):
            return False
        try:
            found = msgspec.convert(await self._cluster.get(NODES, machine), Machine)
        except NotFoundError:
            return True
        return any(taint.key == OUT_OF_SERVICE for taint in found.spec.taints)

    def avoided(self, pod: Body) -> Body:
        """This pod, kept off the machines that were left."""
        if not self._left:
            return pod
        term = {"key": HOSTNAME, "operator": "NotIn", "values": sorted(self._left)}
        spec = dict(pod["spec"])
        spec["affinity"] = _with_term(spec.get("affinity", {}), term)
        return {**pod, "spec": spec}

    def _over_budget(self) -> str | None:
        recent = [at for at in self._cordons if time.monotonic() - at < 3600]
        if len(recent) >= PER_HOUR:
            return (
                f"{PER_HOUR} machines were cordoned in the last hour, so the cause is probably "
                "not the machines"
            )
        most = max(1, int(self._request.nodes * SHARE))
        if len(self._cordons) >= most:
            return f"the limit of one job is {most} of {self._request.nodes} nodes"
        return None


def _with_term(affinity: Body, term: Body) -> Body:
    """The term in every alternative of the required node affinity."""
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    node: Body = dict(affinity.get("nodeAffinity", {}))
    alternatives = node.get(required, {}).get("nodeSelectorTerms") or [{}]
    node[required] = {
        "nodeSelectorTerms": [
            {**a, "matchExpressions": [*a.get("matchExpressions", []), term]} for a in alternatives
        ]
    }
    return {**affinity, "nodeAffinity": node}


async def cordon(cluster: Cluster, machine: str, *, owner: str, why: str) -> None:
    """Taint a machine, once. Failing to is said, and harmless to the job."""
    until = (datetime.now(UTC) + EXPIRES_AFTER).isoformat(timespec="seconds")
    notes: Mapping[str, str | None] = {OWNER: owner, REASON: why, EXPIRES: until}

    def tainted(taints: list[Taint]) -> list[Taint]:
        return [*_others(taints), Taint(key=TAINT, effect="NoSchedule", value="device-faults")]

    await _change(cluster, machine, tainted, notes)


async def lift(cluster: Cluster, machine: str) -> bool:
    """Take our taint off again; False if it could not be."""
    notes = {OWNER: None, REASON: None, EXPIRES: None}
    return await _change(cluster, machine, _others, notes)


def _others(taints: list[Taint]) -> list[Taint]:
    return [taint for taint in taints if taint.key != TAINT]


async def _change(
    cluster: Cluster,
    machine: str,
    change: Callable[[list[Taint]], list[Taint]],
    notes: Mapping[str, str | None],
) -> bool:
    """Read, change, write if nobody else has meanwhile: taints are one list with many writers."""
    for attempt in range(TRIES):
        try:
            found = msgspec.convert(await cluster.get(NODES, machine), Machine)
            taints = msgspec.to_builtins(change(found.spec.taints))
            meta = {
                "resourceVersion": found.metadata.resource_version,
                "annotations": dict(notes),
            }
            await cluster.patch(NODES, machine, {"metadata": meta, "spec": {"taints": taints}})
            return True
        except ConflictError:
            continue
        except ApiError as error:
            if not error.transient:
                say(f"machine {machine}: its taint cannot be changed: {error}")
                return False
            await asyncio.sleep(0.5 * 2**attempt)
    say(f"machine {machine}: its taint could not be changed")
    return False


async def cordoned(cluster: Cluster) -> list[Machine]:
    """Every machine that carries our taint."""
    found = await cluster.listed(NODES, Machine)
    return [machine for machine in found.items if machine.cordoned]
