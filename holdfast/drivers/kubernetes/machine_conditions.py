"""What a machine of the cluster says of itself, as conditions of the nodes on it.

The conditions and taints of a Node object are read by one table; what is told is what begins or
ends, to the nodes whose pods run there. Machines that are out of service, or whose file system has
become read-only, have their nodes replaced; all else is told, because a node that still answers is
better judged by its heartbeat, its GPUs and its links. Taints that a machine had when it was first
seen are how the cluster is run, and the pods stand them.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from holdfast.controller.state import State
from holdfast.drivers.kubernetes.machines import (
    OUT_OF_SERVICE,
    OWNER,
    RACKS,
    REASON,
    TAINT,
    Machine,
)
from holdfast.drivers.kubernetes.pods import Condition
from holdfast.events import HealthChanged, Severity

PREFIX = "machine-"  # of every condition that is told here
WARN, FATAL, LEAVES = Severity.WARN, Severity.FATAL, Severity.LEAVES
LOOK = "kubectl describe node {machine}"


class Sign(NamedTuple):
    """Something that is wrong with a machine."""

    condition: str
    severity: Severity
    device: str = ""  # which condition or taint, where one slug stands for many
    detail: str = ""
    advice: str = LOOK


PRESSURES: dict[str, tuple[str, str, str]] = {
    "MemoryPressure": (
        "machine-memory-pressure", "it is short of memory, the kubelet evicts pods",
        "request as much memory as the workers use, so that others are evicted first",
    ),
    "DiskPressure": (
        "machine-disk-pressure", "it is short of disk, the kubelet removes images and evicts pods",
        "free space on the machine: unused images, logs, emptyDir volumes",
    ),
    "PIDPressure": (
        "machine-pid-pressure", "it is short of process ids, the kubelet evicts pods",
        "find what starts so many processes or threads; lower the workers of data loaders",
    ),
    "NetworkUnavailable": (
        "machine-network-unavailable", "no network is configured",
        "look at the pods of the network plugin on this machine",
    ),
    "ReadonlyFilesystem": (
        "machine-read-only", "a file system became read-only",
        "look for errors of the disk in the kernel log, and have it replaced",
    ),
}  # fmt: skip
"""Condition of a Node that is wrong when it is True → slug, what it means, what to do."""

REMOVALS = {
    "ToBeDeletedByClusterAutoscaler": "the cluster autoscaler is about to remove it",
    "karpenter.sh/disrupted": "Karpenter is about to remove it",
    "karpenter.sh/disruption": "Karpenter is about to remove it",
    "cloud.google.com/impending-node-termination": "the cloud is about to terminate it",
    "aws-node-termination-handler/spot-itn": "its spot instance is reclaimed",
    "aws-node-termination-handler/scheduled-maintenance": "the cloud has maintenance scheduled",
    "aws-node-termination-handler/asg-lifecycle-termination": "its scaling group removes it",
}
"""Taints that announce the end of a machine."""

ANNOUNCED = {
    "PreemptScheduled": "its spot instance is reclaimed",
    "TerminateScheduled": "the cloud is about to remove it",
    "RedeployScheduled": "the cloud is about to move it",
    "RebootScheduled": "the cloud is about to reboot it",
}
"""Conditions that do so, of AKS' node-problem-detector."""

MIRRORED = (
    "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable",
    "node.kubernetes.io/memory-pressure", "node.kubernetes.io/disk-pressure",
    "node.kubernetes.io/pid-pressure", "node.kubernetes.io/network-unavailable",
    "node.kubernetes.io/unschedulable",
)  # fmt: skip
"""Taints that Kubernetes derives from conditions, which are told already."""


def signs(machine: Machine, given: frozenset[str] = frozenset(), us: str = "") -> Iterator[Sign]:
    """Everything that is wrong now. `given` are keys of taints that are taken for granted, `us` is
    the job (NAMESPACE/NAME) whose own cordon is no news to it."""
    for condition in machine.status.conditions:
        if (sign := _of_condition(condition)) is not None:
            yield sign
    if machine.spec.unschedulable:
        detail = "is cordoned (spec.unschedulable): no new pods start there, it may be drained soon"
        yield Sign("machine-cordoned", WARN, detail=detail)
    for taint in machine.spec.taints:
        if taint.key == OUT_OF_SERVICE:
            yield Sign("machine-out-of-service", FATAL, detail=f"has the taint {OUT_OF_SERVICE}")
        elif taint.key in REMOVALS:
            detail = f"leaves: {REMOVALS[taint.key]} (taint {taint.key})"
            yield Sign("machine-leaving", LEAVES, taint.key, detail)
        elif taint.key == TAINT:
            yield from _left_by_another(machine, us)
        elif taint.effect == "NoExecute" and taint.key not in (*MIRRORED, *given):
            said = f"{taint.key}={taint.value}" if taint.value else taint.key
            detail = f"was tainted {said}:NoExecute: pods that do not tolerate it are removed"
            yield Sign("machine-tainted", WARN, taint.key, detail)


def _left_by_another(machine: Machine, us: str) -> Iterator[Sign]:
    """Another job of ours has found faults of devices there."""
    notes = machine.metadata.annotations
    if notes.get(OWNER) != us:
        why = f": {notes[REASON]}" if REASON in notes else ""
        detail = f"was cordoned by job {notes.get(OWNER, '(unknown)')}{why}"
        yield Sign("machine-cordoned", WARN, TAINT, detail)


def _of_condition(condition: Condition) -> Sign | None:
    """A condition is wrong when it is True; one whose name ends in Ready, when it is not."""
    said = ": ".join(filter(None, (condition.reason, condition.message)))
    told = f" ({said})" if said else ""
    kind, is_true = condition.type, condition.status == "True"
    if kind == "Ready":
        lost = f"is not ready{told}"
        return None if is_true else Sign("machine-not-ready", WARN, detail=lost)
    if kind.endswith("Ready"):
        lost = f"reports that {kind} is {condition.status}{told}"
        return None if condition.status != "False" else Sign("machine-problem", WARN, kind, lost)
    if not is_true:
        return None
    if kind in ANNOUNCED:
        named = f"condition {kind}: {said}" if said else f"condition {kind}"
        return Sign("machine-leaving", LEAVES, kind, f"leaves: {ANNOUNCED[kind]} ({named})")
    if kind in PRESSURES:
        slug, words, advice = PRESSURES[kind]
        severity = FATAL if slug == "machine-read-only" else WARN
        return Sign(slug, severity, detail=f"reports {kind}: {words}{told}", advice=advice)
    return Sign("machine-problem", WARN, kind, f"reports {kind}{told}")


Key = tuple[str, str]  # condition, device


class MachineConditions:
    """What every machine says, and what was told of it to each node. Pure.

    `machine_of` knows the machine of a node, "" while that is unknown. Thousands of machines tell
    of themselves all the time: what does not concern a node is left after a look into a table.
    """

    def __init__(self, state: State, machine_of: Callable[[str], str], us: str) -> None:
        self._state, self._machine_of, self._us = state, machine_of, us
        self._signs: dict[str, dict[Key, Sign]] = {}  # by machine
        self._given: dict[str, frozenset[str]] = {}  # taints of a machine when it was first seen
        self._racks: dict[str, str] = {}  # by machine
        self._here: dict[str, dict[str, set[Key] | None]] = {}  # by machine and node: what is told

    def see(self, machine: Machine) -> list[HealthChanged]:
        """A machine as it is now. Most news of machines, heartbeats above all, change nothing."""
        name = machine.metadata.name
        given = self._given.setdefault(name, frozenset(t.key for t in machine.spec.taints))
        labels = machine.metadata.labels
        self._racks[name] = next((labels[key] for key in RACKS if labels.get(key)), "")
        found = {(s.condition, s.device): s for s in signs(machine, given, self._us)}
        before = self._signs.get(name)
        self._signs[name] = found
        if before is not None and before.keys() == found.keys():
            return []
        return [event for node in list(self._here.get(name, ())) for event in self.look(node)]

    def lose(self, machine: str) -> None:
        """It is no part of the cluster any more; its pods end, and what was said of it stands."""
        for known in (self._signs, self._given, self._here, self._racks):
            known.pop(machine, None)

    def rack(self, node: str) -> str:
        """Which rack, or switch, the machine of this node is in; "" where nobody has said."""
        return self._racks.get(self._machine_of(node), "")

    def look(self, node: str) -> list[HealthChanged]:
        """What this node was not told yet; to be asked when it, or its pod, is new or changes."""
        machine = self._machine_of(node)
        if not machine:
            return []
        wanted, here = self._signs.get(machine), self._here.setdefault(machine, {})
        if node not in here:
            for gone in [one for one in here if self._machine_of(one) != machine]:
                del here[gone]
        told = here.setdefault(node, None)
        if wanted is None or node not in self._state.nodes:
            return []
        told = self._known(node) if told is None else told
        changes = [
            *(_begun(node, machine, s) for key, s in wanted.items() if key not in told),
            *(_over(node, key) for key in told if key not in wanted),
        ]
        here[node] = set(wanted)
        return changes

    def _known(self, node: str) -> set[Key]:
        """What a controller before this one has told."""
        known = self._state.health.get(node, {}).values()
        return {(one.condition, one.device) for one in known if one.condition.startswith(PREFIX)}


def _begun(node: str, machine: str, sign: Sign) -> HealthChanged:
    return HealthChanged(
        node=node, condition=sign.condition, severity=sign.severity, device=sign.device,
        detail=f"machine {machine} {sign.detail}", advice=sign.advice.format(machine=machine),
    )  # fmt: skip


def _over(node: str, key: Key) -> HealthChanged:
    condition, device = key
    return HealthChanged(node=node, condition=condition, severity=Severity.OK, device=device)
