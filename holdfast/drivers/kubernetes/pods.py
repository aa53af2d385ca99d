"""Pods as the API tells of them: the few fields that matter, why one waits and how one ended.

The sentences here are what a person reads in `status`: a pod never just "is Pending", it waits for
something, and somebody can do something about it.
"""

from collections import Counter
from collections.abc import Iterable

import msgspec


class _Owner(msgspec.Struct, frozen=True):
    """What something belongs to."""

    uid: str = ""


class _Meta(msgspec.Struct, rename="camel", frozen=True):
    """Metadata."""

    name: str
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}
    deletion_timestamp: str | None = None
    owner_references: list[_Owner] = []


class PodSpec(msgspec.Struct, rename="camel", frozen=True):
    """Where it runs, and whether its containers are started again."""

    node_name: str = ""
    restart_policy: str = "Always"


class Waiting(msgspec.Struct, frozen=True):
    """A container that cannot start yet."""

    reason: str = ""
    message: str = ""


class Terminated(msgspec.Struct, rename="camel", frozen=True):
    """A container that has ended."""

    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""


class Running(msgspec.Struct, rename="camel", frozen=True):
    """A container that runs."""

    started_at: str | None = None


class ContainerState(msgspec.Struct, frozen=True):
    """One of the three."""

    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class Container(msgspec.Struct, rename="camel", frozen=True):
    """The state of one container."""

    name: str
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()  # of its life before
    ready: bool = False
    restart_count: int = 0


class Condition(msgspec.Struct, frozen=True):
    """One condition."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


class Status(msgspec.Struct, rename="camel", frozen=True):
    """How it stands."""

    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    nominated_node_name: str = ""  # a machine where others make room for it
    conditions: list[Condition] = []
    container_statuses: list[Container] = []
    init_container_statuses: list[Container] = []


class Pod(msgspec.Struct, frozen=True):
    """A pod."""

    metadata: _Meta
    spec: PodSpec = PodSpec()
    status: Status = Status()

    @property
    def uid(self) -> str:
        """Its identity."""
        return self.metadata.uid

    @property
    def owners(self) -> set[str]:
        """UIDs of what it belongs to."""
        return {owner.uid for owner in self.metadata.owner_references}

    @property
    def ended(self) -> bool:
        """Whether all its containers have ended for good."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def over(self) -> bool:
        """Whether nothing of it runs any more. The kubelet says first that the containers have
        ended, and only then that the pod has: who deletes it in between loses result and output."""
        containers = self.status.container_statuses
        return self.ended or (
            bool(containers) and all(c.state.terminated is not None for c in containers)
        )

    @property
    def outlived(self) -> bool:
        """Whether its main container has ended well, and another one goes on: a sidecar, which does
        not end by itself unless it is a native one."""
        done = self.main.state.terminated if self.main is not None else None
        return done is not None and done.exit_code == 0 and not (self.over or self.leaving)

    @property
    def spent(self) -> bool:
        """Whether its main container has failed for good, whatever goes on beside it."""
        done = self.main.state.terminated if self.main is not None else None
        return done is not None and done.exit_code != 0 and self.spec.restart_policy == "Never"

    @property
    def failed_at_start(self) -> bool:
        """Whether an init container has failed, and is to be started again."""
        containers = self.status.init_container_statuses
        ended = (c.state.terminated or c.last_state.terminated for c in containers)
        return any(end is not None and end.exit_code != 0 for end in ended)

    @property
    def unbound(self) -> bool:
        """Whether the scheduler may bring it to any machine still."""
        held = any(c.reason == "SchedulingGated" for c in self.status.conditions)
        return not (self.spec.node_name or self.leaving or self.ended or held)

    @property
    def leaving(self) -> bool:
        """Whether it is being deleted."""
        return self.metadata.deletion_timestamp is not None

    @property
    def main(self) -> Container | None:
        """The container that Holdfast runs in; a mesh or a cloud may add others, which begin and
        are started again on their own. The kubelet lists all by name."""
        found = self.status.container_statuses
        return next((c for c in found if c.name in MAIN), found[0] if found else None)

    @property
    def running(self) -> bool:
        """Whether its main container runs."""
        return self.main is not None and self.main.state.running is not None

    @property
    def begun(self) -> bool:
        """Whether its main container runs, or has ended."""
        return self.running or (self.main is not None and self.main.state.terminated is not None)

    @property
    def restarts(self) -> int:
        """How often its main container was started again."""
        return self.main.restart_count if self.main is not None else 0


MAIN = frozenset(
    ("main", "node", "worker", "pytorch", "tensorflow", "jax", "xgboost", "paddle", "mpi")
) | {"controller", "launcher", "submit", "ray-worker", "ray-head", "ray-job-submitter"}
"""Containers that Holdfast runs in, as the engines call them."""
QUEUE = "kueue.x-k8s.io/queue-name"


def main_container(pod: Pod) -> str:
    """Its name; of a pod that no kubelet has seen yet, the most frequent one."""
    return pod.main.name if pod.main is not None else "main"


# ── why it waits ──────────────────────────────────────────────────────────────────────────────

PULL = frozenset(("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"))
CONFIG = frozenset(("CreateContainerConfigError", "CreateContainerError", "RunContainerError"))


def waits_for(pod: Pod, queue: str = "") -> str | None:
    """What a pod that does not run yet is waiting for; None if it runs or has ended. `queue` is
    Kueue's, if the job goes through one and pods do not say so themselves."""
    if pod.ended or pod.running:
        return None
    condition = next((c for c in pod.status.conditions if c.type == "PodScheduled"), None)
    if condition is not None and condition.status == "False":
        return _unscheduled(condition, pod.metadata.labels.get(QUEUE, queue))
    if condition is None and not pod.spec.node_name:
        return "the scheduler"
    if pod.main is not None and (told := _container(pod.main)) is not None:
        return told
    before = map(_container, pod.status.init_container_statuses)
    return next(filter(None, before), "the kubelet to start it")


def _unscheduled(condition: Condition, queue: str) -> str:
    """What the scheduler says, in which the claim that is not bound yet is the frequent guest."""
    message = condition.message.strip().rstrip(".")
    if condition.reason == "SchedulingGated" and queue:
        return f"queue {queue} of Kueue to admit it"
    if condition.reason == "SchedulingGated":
        return "its scheduling gates to be lifted (a queue has not admitted it yet)"
    if "unbound immediate PersistentVolumeClaims" in message or "persistentvolumeclaim" in message:
        return f"a volume: {message}"
    return f"a machine: {message}" if message else "a machine"


def _container(container: Container) -> str | None:
    waiting = container.state.waiting
    if waiting is None:
        running = container.state.running is not None and not container.ready
        return f"{container.name} to finish" if running else None
    said = f": {waiting.message.strip()}" if waiting.message else ""
    if waiting.reason in PULL:
        return f"its image ({waiting.reason}){said}"
    if waiting.reason in CONFIG:
        return f"its configuration ({waiting.reason}){said}"
    if waiting.reason == "CrashLoopBackOff":
        return f"{container.name} (CrashLoopBackOff){said}"
    return None if waiting.reason == "PodInitializing" else "its containers to be created"


def summary(pods: Iterable[Pod], wanted: int, queue: str = "") -> str | None:
    """What the job waits for, in one line: how many nodes of those wanted, spares included, and the
    most frequent reasons. What Kueue holds back by suspending it has no pods at all."""
    alive = [pod for pod in pods if not pod.ended and not pod.leaving]
    reasons = Counter(reason for pod in alive if (reason := waits_for(pod, queue)) is not None)
    missing, wanted = wanted - len(alive), max(wanted, len(alive))
    if missing > 0:
        them = "it" if missing == 1 else "them"
        held = f"queue {queue} of Kueue to admit {them}, or " if queue else ""
        reasons[f"{held}the engine to create {them}"] += missing
    if not reasons:
        return None
    wait = "node waits" if wanted == 1 else "nodes wait"
    told = [f"{some} of {wanted} {wait} for {why}" for why, some in reasons.most_common(3)]
    return "; ".join(told)


# ── how it ended ──────────────────────────────────────────────────────────────────────────────


TAKEN = {
    "EvictionByEvictionAPI": "evicted, as `kubectl drain` does",
    "PreemptionByScheduler": "preempted by a pod of higher priority",
    "DeletionByTaintManager": "removed from its machine, which is unreachable or tainted",
    "DeletionByPodGC": "removed with its machine",
    "TerminationByKubelet": "terminated by its machine, which shuts down or is out of a resource",
}
"""What a condition `DisruptionTarget` means, by its reason."""

PLANNED = frozenset(("EvictionByEvictionAPI", "PreemptionByScheduler"))


def was_planned(pod: Pod) -> bool:
    """Whether somebody took it away from a machine that may be well: a drain, a preemption, or a
    deletion. A taint, the end of its machine and its kubelet say something of the machine."""
    reasons = {c.reason for c in pod.status.conditions if _is_disrupted(c)}
    return reasons <= PLANNED and (bool(reasons) or (pod.leaving and not pod.status.reason))


def _is_disrupted(condition: Condition) -> bool:
    return (condition.type, condition.status) == ("DisruptionTarget", "True")


def taken(pod: Pod) -> str:
    """Who takes a pod away, for a person; "" if nobody does."""
    for condition in pod.status.conditions:
        if _is_disrupted(condition):
            said = ": ".join(filter(None, (condition.reason, condition.message)))
            return f"its pod was {TAKEN.get(condition.reason, 'removed')} ({said})"
    return "its pod was deleted" if pod.leaving else ""


def ending(pod: Pod) -> str:
    """How a pod ended, for a person: evicted, deleted, out of memory, exit status. Where an init
    container has failed, its own never began."""
    if pod.status.reason:
        said = f": {pod.status.message}" if pod.status.message else ""
        return f"its pod was terminated ({pod.status.reason}{said})"
    if told := taken(pod):
        return told
    if pod.main is not None and (done := pod.main.state.terminated) is not None:
        return f"its container {_exited(done)}"
    for container in pod.status.init_container_statuses:
        done = container.state.terminated
        if done is not None and done.exit_code:
            return f"its init container {container.name} {_exited(done)}"
    return "its pod was deleted"


def ended_before(pod: Pod, since: int) -> str:
    """How its container ended that its kubelet had started `since` times again, for a person; ""
    as far as that one runs on."""
    main = pod.main
    if main is None:
        return ""
    again = main.restart_count > since
    waits = main.state.waiting is not None
    done = main.last_state.terminated if again or waits else main.state.terminated
    if done is None:
        return "its container was started again" if again else ""
    return f"its container {_exited(done)}{' and was started again' if again else ''}"


def _exited(done: Terminated) -> str:
    odd = f" ({done.reason})" if done.reason not in ("", "Error", "Completed") else ""
    return f"exited with status {done.exit_code}{odd}"
