"""When a node counts as a spare, and a node of a job of replicas takes part again: once its workers
only need their ranks.

A node says at once that it can start workers, and once more when they are warm: until then others
neither leave a node for it nor stop to be more, but where a rank is vacant it is better than none.
Of replicas the others go on without it, so it says after an attempt that it cannot start workers
yet: they have what they need to train, and a process that starts, imports and builds its model
would make them wait for seconds.
"""

import asyncio
from collections.abc import Callable

from holdfast.agent.fork_protocol import ChildKind
from holdfast.agent.parts import NodeParts
from holdfast.agent.workers import Worker

LOOK_S = 0.05


class StandingBy:
    """Of one node. Where workers do not run ahead nothing is known of them, and it may at once."""

    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts
        self._held = False
        self._watches = False

    @property
    def _runs_ahead(self) -> bool:
        return self._parts.processes.workers.warm_kind is ChildKind.RUN

    def hold_back(self) -> None:
        """An attempt has ended, or there is a forkserver: of replicas, the controller is not told
        of a store before this node may."""
        replicas = self._parts.job.recovery.mode == "replicas"
        if replicas and self._runs_ahead and not self._held and not self._stands():
            self._held = True
            self._parts.offer.hold()
            self._parts.tasks.start(self._release())

    async def _release(self) -> None:
        while not self._stands() and not self._parts.end.begun:
            await asyncio.sleep(LOOK_S)
        self._held, self._parts.offer.warm = False, True
        self._parts.offer.release()

    def tell_when_warm(self, needed: Callable[[], bool]) -> None:
        """There is a forkserver. Once the node is `needed` for an attempt, nobody asks any more."""
        self._parts.offer.warm = not self._runs_ahead
        if self._runs_ahead and not self._watches:
            self._watches = True
            self._parts.tasks.start(self._watch(needed))

    async def _watch(self, needed: Callable[[], bool]) -> None:
        while not (gone := needed() or self._parts.end.begun) and not self._stands():
            await asyncio.sleep(LOOK_S)
        self._watches, self._parts.offer.warm = False, True
        if not gone:
            self._parts.offer.tell_again()

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
