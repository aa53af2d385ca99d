"""Which copies of the training state exist, and from which one the next attempt can go on.

The own memory of every node survives the death of workers; a copy on a peer in another rack
survives the loss of the node; a remote checkpoint survives everything. Where a node and its peer
are lost before the state was put back, memory does not have it whole any more, and the older remote
one is used.

Of replicas each has the whole state, its nodes a part each: memory has it as long as every part is
on a node of some replica that took part when the state was put back last.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.simulation.plan import Plan
from holdfast.simulation.training import Training


class Restore(NamedTuple):
    """Where the state comes from, the step it is of, and how long putting it back takes."""

    tier: str
    step: int
    seconds: float


@dataclass
class NewestCopies:
    """The newest whole copy of each kind; `lost` are the node ranks lost since the last restore."""

    plan: Plan
    own: int = 0
    peer: int = 0
    remote: int = 0
    lost: set[int] = field(default_factory=set)
    restores: dict[str, int] = field(default_factory=dict)
    holders: dict[int, str] = field(default_factory=dict)  # the nodes that put back the newest

    def note(self, training: Training, at: float) -> None:
        """Training has halted: what was safe by then?"""
        memory, remote = self.plan.memory, self.plan.remote
        self.own = training.newest(memory, memory.block_s, at) or self.own
        self.peer = training.newest(memory, memory.lag_s, at) or self.peer
        self.remote = training.newest(remote, memory.block_s + remote.lag_s, at) or self.remote

    def choose(self) -> Restore:
        """The newest copy that every rank can get."""
        checkpoint, remote = self.plan.scenario.checkpoint, self.plan.scenario.remote
        if not self.lost:
            return Restore("memory", self.own, checkpoint.restore_s)
        if self._peers_hold():
            return Restore("peer", self.peer, checkpoint.restore_peer_s)
        return Restore("remote", self.remote, remote.restore_s)

    def among(self, ranks: Mapping[int, str]) -> Restore:
        """Likewise, where these nodes are replicas. Whoever lacks its part copies it from another
        replica, and the others wait for that."""
        checkpoint, remote = self.plan.scenario.checkpoint, self.plan.scenario.remote
        each = self.plan.scenario.replicas.nodes_each
        if not self.holders or ranks == self.holders:
            return Restore("memory", self.own, checkpoint.restore_s)
        parts = {node: rank % each for rank, node in self.holders.items()}
        held = [rank % each for rank, node in ranks.items() if parts.get(node) == rank % each]
        if len(held) == len(ranks):
            return Restore("memory", self.own, checkpoint.restore_s)
        if len({*held}) == each:
            return Restore("peer", self.own, checkpoint.restore_peer_s)
        return Restore("remote", self.remote, remote.restore_s)

    def restored(self, restore: Restore, ranks: Mapping[int, str]) -> None:
        """All nodes have put back this step and hold it, and their peers do."""
        self.restores[restore.tier] = self.restores.get(restore.tier, 0) + 1
        self.own = self.peer = restore.step
        self.lost.clear()
        self.holders = dict(ranks)

    def _peers_hold(self) -> bool:
        nodes, distance = self.plan.scenario.nodes, self.plan.peer_distance
        return nodes > 1 and not any((rank + distance) % nodes in self.lost for rank in self.lost)
