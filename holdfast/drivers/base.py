"""What every driver has in common: the loop between facts and orders, and the clock.

`drive` takes facts from a queue, hands them to the controller, writes facts and decisions to the
journal, and only then has the orders carried out. Facts that wait together are written together.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from holdfast.actions import AnyAction, EndJob, Entry, Outcome
from holdfast.controller import Controller, State
from holdfast.drivers.exits import Exits
from holdfast.events import AnyEvent, DeadlinePassed
from holdfast.journal import Journal, JournalFullError

FULL_DISK_RETRY_S = 1.0
BATCH = 1_000  # facts written together at most

Observer = Callable[[Entry, State], None]


class Receipt(NamedTuple):
    """Names a fact to its sender, who keeps it until it is durable here."""

    node: str
    seq: int


Heard = tuple[AnyEvent | None, Receipt | None]  # a receipt without an event keeps its place
Queue = asyncio.Queue[Heard]


class Clock:
    """Seconds since the epoch that never step back: wall time once, monotonic from there.

    `not_before` is the last time an earlier process saw: wall time that was set back meanwhile must
    not make waiting longer.
    """

    def __init__(self, not_before: float = 0.0) -> None:
        self._offset = max(time.time(), not_before) - time.monotonic()

    def now(self) -> float:
        """The present."""
        return time.monotonic() + self._offset

    def at(self, monotonic: float) -> float:
        """A time of `time.monotonic()` on this clock."""
        return monotonic + self._offset


class Driver(Protocol):
    """What `drive` needs from a driver."""

    async def perform(self, action: AnyAction) -> None:
        """Carry out an order. Idempotent; results come back as facts."""

    async def settled(self, receipts: Sequence[Receipt]) -> None:
        """These facts are durable: their senders may be told."""

    def disk_full(self, full: bool) -> None:
        """The journal cannot be written (again and again), or can be once more."""


async def drive(
    controller: Controller,
    journal: Journal,
    driver: Driver,
    queue: Queue,
    clock: Clock,
    observe: Observer,
) -> Outcome:
    """Run one job to its end and return how it ended."""
    exits: Exits[Receipt] = Exits(controller.state)
    while True:
        decided = [
            _decide(controller, journal, event, clock, observe)
            for fact, receipt in await _next_events(controller, exits, queue, clock)
            for event in exits.hear(fact, receipt, clock.now())
        ]
        await _sync(journal, driver)
        await driver.settled(exits.settled())
        journal.save(controller.state)
        for action in (a for actions in decided for a in actions):
            await driver.perform(action)
            if isinstance(action, EndJob):
                return action.outcome


async def _next_events(
    controller: Controller, exits: Exits[Receipt], queue: Queue, clock: Clock
) -> list[Heard]:
    deadline = controller.next_deadline()
    until = min((at for at in (deadline, exits.due) if at is not None), default=None)
    timeout = None if until is None else max(0.0, until - clock.now())
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout):  # not wait_for: in 3.11 it may swallow a cancellation
            events = [await queue.get()]
        while len(events) < BATCH and not queue.empty():
            events.append(queue.get_nowait())
        return events
    passed = deadline is not None and deadline == until
    return [(DeadlinePassed() if passed else None, None)]


def _decide(
    controller: Controller, journal: Journal, event: AnyEvent, clock: Clock, observe: Observer
) -> Sequence[AnyAction]:
    at = max(clock.now(), controller.state.now)
    actions = controller.handle(event, at)
    entry = Entry(seq=journal.seq + 1, at=at, event=event, actions=tuple(actions))
    journal.append(entry)
    observe(entry, controller.state)
    return actions


async def _sync(journal: Journal, driver: Driver) -> None:
    """No order takes effect while the disk is full; workers train on meanwhile."""
    full = False
    while True:
        try:
            journal.sync()
        except JournalFullError:
            full = True
            driver.disk_full(True)
            await asyncio.sleep(FULL_DISK_RETRY_S)
        else:
            if full:
                driver.disk_full(False)
            return
