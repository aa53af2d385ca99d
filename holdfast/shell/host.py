"""Runs a shell in a process of its own: the clock, the sockets, signals and duties beside it.

Everything that happens is a callback of one event loop, and after each the shell does what is due,
in short turns so that connections are read in between. A process that was stopped for a while, or
starved, notices by its own late timer and blames nobody for what it has not heard.
"""

import asyncio
import gc
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from holdfast import interrupts
from holdfast.actions import Outcome
from holdfast.events import StopRequested, Store
from holdfast.messages import Question
from holdfast.reach import REFUSED, trouble_reaching
from holdfast.shell.clock import Clock
from holdfast.shell.knocking import Answered
from holdfast.shell.server import Server
from holdfast.shell.shell import Shell
from holdfast.shell.supervision import keep_running

LOOK_S = 0.1  # between two looks for silence
COLLECT = (10_000, 10, 50)  # thresholds of the garbage collector, see `Host.run`
SOON_S = 0.05  # the same, while somebody has been asked and has not answered
LATE_S = 1.0  # so late a look blames nobody: many short stops are as long as a long one
TURN_S = 0.05  # the shell works so long at most, then connections have their turn

Duty = Callable[[], Awaitable[object]]
End = Callable[[Outcome], Awaitable[object]]


class Host:
    """One shell, its server and its clock. `run` drives the job to its end."""

    def __init__(self, shell: Shell, clock: Clock, token: str, timeout_s: float) -> None:
        self.shell = shell
        self.server = Server(shell, token, clock.now, self.wake)
        shell.catch_up, shell.wake = self.server.catch_up, self.wake
        shell.decisions.wall_ahead_s = clock.wall_ahead_s
        shell.nodes.knocking.knock = self._knock
        self._clock, self._timeout_s = clock, timeout_s
        self._loop = asyncio.get_running_loop()
        self._turn: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self._looked_at = time.monotonic()
        self._over: asyncio.Future[Outcome | None] = self._loop.create_future()
        self._stops_asked = 0
        self._knocking: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """Something was heard."""
        if self._turn is None:
            self._turn = self._loop.call_soon(self._take_turn)

    async def run(
        self, duties: Mapping[str, Duty], say: Callable[[str], None], end: End | None = None
    ) -> Outcome | None:
        """Until the job has ended and `end` has cleared up, which the duties still go on for; or
        until another controller is to go on: None.

        Whatever fails for good ends it, too: the exception of the shell, or `DutyError`.
        """
        gc.set_threshold(*COLLECT)  # 12,500 connections are looked through for half a second each
        looking = self._loop.create_task(self._look_again_and_again())
        running = [
            self._loop.create_task(keep_running(name, duty, say)) for name, duty in duties.items()
        ]
        self.wake()
        try:
            waited: list[asyncio.Future[Any]] = [self._over, looking, *running]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            for task in (looking, *running):
                if task.done() and not self._over.done():
                    task.result()
            outcome = await self._over
            if outcome is not None and end is not None:
                await end(outcome)
            return outcome
        finally:
            knocking = (self._knocking,) if self._knocking is not None else ()
            await cancelled(looking, *running, *knocking)
            for handle in (self._turn, self._timer):
                if handle is not None:
                    handle.cancel()

    def fail(self, error: Exception) -> None:
        """Something without which the job cannot be driven has failed: `run` raises it."""
        if not self._over.done():
            self._over.set_exception(error)

    def pause(self, why: str) -> None:
        """Decide nothing for this reason; empty: go on."""
        self.shell.paused = why
        self.wake()

    async def stand_aside(self) -> None:
        """Another controller may act: let every agent go, so that it finds that one."""
        self.shell.nodes.release("another controller may have begun")
        await self.server.close()

    async def come_back(self) -> None:
        """Take agents in again."""
        await self.server.listen_again()
        self.shell.expect_again()

    def _knock(self, stores: Sequence[Store], within_s: float, answered: Answered) -> None:
        async def knock() -> None:
            tries = [trouble_reaching(store.host, store.port, within_s) for store in stores]
            found = zip(stores, await asyncio.gather(*tries), strict=True)
            answers = [not why or (why == REFUSED and not store.hosted) for store, why in found]
            answered(answers, self._clock.now())

        self._knocking = self._loop.create_task(knock())

    def ask(self, question: Question, nodes: Iterable[str]) -> None:
        """Send this to those of these nodes that are connected."""
        for node in nodes:
            self.shell.nodes.send(node, question)

    def stop_at(self, *signals: signal.Signals) -> None:
        """Take these signals for a stop request: the second is one to stop at once."""
        for number in signals:
            name = "Ctrl-C" if number is signal.SIGINT else number.name
            before = interrupts.forgotten(number)
            self._loop.add_signal_handler(number, self.asked_to_stop, name)
            if before:
                self.asked_to_stop(name)

    def asked_to_stop(self, by: str) -> None:
        """First cleanly, then at once."""
        self._stops_asked += 1
        self.shell.put(StopRequested(by=by, now=self._stops_asked > 1))
        self.wake()

    def _take_turn(self) -> None:
        self._turn = None
        if self._over.done():
            return
        end = time.monotonic() + TURN_S
        try:
            while self.shell.step():
                if time.monotonic() > end:
                    self.wake()
                    return
        except Exception as error:
            self.fail(error)
            return
        if self.shell.is_over:
            self._over.set_result(self.shell.outcome)
        self._set_timer()

    def _set_timer(self) -> None:
        at = self.shell.next_deadline()
        if at == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at, self._timer = at, None
        if at is not None:
            wait_s = max(0.0, at - self._clock.now())
            self._timer = self._loop.call_later(wait_s, self._on_time)

    def _on_time(self) -> None:
        self._timer_at = self._timer = None
        try:
            self._look()
        except Exception as error:  # the loop would only log it
            self.fail(error)

    async def _look_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(SOON_S if self.shell.nodes.asking.in_doubt else LOOK_S)
            self._look()

    def _look(self) -> None:
        late_s = time.monotonic() - self._looked_at - LOOK_S
        self._looked_at = time.monotonic()
        if late_s > min(LATE_S, self._timeout_s / 4):
            self.shell.forgive(late_s)
        self.shell.look()
        self.wake()


async def cancelled(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel tasks and wait for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
