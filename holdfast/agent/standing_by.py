"""When a node counts as a spare, and a node of a job of replicas takes part again: once its workers
only need their ranks.

Until then it says that it cannot start workers yet, so that the others go on without it. They have
what they need to train; a process that starts, imports and builds its model would make them wait
for seconds.
"""

import asyncio
import math
import time

from holdfast.agent.fork_protocol import ChildKind
from holdfast.agent.parts import NodeParts
from holdfast.agent.workers import Worker

LOOK_S = 0.05
JOINS_S = 120.0  # for a node that has just come: what takes longer is looked at in an attempt


class StandingBy:
    """Of one node. Where workers do not run ahead nothing is known of them, and it may at once."""

    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts
        self._held = False

    def hold_back(self, *, joins: bool = False) -> None:
        """An attempt has ended, or there is a forkserver: the controller is not told of a store
        before this node may. `joins`: it is new, and the others train."""
        workers = self._parts.processes.workers
        replicas = self._parts.job.recovery.mode == "replicas"
        waits = (replicas or joins) and workers.warm_kind is ChildKind.RUN
        if waits and not self._held and not self._stands():
            self._held = True
            self._parts.offer.hold()
            self._parts.tasks.start(self._release(math.inf if replicas else JOINS_S))

    async def _release(self, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while not self._stands() and not self._parts.end.begun and time.monotonic() < deadline:
            await asyncio.sleep(LOOK_S)
        self._held = False
        self._parts.offer.release()

    def _stands(self) -> bool:
        """Whether each worker is parked or waits at `join()`, or has failed on its way there: then
        the next attempt shows why."""
        workers = self._parts.processes.workers
        parked = {one.local_rank for one in workers.table.values() if one.is_parked}
        if len(parked) == workers.count:
            return True
        if not self._parts.processes.ready:
            return False
        self._parts.processes.warm_up()
        return all(local in parked or _waits(one) for local, one in workers.warm.items())


def _waits(worker: Worker) -> bool:
    return worker.control is not None and bool(worker.control.waits_at())
