"""The referee of replicas of several nodes: they take part whole, and stay together.

An attempt has whole replicas. One that was whole in the previous attempt, and of which no node was
lost, given up or unready since, takes part with all of its nodes as one replica, or with none:
otherwise a fault of one replica would have stopped another.
"""

from holdfast.actions import Dismiss, Entry, Fence, StartAttempt
from holdfast.events import AttemptStopped, NodeLost
from holdfast.messages import Start


class WholeReplicas:
    """Who was where in the last attempt that all of its nodes began, and in this one."""

    def __init__(self, nodes_each: int) -> None:
        self._each = nodes_each
        self._attempt = 0
        self._before: dict[int, str] = {}  # rank → node
        self._now: dict[int, str] = {}
        self._away: set[str] = set()  # since that one was ordered
        self._gone: set[str] = set()  # since the newest was: some begin it late

    def journaled(self, entry: Entry) -> None:
        """Whom this entry takes away."""
        event = entry.event
        gone = {a.node for a in entry.actions if isinstance(a, Fence | Dismiss)}
        if isinstance(event, NodeLost):
            gone.add(event.node)
        elif isinstance(event, AttemptStopped):
            gone.update(event.unready)
        self._away |= gone
        self._gone |= gone
        if any(isinstance(action, StartAttempt) for action in entry.actions):
            self._gone = set()

    def launched(self, node: str, order: Start) -> str:
        """A node begins to run workers."""
        if order.attempt != self._attempt:
            self._attempt, self._now = order.attempt, {}
        self._now[order.node_rank] = node
        if order.node_count % self._each:
            return f"attempt {order.attempt} has {order.node_count} nodes, {self._each} a replica"
        if len(self._now) < order.node_count:
            return ""
        how = next(filter(None, map(self._judged, self._replicas())), "")
        self._before, self._away = self._now, set(self._gone)
        return how

    def _replicas(self) -> list[list[str]]:
        """The nodes of each replica of the last attempt."""
        found: dict[int, list[str]] = {}
        for rank, node in self._before.items():
            found.setdefault(rank // self._each, []).append(node)
        return list(found.values())

    def _judged(self, nodes: list[str]) -> str:
        if not self._away.isdisjoint(nodes):
            return ""
        there = [rank // self._each for rank, node in self._now.items() if node in nodes]
        if not there or (len(there) == len(nodes) and len(set(there)) == 1):
            return ""
        return f"attempt {self._attempt} tears the replica of {', '.join(sorted(nodes))} apart"
