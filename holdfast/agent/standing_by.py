"""When a node of a job of replicas may take part again: once its workers only need their ranks.

Until then it says after an attempt that it cannot start workers yet, so that the others go on
without it. They have what they need to train; a process that starts and imports would make them
wait for seconds.
"""

import asyncio

from holdfast.agent.fork_protocol import ChildKind
from holdfast.agent.parts import NodeParts
from holdfast.agent.workers import Worker

LOOK_S = 0.05


class StandingBy:
    """Of one node. Where workers do not run ahead nothing is known of them, and it may at once."""

    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts
        self._held = False

    def hold_back(self) -> None:
        """An attempt has ended, or there is a forkserver: the controller is not told of a store
        before this node may."""
        workers = self._parts.processes.workers
        replicas = self._parts.job.recovery.mode == "replicas"
        if (
            replicas
            and workers.warm_kind is ChildKind.RUN
            and not self._held
            and not self._stands()
        ):
            self._held = True
            self._parts.offer.hold()
            self._parts.tasks.start(self._release())

    async def _release(self) -> None:
        while not self._stands() and not self._parts.end.begun:
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
