"""Machines and what becomes of them: alive, silent, back again; and of the pods on them.

A silent machine is first only silent. After the grace time it is NotReady and tainted; pods are
marked for deletion once they tolerate the taint no longer, and then stay, terminating, for as long
as no kubelet confirms their end: unless somebody says that the machine is out of service, or
removes it.
"""

import time
from dataclasses import dataclass, field

from holdfast.drivers.kubernetes.cluster import NODES, PODS
from tests.drivers.kubernetes.cluster.conditions import is_true, set_condition
from tests.drivers.kubernetes.cluster.evictions import disrupt
from tests.drivers.kubernetes.cluster.loops import soonest
from tests.drivers.kubernetes.cluster.pace import Pace
from tests.drivers.kubernetes.cluster.refusal import Body
from tests.drivers.kubernetes.cluster.scheduler import HOSTNAME, tolerated
from tests.drivers.kubernetes.cluster.store import Store

UNREACHABLE = "node.kubernetes.io/unreachable"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
CAPACITY = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}


def node(name: str, capacity: Body, labels: Body) -> Body:
    """A machine as an object."""
    amounts = {**CAPACITY, **capacity}
    conditions = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
    status = {"capacity": amounts, "allocatable": amounts, "conditions": conditions}
    meta = {"name": name, "labels": {HOSTNAME: f"host-of-{name}", **labels}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {}, "status": status}


@dataclass
class Lifecycle:
    """Judges machines by their silence. `silent` is kept by whoever makes them silent."""

    store: Store
    pace: Pace
    silent: dict[str, float] = field(default_factory=dict)  # since when
    tainted: dict[tuple[str, str], float] = field(default_factory=dict)  # machine, key: since

    def step(self) -> float | None:
        """Look at all machines; how long until the next is due."""
        waits = [self._judge(machine) for machine in self.store.all(NODES)]
        known = {machine["metadata"]["name"] for machine in self.store.all(NODES)}
        waits += [self._orphaned(pod, known) for pod in self.store.all(PODS)]
        return soonest(*waits)

    def _judge(self, machine: Body) -> float | None:
        name = machine["metadata"]["name"]
        since = self.silent.get(name)
        if since is None:
            self._well(machine)
            return self._evict(name)
        left = since + self.pace.s(self.pace.node_grace_s) - time.monotonic()
        if left > 0:
            return soonest(left, self._evict(name))
        self._unwell(name)
        return self._evict(name)

    def _well(self, machine: Body) -> None:
        if is_true(machine, "Ready"):
            return

        def edit(new: Body) -> None:
            set_condition(new, "Ready", "True", "KubeletReady")
            taints = new["spec"].get("taints", [])
            new["spec"]["taints"] = [t for t in taints if t["key"] != UNREACHABLE]

        self.store.change(NODES, "", machine["metadata"]["name"], edit)

    def _unwell(self, name: str) -> None:
        def edit(new: Body) -> None:
            reason, message = "NodeStatusUnknown", "Kubelet stopped posting node status."
            set_condition(new, "Ready", "Unknown", reason, message)
            kept = [t for t in new["spec"].get("taints", []) if t["key"] != UNREACHABLE]
            ours = [{"key": UNREACHABLE, "effect": e} for e in ("NoSchedule", "NoExecute")]
            new["spec"]["taints"] = [*kept, *ours]

        self.store.change(NODES, "", name, edit)
        for pod in self._pods(name):
            meta = pod["metadata"]
            if is_true(pod, "Ready"):
                self.store.change(PODS, meta["namespace"], meta["name"], _unready)

    def _pods(self, machine: str) -> list[Body]:
        return [p for p in self.store.all(PODS) if p["spec"].get("nodeName") == machine]

    def _evict(self, name: str) -> float | None:
        """Act on taints that pods do not stand."""
        machine = self.store.find(NODES, "", name)
        taints = [] if machine is None else machine["spec"].get("taints", [])
        harsh = {t["key"]: t for t in taints if t["effect"] == "NoExecute"}
        for key in [k for k in self.tainted if k[0] == name and k[1] not in harsh]:
            del self.tainted[key]
        waits = [
            self._stands(pod, taint, self.tainted.setdefault((name, key), time.monotonic()))
            for key, taint in harsh.items()
            for pod in self._pods(name)
        ]
        return soonest(*waits)

    def _stands(self, pod: Body, taint: Body, since: float) -> float | None:
        meta = pod["metadata"]
        if taint["key"] == OUT_OF_SERVICE and "deletionTimestamp" in meta:
            self._force(pod)
            return None
        patience = tolerated(pod, taint)
        if patience == float("inf") or "deletionTimestamp" in meta:
            return None
        left = since + self.pace.s(patience or 0.0) - time.monotonic()
        if left > 0:
            return left
        disrupt(self.store, pod, "DeletionByTaintManager", "Taint manager: deleting due to taint")
        self.store.delete(PODS, meta["namespace"], meta["name"], uid=meta["uid"])
        return None

    def _orphaned(self, pod: Body, known: set[str]) -> float | None:
        """Pods of a machine that was removed."""
        name = pod["spec"].get("nodeName")
        if not name or name in known:
            return None
        since = self.tainted.setdefault((name, ""), time.monotonic())
        left = since + self.pace.s(self.pace.orphaned_s) - time.monotonic()
        if left > 0:
            return left
        self._force(pod)
        return None

    def _force(self, pod: Body) -> None:
        """As the collector of pods does: mark it failed, and drop it."""
        meta = pod["metadata"]
        disrupt(self.store, pod, "DeletionByPodGC", "PodGC: node is gone")
        if pod["status"].get("phase") not in ("Succeeded", "Failed"):
            self.store.change(PODS, meta["namespace"], meta["name"], _failed)
        if self.store.find(PODS, meta["namespace"], meta["name"]) is not None:
            self.store.delete(PODS, meta["namespace"], meta["name"], uid=meta["uid"], grace_s=0)


def _unready(body: Body) -> None:
    set_condition(body, "Ready", "False", "NodeNotReady")


def _failed(body: Body) -> None:
    body["status"]["phase"] = "Failed"
