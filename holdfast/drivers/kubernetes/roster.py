"""The pods of a job and the nodes in them. Pure: what is seen goes in, what follows comes out.

A node is one life of the agent in a pod: its id is the pod's UID, and `UID.2` after the container
was started again in the same pod. The roster knows which nodes a pod that ended takes with it,
which pods are on their way to becoming nodes, and how many are still to be made.

Where an engine has containers started again in their pods, only the kubelet knows of it: no pod
comes or goes. `Restarts` tells which nodes have ended by that, and how.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from holdfast.drivers.kubernetes.manifests.names import ROLE
from holdfast.drivers.kubernetes.pods import (
    Pod,
    ended_before,
    ending,
    summary,
    taken,
    was_planned,
)
from holdfast.events import AnyEvent, NodeJoined, NodeLeft, NodeLost, NodeLostReason

if TYPE_CHECKING:
    from holdfast.controller.state import State

SPARE, LAUNCHER = "spare", "launcher"
TRAINS = frozenset(("node", SPARE))
GONE_KEPT = 4096  # pods that are remembered: far more than go while one is made
CLOSING = "closing"  # phase of a job whose nodes end by themselves
LINGERING_MIN = 8  # so many pods on their way out keep no job, however small, from new ones


class Gone(NamedTuple):
    """A node that ended with its pod."""

    node: str
    how: str
    planned: bool = False  # somebody took its pod


def uid_of(node: str) -> str:
    """The UID of the pod that a node lives in."""
    return node.partition(".")[0]


def life(pod: Pod) -> str:
    """The id of the node that this pod runs now."""
    return pod.uid if pod.restarts == 0 else f"{pod.uid}.{pod.restarts + 1}"


class Restarts:
    """How often the kubelets had started the containers of nodes again when these joined.

    An agent counts its own starts: a container that ends before that is a start of the kubelet's
    only. So their counts are never compared, but the kubelet's with what it was."""

    def __init__(self, state: "State", pods: Mapping[str, Pod]) -> None:
        self._state, self._pods = state, pods
        self._since: dict[str, dict[str, int]] = {}  # by UID and node
        self._seen: dict[str, int] = {}  # by UID

    def joined(self, node: str) -> None:
        """It is in the container that runs now."""
        pod = self._pods.get(uid_of(node))
        known = self._since.setdefault(uid_of(node), {})
        known[node] = pod.restarts if pod is not None else 0

    def ended(self, pod: Pod, connected: Callable[[], Collection[str]]) -> list[Gone]:
        """Nodes of a pod as it is now whose container has ended. One that is connected has joined
        before the API has told of the start of its container; of those of a former controller it is
        not known in which one they are."""
        if pod.uid not in self._pods:  # its nodes have ended with it
            return []
        before = self._seen.get(pod.uid)
        self._seen[pod.uid] = pod.restarts
        if pod.restarts == (before or 0):
            return []
        here = [n for n in self._state.nodes if uid_of(n) == pod.uid]
        alive = here if before is None else connected()
        gone = [n for n in here if n not in alive and pod.restarts > self._count(n)]
        told = [Gone(n, ended_before(pod, self._count(n))) for n in gone]
        known = self._since.setdefault(pod.uid, {})
        known |= {n: pod.restarts for n in here if n not in gone}
        return told

    def forget(self, pod: Pod) -> None:
        """It is gone, and no container is started in it any more."""
        self._seen.pop(pod.uid, None)
        self._since.pop(pod.uid, None)

    def goes_on(self, node: str) -> bool:
        """Whether another container runs in its pod now."""
        pod = self._pods.get(uid_of(node))
        return pod is not None and pod.running and pod.restarts > self._count(node)

    def told(self, lost: NodeLost) -> NodeLost:
        """What ended a node that is silent, as far as its kubelet knows."""
        pod = self._pods.get(uid_of(lost.node))
        if pod is None or lost.reason is not NodeLostReason.SILENT:
            return lost
        how = ended_before(pod, self._count(lost.node))
        return msgspec.structs.replace(lost, detail=f"{how} ({lost.detail})") if how else lost

    def _count(self, node: str) -> int:
        """One that never joined is named after its kubelet's count."""
        uid, _, number = node.partition(".")
        return self._since.get(uid, {}).get(node, int(number) - 1 if number else 0)


class SpentPods:
    """Pods in which the agent has failed for good before it registered, and which a sidecar keeps
    running. Who has registered is known by its connection, and at the end of a job all do end."""

    def __init__(self, state: "State") -> None:
        self._state = state
        self.told: set[str] = set()  # their UIDs

    def seen(self, pod: Pod) -> list[Gone]:
        """The node of this pod, if that has just become known."""
        state = self._state
        if not pod.spent or pod.uid in self.told or state.ended or state.phase.value == CLOSING:
            return []
        if any(uid_of(node) == pod.uid for node in (*state.nodes, *state.lost)):
            return []
        self.told.add(pod.uid)
        return [Gone(life(pod), ending(pod), was_planned(pod))]


class Roster:
    """Every pod of the job that was seen and has not gone. Only those that can train count as
    nodes; a launcher is remembered apart."""

    def __init__(self, state: "State") -> None:
        self._state = state
        self.pods: dict[str, Pod] = {}  # by UID
        self._launchers: dict[str, Pod] = {}
        self._highest = -1  # number at the end of a pod's name
        self.restarts = Restarts(state, self.pods)
        self.gone: dict[str, None] = {}  # UIDs of pods that were seen and are, the newest last
        self.withdrawn: set[str] = set()  # UIDs of pods that we delete before they have a machine
        self.snatched = 0  # pods that others deleted so early, since the last one got a machine
        self._untold: set[str] = set()  # nodes that are gone, as the controller may not know yet
        self._spent = SpentPods(state)

    def see(self, pod: Pod) -> list[Gone]:
        """A pod as it is now; the nodes that have ended with it."""
        if pod.metadata.labels.get(ROLE, "node") == LAUNCHER:
            self._launchers[pod.uid] = pod
        if pod.metadata.labels.get(ROLE, "node") not in TRAINS:
            return []
        self._count(pod)
        if pod.ended:
            return self.lose(pod)
        before = self.pods.get(pod.uid)
        if pod.spec.node_name and not (before is not None and before.spec.node_name):
            self.snatched = 0
        self.pods[pod.uid] = pod
        return self._spent.seen(pod)

    def lose(self, pod: Pod) -> list[Gone]:
        """A pod that is gone for good. One that was deleted before it had a machine, by us or by
        others, was no node that failed: another is made in its place."""
        self._launchers.pop(pod.uid, None)
        withdrawn = pod.uid in self.withdrawn
        self.withdrawn.discard(pod.uid)
        self.restarts.forget(pod)
        self.gone[pod.uid] = None
        if len(self.gone) > GONE_KEPT:
            del self.gone[next(iter(self.gone))]
        if self.pods.pop(pod.uid, None) is None:
            return []
        known = [n for n in self._state.nodes if uid_of(n) == pod.uid]
        if not (pod.spec.node_name or known) and (withdrawn or not pod.ended):
            self.snatched += not withdrawn
            return []
        gone = [n for n in known or [life(pod)] if n not in self._state.lost]
        self._untold.update(gone)
        told = [] if pod.uid in self._spent.told and not known else gone
        return [Gone(n, ending(pod), was_planned(pod)) for n in told]

    def explained(self, event: AnyEvent) -> AnyEvent:
        """What an agent tells that leaves, with who takes its pod: it knows only that it is to go,
        and the API has told us before it has ended. And what ended one that tells nothing."""
        if isinstance(event, NodeJoined):
            self.restarts.joined(event.node)
        if isinstance(event, NodeLost):
            return self.restarts.told(event)
        if not isinstance(event, NodeLeft) or event.detail:
            return event
        pod = self.pods.get(uid_of(event.node))
        return msgspec.structs.replace(event, detail=taken(pod)) if pod is not None else event

    def relist(self, pods: Iterable[Pod]) -> list[Gone]:
        """All pods that there are; nodes of others have ended unseen."""
        seen = list(pods)
        there = {pod.uid for pod in seen}
        missed = [pod for uid, pod in self.pods.items() if uid not in there]
        return [gone for pod in missed for gone in self.lose(pod)] + [
            gone for pod in seen for gone in self.see(pod)
        ]

    def existing(self) -> list[str]:
        """For a controller that came back: nodes whose pods live, known ones by their own ids."""
        known = [n for n in [*self._state.nodes, *self._state.lost] if uid_of(n) in self.pods]
        uids = {uid_of(n) for n in known}
        return known + [uid for uid in self.pods if uid not in uids]

    def missing(self) -> int:
        """Pods to be made so that every node that was asked for can come.

        Only those that are on their way count against what was asked for. A node that has joined is
        the controller's to count, whatever becomes of its pod: while a pod is leaving its node may
        train on for hours, where a kubelet has stopped, and is replaced once it is given up. So is
        one that has died before it joined: whether another one follows at once, it decides."""
        joined = {uid_of(n) for n in self._state.nodes}
        coming = sum(p.uid not in joined for p in self._usable())
        self._untold -= self._state.lost.keys()
        unheard = sum(uid_of(node) not in joined for node in self._untold)
        return max(0, self._state.asked - coming - unheard)

    def room(self, wanted: int) -> int:
        """How many pods may still be made, whatever is asked for: never more than the job wants
        beside those on their way out, and never without end while these stay. The pod of a node
        that was given up counts until its deletion has begun: till then the cluster runs it."""
        lingering = wanted + max(wanted, LINGERING_MIN) - len(self.pods)
        return max(0, min(wanted - sum(not p.leaving for p in self.pods.values()), lingering))

    def useless(self) -> int:
        """Pods on their way out, or of nodes that were given up."""
        return len(self.pods) - len(self._usable())

    def _usable(self) -> list[Pod]:
        """Pods that train, wait, or may come to."""
        lost = {uid_of(n) for n in self._state.lost} - {uid_of(n) for n in self._state.nodes}
        return [p for uid, p in self.pods.items() if not p.leaving and uid not in lost]

    def lacks_spares(self, wanted: int) -> bool:
        """Whether the next pod should be a spare: all that train have theirs."""
        training = sum(p.metadata.labels.get(ROLE) != SPARE for p in self.pods.values())
        return training >= wanted

    def next_name(self, job: str) -> str:
        """A name that no pod of this job has had, as far as it was seen."""
        self._highest += 1
        return f"{job}-{self._highest}"

    def by_rank(self) -> list[Pod]:
        """Pods that are there: first those that train, in the order of their ranks."""
        ranks = {uid_of(n.node): n.node_rank for n in self._state.nodes.values()}
        last = len(ranks)

        def place(pod: Pod) -> int:
            rank = ranks.get(pod.uid)
            return last if rank is None else rank

        return sorted(self.pods.values(), key=place)

    def running(self) -> set[str]:
        """What runs now and ends by itself with the job: nodes, and launchers."""
        runs = (pod for pod in self._every() if pod.running and not pod.ended and not pod.leaving)
        return {life(pod) for pod in (*runs, *self.outlived())}

    def outlived(self) -> list[Pod]:
        """Pods that do not end although all is done there."""
        return [pod for pod in self._every() if pod.outlived]

    def _every(self) -> list[Pod]:
        return [*self.pods.values(), *self._launchers.values()]

    def waiting_for(self, wanted: int, queue: str = "") -> str | None:
        """What the pods are waiting for, in one line."""
        return summary(self.pods.values(), wanted, queue)

    def machine(self, node: str) -> str:
        """The machine that a node runs on, "" if it is not known."""
        pod = self.pods.get(uid_of(node))
        return pod.spec.node_name if pod is not None else ""

    def alone(self, node: str) -> Pod | None:
        """The pod of a node, unless a later life of it goes on there."""
        uid = uid_of(node)
        others = any(uid_of(n) == uid and n != node for n in self._state.nodes)
        return None if others else self.pods.get(uid)

    def _count(self, pod: Pod) -> None:
        tail = pod.metadata.name.rpartition("-")[2]
        if tail.isdigit():
            self._highest = max(self._highest, int(tail))
