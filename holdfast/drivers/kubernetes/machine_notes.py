"""Notes on the machines of a cluster what their nodes did to this job, if it has the right to.

A signal is rare, and its node may be gone when it is known, with its pod; so where a node runs is
remembered when it joins. What is not written yet when this controller ends is forgotten: it counts
for a later judgement of the machine, and nothing waits for it.
"""

import asyncio
from collections.abc import Callable

from holdfast.actions import Entry
from holdfast.controller.state import State
from holdfast.diagnosis.lemons import LemonSignal, Signals
from holdfast.drivers.kubernetes.cluster import Cluster
from holdfast.drivers.kubernetes.cordons import remember
from holdfast.drivers.kubernetes.manifests.request import Request
from holdfast.events import NodeJoined

PENDING_MAX = 512  # signals that wait to be written
REST_S = 1.0  # between two rounds, so that a burst is one write


class MachineNotes:
    """`hear` every line of the journal; `run` writes."""

    def __init__(
        self,
        cluster: Cluster,
        request: Request,
        state: State,
        machine_of: Callable[[str], str],
    ) -> None:
        self._cluster, self._may = cluster, request.job.access.cordon
        self._machine_of = machine_of
        self._signals = Signals(state.ranks, state.workers_per_node or 1)
        self._places: dict[str, str] = {}  # node → machine
        self._pending: list[tuple[str, LemonSignal, float]] = []
        self._some = asyncio.Event()

    def hear(self, entry: Entry) -> None:
        """The next line of the journal."""
        if not self._may:
            return
        if isinstance(entry.event, NodeJoined):
            self._places[entry.event.node] = self._machine_of(entry.event.node)
        given = self._signals.hear(entry)
        if given is None or len(self._pending) >= PENDING_MAX:
            return
        signal, node = given
        machine = self._machine_of(node) or self._places.get(node, "")
        if machine:
            self._pending.append((machine, signal, entry.at))
            self._some.set()

    async def run(self) -> None:
        """Write what is new, for ever."""
        while True:
            await self._some.wait()
            self._some.clear()
            found, self._pending = self._pending, []
            for machine in sorted({machine for machine, _, _ in found}):
                given = [(signal, at) for where, signal, at in found if where == machine]
                await remember(self._cluster, machine, given)
            await asyncio.sleep(REST_S)
