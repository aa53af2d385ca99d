"""Machines in racks and switches: which are free, which are broken, what stands beside what.

Machines are numbers; consecutive ones share a rack and consecutive racks a switch. Who trains where
is the controller's business; here is only known which life of a node runs on which machine. A
broken machine comes back to the free ones when it is repaired.
"""

from collections import deque

from holdfast.simulation.failures import Scope
from holdfast.simulation.scenario import ClusterLayout


class MachinePool:
    """Every machine is free, in use by one node, or broken; lives are numbered from 1."""

    def __init__(self, count: int, cluster: ClusterLayout) -> None:
        self._cluster = cluster
        self._count = count
        self._free = deque(range(count))
        self._lives = 0
        self._on: dict[int, str] = {}  # machine → node
        self._under: dict[str, int] = {}  # node → machine

    def take(self) -> str | None:
        """Start a new node on the machine that has been free longest; None if none is free."""
        if not self._free:
            return None
        machine = self._free.popleft()
        self._lives += 1
        node = f"m{machine}.{self._lives}"
        self._on[machine], self._under[node] = node, machine
        return node

    def runs(self, node: str) -> bool:
        """Whether this node still lives."""
        return node in self._under

    def end(self, node: str) -> int:
        """The node's life is over; returns its machine, which is neither free nor in use now."""
        machine = self._under.pop(node)
        del self._on[machine]
        return machine

    def repaired(self, machine: int) -> None:
        """The machine can be used again."""
        self._free.append(machine)

    def beside(self, scope: Scope, number: int) -> list[str]:
        """The nodes in this rack or under this switch."""
        size = self._cluster.nodes_per_rack
        if scope is Scope.SWITCH:
            size *= self._cluster.racks_per_switch
        machines = range(number * size, min(self._count, (number + 1) * size))
        return [self._on[m] for m in machines if m in self._on]

    def nodes(self) -> list[str]:
        """All nodes that live, in the order in which they were started."""
        return list(self._under)
