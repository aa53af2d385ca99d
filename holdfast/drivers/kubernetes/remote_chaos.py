"""Faults that can be done to a running job in a cluster from outside, to see what follows.

They go to the API with the rights of whoever asks: the pod of a rank is deleted at once or evicted
as by a drain, or the controller's pod is deleted. What is done inside a pod needs the right to run
commands there, which Holdfast does not ask for: `inside` says which command that is.
"""

from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from holdfast.drivers.kubernetes.cluster import PODS, Cluster
from holdfast.drivers.kubernetes.pods import Pod
from holdfast.drivers.kubernetes.remote import Look
from holdfast.errors import Error
from holdfast.status import NodeStatus


class RemoteFault(NamedTuple):
    """One kind. `causes` are right for it; none: the job has no incident."""

    what: str
    causes: tuple[str, ...]
    inject: Callable[[Cluster, Pod], Coroutine[Any, Any, None]]
    of_controller: bool = False


class RemoteVictim(NamedTuple):
    """A pod, and the rank of its first worker; None for the controller's."""

    pod: Pod
    rank: int | None


async def _delete(cluster: Cluster, pod: Pod) -> None:
    await cluster.delete(PODS, pod.metadata.name, uid=pod.uid, grace_s=0)


async def _evict(cluster: Cluster, pod: Pod) -> None:
    if not await cluster.evict(pod.metadata.name, uid=pod.uid):
        raise impossible(
            f"a PodDisruptionBudget forbids to evict {pod.metadata.name} now",
            "kubectl get poddisruptionbudgets",
        )


def victim(seen: Look, fault: str, rank: int | None) -> RemoteVictim:
    """Whom it is done to: the pod of this rank, or of the first. Raises `Error`."""
    if REMOTE_FAULTS[fault].of_controller:
        found = [pod for pod in seen.controllers if pod.running and not pod.leaving]
        if found:
            return RemoteVictim(found[0], None)
        raise impossible("no controller is running", f"holdfast status {seen.name}")
    node, first = _member(seen, rank)
    return RemoteVictim(_pod(seen, node), first)


def inside(seen: Look, fault: str, rank: int | None, words: str) -> Error:
    """The error for a fault that is done inside a pod, with a command that does it."""
    node, first = _member(seen, rank)
    pod, pid = _pod(seen, node), node.pids[(rank or first) - first]
    signal = fault.removeprefix("SIG") if fault.startswith("SIG") else "KILL"
    return impossible(
        f"{fault!r} is done inside a pod, and Holdfast has no permission to run commands there",
        f"kubectl exec{words} {pod.metadata.name} -- kill -{signal} {pid}   (to a worker)",
    )


def _member(seen: Look, rank: int | None) -> tuple[NodeStatus, int]:
    """The node of this rank, or of any that trains, and its first rank."""
    status = seen.record.status if seen.record is not None else None
    members = [n for n in status.nodes if n.rank is not None and n.pids] if status else []
    for node in members:
        first = (node.rank or 0) * len(node.pids)
        if rank is None or first <= rank < first + len(node.pids):
            return node, first
    raise Error(
        "rank-not-found",
        f"rank {rank or 0} of job {seen.name} has no running worker",
        why=f"according to its record {len(members)} of its nodes train",
        help=f"holdfast status {seen.name} --on kubernetes",
    )


def _pod(seen: Look, node: NodeStatus) -> Pod:
    for pod in seen.nodes:
        if node.node.startswith(pod.uid):
            return pod
    raise impossible(f"the pod of {node.name} is gone", f"holdfast why {seen.name}")


def impossible(why: str, remedy: str) -> Error:
    """The error for a fault that cannot be done here; nothing was changed."""
    return Error("fault-impossible", "the fault could not be injected", why=why, help=remedy)


REMOTE_FAULTS: dict[str, RemoteFault] = {
    "pod deleted": RemoteFault(
        "the pod of a rank is deleted, without a grace period", ("node-left", "node-lost"), _delete
    ),
    "pod evicted": RemoteFault(
        "the pod of a rank is evicted, as by a drain", ("node-left", "node-lost"), _evict
    ),
    "controller deleted": RemoteFault(
        "the pod of the controller is deleted; training continues", (), _delete, of_controller=True
    ),
}
"""By name, as `holdfast chaos --list --on kubernetes` shows them."""
