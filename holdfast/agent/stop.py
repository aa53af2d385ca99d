"""Stopping an attempt as the controller orders it, and the answer once nothing of it is left.

Every order to stop is answered, also one for an attempt that never ran here. Within the grace time
a snapshot may be saved first. A later order may shorten the grace time of an earlier one; or it
says that the job ends with what was to be kept in memory only, which is then saved before that.
"""

import asyncio
import time

import msgspec

from holdfast.agent import looks, node_memory
from holdfast.agent.attempts import Attempts
from holdfast.agent.node_attempt import NativeLook, NodeAttempt
from holdfast.agent.parts import NodeParts
from holdfast.agent.signals import ask_to_end, kill, kill_others, terminate
from holdfast.agent.stack_dump import NATIVE_S, native_stack
from holdfast.agent.standing_by import StandingBy
from holdfast.agent.stray_processes import end_strays
from holdfast.agent.urgent_saves import SHARE
from holdfast.events import Progress
from holdfast.messages import Stop, WorkersStopped


class AttemptStop:
    """Carries out `Stop`."""

    def __init__(
        self, parts: NodeParts, attempts: Attempts, standing: StandingBy, *, has_tiers: bool
    ) -> None:
        """`has_tiers`: a snapshot can be saved where it outlives the job."""
        self._parts = parts
        self._attempts = attempts
        self._has_tiers = has_tiers
        self._standing = standing
        self._saving = 0  # newest attempt of which a last snapshot was asked for
        self._saves_until: dict[int, float] = {}  # the same that was then to outlive the job

    def obey(self, order: Stop) -> None:
        """Stop this attempt and all before it."""
        if self._attempts.fence(order.attempt):
            self._parts.offer.drop()
        run, tasks = self._attempts.newest, self._parts.tasks
        if run is None or run.stopped or run.order.attempt > order.attempt:
            tasks.start(self._answer(run, order.attempt))
        elif (
            (order.save or order.keeps)
            and run.stop_at is None
            and self._parts.saves.can(run.order.attempt)
        ):
            if self._saving < run.order.attempt:  # else a new controller has repeated the order
                self._saving = run.order.attempt
                tasks.start(self._save_and_stop(order))
            elif order.save:
                self._outlive(order)
        elif order.save and self._saving == run.order.attempt:
            self._outlive(order)
        elif order.look and run.stop_at is None:
            tasks.start(self._look_and_stop(run, order))
        else:
            self._stop(run, order)

    def _outlive(self, order: Stop) -> None:
        """The snapshot that an earlier order had taken is for a durable tier as well."""
        self._saves_until[order.attempt] = time.monotonic() + SHARE * order.grace_s

    async def _look_and_stop(self, run: NodeAttempt, order: Stop) -> None:
        """Once they are dead nobody can tell any more what they had entered."""
        run.entered = await looks.last_words(run.alive)
        if not self._parts.end.begun:
            self._stop(run, order)

    def _stop(self, run: NodeAttempt, order: Stop) -> None:
        first = run.stop_at is None
        hung = run.of_rank(order.hung) if first and order.grace_s > 0 else None
        if hung is not None:
            reads = native_stack(hung.pid, min(NATIVE_S, order.grace_s))
            run.native_look = NativeLook(hung, asyncio.create_task(reads))
            self._parts.tasks.start(self._end_when_seen(run.native_look))
        terminate(run, self._parts.processes, time.monotonic(), park_s=order.park_s, spared=hung)
        self._parts.health.look()  # what broke, if anything did, is to be known before the verdict
        self._kill_later(run, order)
        if first:
            self._parts.tasks.start(self._finish(run, order.attempt))

    def _kill_later(self, run: NodeAttempt, order: Stop) -> None:
        """Whoever was told to park has the longer of two times."""
        loop, processes = asyncio.get_running_loop(), self._parts.processes
        last_s = max(order.grace_s, order.park_s or 0.0)
        if order.grace_s < last_s:
            loop.call_later(order.grace_s, kill_others, run, processes)
        if last_s > 0:
            loop.call_later(last_s, kill, run, processes)
        else:
            kill(run, processes)

    async def _end_when_seen(self, look: NativeLook) -> None:
        """While the others end there is time for what takes a second or two."""
        await look.stack
        if look.worker.death is None:
            ask_to_end(look.worker, self._parts.processes)

    async def _save_and_stop(self, order: Stop) -> None:
        """The whole job ends, but the disks of its nodes stay; or only memory is asked for."""
        began, goes = time.monotonic(), order.keeps == "elsewhere"
        if self._has_tiers or order.keeps:
            await self._parts.saves.save(
                order.grace_s, node_goes=goes, job_ends=not order.keeps, holds=True
            )
        left = max(0.1, order.grace_s - (time.monotonic() - began))
        if not self._parts.end.begun:
            park_s = left if order.park_s else order.park_s
            self.obey(
                msgspec.structs.replace(order, grace_s=left, park_s=park_s, save=False, keeps="")
            )

    async def _finish(self, run: NodeAttempt, number: int) -> None:
        await run.gone.wait()
        await end_strays(self._parts.processes.spared)
        node_memory.forget(self._parts.node)
        if (until := self._saves_until.pop(number, None)) is not None:
            await self._parts.saves.until_saved(number, max(0.0, until - time.monotonic()))
        self._parts.processes.stores.retire()
        await self._parts.health.settled()
        await self._answer(run, number)
        run.stopped = True
        self._parts.warm_up.attempt_stopped(time.monotonic())

    async def _answer(self, run: NodeAttempt | None, number: int) -> None:
        self._standing.hold_back()
        store = await self._parts.offer.next()
        node, warm = self._parts.node, self._parts.offer.warm
        stopped = WorkersStopped(node=node, attempt=number, store=store, warm=warm)
        if run is not None and run.order.attempt <= number:
            here = run.order.attempt == number  # else what an earlier one did is known
            told = (run.progress(), run.entered) if here else (Progress(), {})
            parked = sum(worker.is_parked for worker in run.workers.values())
            unkept = max(0, run.able - parked)
            stopped = msgspec.structs.replace(
                stopped,
                progress=told[0],
                entered=told[1],
                parked=parked,
                unkept=unkept,
                refusal=run.refusal,
            )
        self._parts.controller.fact(stopped)
