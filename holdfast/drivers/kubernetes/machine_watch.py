"""Watches the machines of the cluster, so that what they say of themselves is known of our nodes.

Machines belong to the cluster, and many controllers may not look at them. Then this is said once,
everything else goes on, and it is tried again now and then in case the right is given meanwhile.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from holdfast.drivers.kubernetes.cluster import NODES, ApiError, Change, Cluster, DeniedError
from holdfast.drivers.kubernetes.left_machines import Machines
from holdfast.drivers.kubernetes.machine_conditions import MachineConditions
from holdfast.drivers.kubernetes.machines import Machine
from holdfast.drivers.kubernetes.talk import say
from holdfast.drivers.kubernetes.watch import follow
from holdfast.events import AnyEvent, NodeJoined

AGAIN_S = 600.0  # after a refusal


class MachineWatch:
    """Tells the controller, by `put`, which conditions of machines begin and end."""

    def __init__(
        self,
        cluster: Cluster,
        conditions: MachineConditions,
        avoided: Machines,
        put: Callable[..., None],
    ) -> None:
        self._cluster, self._conditions, self._put = cluster, conditions, put
        self._avoided = avoided
        self._known: set[str] = set()  # machines

    async def run(self) -> None:
        """For ever."""
        refused = False
        while True:
            try:
                await follow(
                    self._cluster, NODES, Machine, "", self._listed, self._changed,
                    on_trouble=_stop_if_denied,
                )  # fmt: skip
            except DeniedError as error:
                if not refused:
                    say(f"conditions of machines are not watched: no permission ({error.message})")
                refused = True
                await asyncio.sleep(AGAIN_S)

    def explained(self, event: AnyEvent) -> AnyEvent:
        """A node that joins, with the rack that its machine is in."""
        if not isinstance(event, NodeJoined):
            return event
        return msgspec.structs.replace(event, rack=self._conditions.rack(event.node))

    def observe(self, event: AnyEvent) -> None:
        """A fact that the controller has heard: who has joined is told of its machine."""
        if isinstance(event, NodeJoined):
            self.look(event.node)

    def look(self, node: str) -> None:
        """Tell what is new of the machine of this node."""
        self._put(*self._conditions.look(node))

    def _listed(self, machines: Sequence[Machine]) -> None:
        there = {machine.metadata.name for machine in machines}
        for gone in self._known - there:
            self._conditions.lose(gone)
        self._known = there
        self._avoided.listed(machines)
        for machine in machines:
            self._put(*self._conditions.see(machine))

    def _changed(self, change: Change[Machine]) -> None:
        name = change.object.metadata.name
        if change.type == "DELETED":
            self._known.discard(name)
            self._conditions.lose(name)
            self._avoided.gone(name)
        else:
            self._known.add(name)
            self._avoided.see(change.object)
            self._put(*self._conditions.see(change.object))


def _stop_if_denied(error: ApiError) -> None:
    if isinstance(error, DeniedError):
        raise error
