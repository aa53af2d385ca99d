"""What a driver is to agents and the command line: facts in, orders and answers out.

It joins the queue of facts, the connections and the bridge, and watches for silence. A driver adds
what only an engine can do: start nodes, make sure that lost ones are gone, end the job.
"""

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from typing import Protocol, assert_never

from holdfast.actions import AnyAction
from holdfast.controller import State
from holdfast.drivers.base import Clock, Queue, Receipt
from holdfast.drivers.bridge import Bridge
from holdfast.drivers.links import Links
from holdfast.events import AnyEvent, StopRequested
from holdfast.messages import (
    AskStatus,
    Done,
    Fact,
    Hello,
    Leave,
    Report,
    StatusReply,
    StopJob,
    ToAgent,
    ToClient,
)

TICK_S = 0.25


class Watcher(Protocol):
    """Who wants to know about connections, besides what they carry."""

    def disconnected(self, node: str) -> None:
        """An agent's connection broke."""


class Switchboard:
    """Everything between the controller and those who talk to it. `tick()` must run."""

    def __init__(
        self,
        state: State,
        timeout_s: float,
        token: str,
        status: Callable[[], bytes],
        watcher: Watcher | None = None,
    ) -> None:
        self.clock = Clock(state.now)
        self.queue: Queue = asyncio.Queue()
        self.links = Links(self, token)
        self.bridge = Bridge(state, timeout_s, self.clock.now())
        self._timeout_s = timeout_s
        self._status = status
        self._watcher = watcher
        self._expected: set[str] = set()
        self.farewell: Leave | None = None  # said to everybody once the job is over
        self._stops_asked = 0

    # ── for the driver ──

    def put(self, *events: AnyEvent) -> None:
        """Facts for the controller."""
        for event in events:
            self.queue.put_nowait((event, None))

    def expect(self, node: str, within_s: float) -> None:
        """A node should connect within this time, or is lost."""
        self.bridge.expect(node, self.clock.now() + within_s)

    def expect_once(self, node: str, within_s: float) -> None:
        """The same, unless it was expected before."""
        if node not in self._expected:
            self._expected.add(node)
            self.expect(node, within_s)

    def died(self, node: str, how: str) -> None:
        """A node is known to be gone. Facts it sent before are already in the queue."""
        self.put(*self.bridge.died(node, how, self.clock.now()))

    async def send(self, action: AnyAction) -> list[AnyEvent]:
        """Send the messages that an order means; the facts that follow once it has effect."""
        messages, events = self.bridge.carry_out(action, self.clock.now())
        for node, message in messages:
            await self.links.send(node, message)
        return events

    async def settled(self, receipts: Sequence[Receipt]) -> None:
        """Tell agents which of their facts are safe."""
        newest = {receipt.node: receipt.seq for receipt in receipts}
        for node, seq in newest.items():
            await self.links.acknowledge(node, seq)

    async def tick(self) -> None:
        """Look for silent nodes. If we ourselves were stopped for a while, nobody is to blame."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            now, late_s = self.clock.now(), time.monotonic() - last - TICK_S
            last = time.monotonic()
            if late_s > self._timeout_s / 4:
                self.bridge.forgive(now, late_s)
            self.put(*self.bridge.tick(now))

    def stop_at(self, *signals: signal.Signals) -> None:
        """Take these signals for the wish to stop."""
        loop = asyncio.get_running_loop()
        for number in signals:
            name = "Ctrl-C" if number is signal.SIGINT else number.name
            loop.add_signal_handler(number, self.asked_to_stop, name)

    def asked_to_stop(self, by: str) -> None:
        """First cleanly, then at once."""
        self._stops_asked += 1
        self.put_stop(by, now=self._stops_asked > 1)

    def put_stop(self, by: str, *, now: bool) -> None:
        """Somebody asks for the end of the job."""
        self.put(StopRequested(by=by, now=now))

    # ── what arrives ──

    def hello(self, hello: Hello) -> bool:
        """An agent (re)connected."""
        events = self.bridge.hello(hello, self.clock.now())
        self._expected.add(hello.node)
        self.put(*(events or []))
        return events is not None

    def disconnected(self, node: str) -> None:
        """A connection broke."""
        if self._watcher is not None:
            self._watcher.disconnected(node)

    def orders_for(self, node: str) -> list[ToAgent]:
        """What a node that just (re)connected has to know."""
        return self.bridge.orders_for(node) if self.farewell is None else [self.farewell]

    def fact(self, node: str, fact: Fact) -> None:
        """A fact not heard before."""
        self.put(*self.bridge.fact(node, fact.event, self.clock.now()))
        self.queue.put_nowait((None, Receipt(node, fact.seq)))

    def report(self, report: Report) -> None:
        """Telemetry."""
        self.put(*self.bridge.report(report, self.clock.now()))

    def client(self, message: StopJob | AskStatus) -> ToClient:
        """A request of the command line."""
        match message:
            case StopJob():
                self.put_stop(message.by, now=message.now)
                return Done()
            case AskStatus():
                return StatusReply(status=self._status())
            case _:
                assert_never(message)
