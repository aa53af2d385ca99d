"""Checks that fail on every machine alike, for what nodes share: an image, a driver, a setting.

Told by the world when that begins and ends, this referee lets nobody be taken for bad meanwhile: a
machine that is given up for its checks has to be really sick. Where it begins or ends while
machines are compared, one may have failed and the other one not.

Links are measured where real nodes would do that. A network that is flaky for a while is no reason
to name a node: only its own figures are worse. A slow port (`slow_ports`) is one at both ends.
"""

from typing import Protocol

from holdfast.events import AnyEvent, NodesChecked, NodeUnfit
from holdfast.links import LinkFigures
from holdfast.messages import CheckMachine, MachineChecked
from holdfast.simulation.environment import SOUND_PORT, Environment
from holdfast.simulation.slow_ports import NETWORK

WRONG = "matmul: the check exited with status 1: ImportError: libcublas.so.12"
CHECK_S = 8.0  # for a machine to check itself
LINK_S = 2.0  # to measure a link
LINK_BYTES_PER_S = 1e9
COMPARED_S = 60.0  # that it takes two machines, at most, to check the same
DISK = "disk /checkpoints/local: Input/output error"


def check_s(order: CheckMachine) -> float:
    """How long a node takes for it, mean."""
    return LINK_S if order.peer else CHECK_S


class CheckedNode(Protocol):
    """A node that is asked."""

    node: str
    fault: str  # of its own, that checks find
    drags: float  # how many times as slow it makes training, by its network


def checked(order: CheckMachine, node: CheckedNode, env: Environment) -> MachineChecked:
    """What a node says."""
    if order.peer:
        ports = (env.ports.get(end, SOUND_PORT).times for end in (node.node, order.peer))
        rate = LINK_BYTES_PER_S / max(node.drags, *ports)
        found = LinkFigures(there_bytes_per_s=rate, back_bytes_per_s=rate)
        return MachineChecked(number=order.number, link=found)
    address = "" if order.only else node.node
    return MachineChecked(number=order.number, why=env.found_on(node.fault), address=address)


class FairChecks:
    """Who has failed, and whether somebody may be taken for bad."""

    def __init__(self) -> None:
        self._failed: set[str] = set()
        self.unclear = False  # until a moment ago every machine has failed, or has passed

    def heard(self, event: AnyEvent) -> None:
        """Who has failed."""
        if isinstance(event, NodeUnfit):
            self._failed.add(event.node)
        elif isinstance(event, NodesChecked) and not event.told:
            found = event.found.items()  # whose network is slow is judged by `FairNetworks`
            self._failed |= {node for node, why in found if why and not why.startswith(NETWORK)}

    def has_failed(self, node: str) -> bool:
        """Whether it has, at any time."""
        return node in self._failed

    def may_be_left(self, node: str) -> bool:
        """Whether it can be taken for bad because it has failed."""
        return self.unclear and node in self._failed
