"""The controller's process in a simulated world: production code, without sockets and disks.

It does what a driver does: facts wait in a queue, are decided upon, journaled and synced together,
and only then are orders carried out, one after the other. Controller, bridge, invariants and the
lines of the journal are the production ones. It can be killed between any two of these effects;
what is left then is the journal, its last line possibly torn.
"""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import msgspec

from holdfast import journal, lines
from holdfast.actions import AnyAction, AskNodes, EndJob, Entry, Fence, StopAttempt, Survey
from holdfast.controller import Controller, Limits, State
from holdfast.controller.invariants import check
from holdfast.detection.stopping import MARGIN_S
from holdfast.drivers.bridge import Bridge
from holdfast.drivers.exits import Exits
from holdfast.events import AnyEvent, DeadlinePassed
from holdfast.goodput import Bookkeeper
from holdfast.messages import PROTOCOL, Ack, Fact, Report, ToAgent, Welcome
from holdfast.simulation.agents import Agent
from holdfast.simulation.nature import Nature
from holdfast.simulation.referees import Referees

EPOCH = 1_700_000_000.0  # the wall clock when a world begins
REGISTER_S = 60.0  # as in the local driver
RECONNECT_S = 10.0
TICK_S = 0.25
STALL_MAX_S = 60.0
LEAVE_S = 10.0

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Entry)


class Book:
    """The journal as it lies on disk, and what can be said from it alone."""

    def __init__(self, limits: Limits, referees: Referees, seed: int) -> None:
        header = journal.Header(
            journal=journal.VERSION, holdfast="simulation", job={"seed": seed}, created_at=EPOCH
        )
        self.lines = bytearray(_encoder.encode(header))
        self._checksum = lines.seal(self.lines, journal.BEGIN.checksum)
        self.books = Bookkeeper(EPOCH)
        self.seq = 0
        self._limits = limits
        self._referees = referees
        self._pending: list[Entry] = []
        self._header_bytes = len(self.lines)
        self._saved: tuple[int, int, bytes] | None = None  # seq, offset, state

    def append(self, entry: Entry) -> None:
        """Decided, not durable yet."""
        self._pending.append(entry)

    def sync(self) -> None:
        """Make everything appended durable."""
        for entry in self._pending:
            line = bytearray(_encoder.encode(entry))
            self._checksum = lines.seal(line, self._checksum)
            self.lines += line
            self.seq = entry.seq
            self.books.add(entry)
            self._referees.journaled(entry)
        self._pending.clear()

    def save(self, state: State) -> None:
        """Keep a state snapshot, so that the next replay is short."""
        if self._pending:
            return
        self._saved = (self.seq, len(self.lines), _encoder.encode(state))

    def tear(self, whole: int, torn: float) -> None:
        """A crash while writing: `whole` lines of the last batch arrived, and part of the next."""
        lost = self._pending[whole:]
        del self._pending[whole:]
        self.sync()
        if lost:
            line = bytearray(_encoder.encode(lost[0]))
            lines.seal(line, self._checksum)
            self.lines += line[: int(len(line) * torn)]

    def whole(self) -> Controller:
        """A controller that has replayed the journal from its first line."""
        return replay(self.lines[self._header_bytes :], self._limits, None, 0, self._referees)

    def replay(self) -> Controller:
        """What a new controller process does: cut off a torn line, repeat the rest."""
        del self.lines[self.lines.rfind(b"\n") + 1 :]
        self._pending.clear()
        seq, offset, state = self._saved or (0, self._header_bytes, None)
        return replay(self.lines[offset:], self._limits, state, seq, self._referees)


def replay(
    content: bytes | bytearray, limits: Limits, state: bytes | None, seq: int, referees: Referees
) -> Controller:
    """A controller that has heard the facts of these lines, as `replay.replay` makes it."""
    known = msgspec.json.decode(state, type=State) if state is not None else None
    controller = Controller(limits, known)
    for line in content.splitlines():
        entry = _decoder.decode(line)
        seq += 1
        referees.replayed(entry, seq, controller.handle(entry.event, entry.at))
    return controller


class Engine(Protocol):
    """What supplies nodes, and the wire to them."""

    def start_nodes(self, count: int) -> None:
        """Start this many agents."""

    def agent(self, node: str) -> Agent | None:
        """The agent of a node, dead or alive."""

    def living(self) -> Sequence[Agent]:
        """Agents whose process exists, oldest first."""

    def new_connection(self) -> int:
        """A number that no connection had."""

    def down(self, agent: Agent, connection: int, messages: Sequence[ToAgent]) -> None:
        """Send to an agent."""

    def controller_is_up(self) -> None:
        """Agents may connect."""

    def controller_died(self, control: "Control") -> None:
        """This process is gone."""


class Control:
    """One life of the controller's process."""

    def __init__(
        self, nature: Nature, engine: Engine, book: Book, referees: Referees, offset_s: float
    ) -> None:
        self._nature, self._engine, self._book, self._referees = nature, engine, book, referees
        self.controller = book.replay()
        self.state = self.controller.state
        behind_s = self.state.now - (EPOCH + nature.now + offset_s)
        self._offset_s = EPOCH + offset_s + max(0.0, behind_s)
        self.bridge = Bridge(self.state, nature.hardship.heartbeat_timeout_s, self.clock)
        self._exits: Exits[tuple[str, int]] = Exits(self.state)
        self._due: float | None = None  # when a look at what waits there is planned
        self.alive = True
        self.stalled = False
        self.connections: dict[str, int] = {}
        self._seq = book.seq
        self._heard: dict[str, int] = {}
        self._acked: dict[str, int] = {}
        self._queue: list[tuple[AnyEvent | None, tuple[str, int] | None]] = []
        self._orders: deque[AnyAction] = deque()
        self._doom = -1  # orders until this process dies; negative: it does not
        self._busy = False
        self._deadline: float | None = None
        self._ticks: list[float] = []
        self._backlog: list[tuple[Agent, int, Sequence[Fact | Report]]] = []

    @property
    def clock(self) -> float:
        """What this process takes for the present."""
        return self._nature.now + self._offset_s

    # ── life ──

    def begin(self, first: AnyEvent) -> None:
        """Take over the agents that exist, and hear the first fact."""
        for agent in self._engine.living():
            self.expect(agent.node, RECONNECT_S)
        self.put(first)
        if self.alive:
            self._book.save(self.state)

    def crash(self) -> None:
        """Killed: nothing of this process is left but the journal."""
        if self.alive:
            self.alive = False
            self._referees.crashed(self.state, self._book.seq == self._seq)
            self._engine.controller_died(self)

    def stall(self, for_s: float) -> None:
        """Stopped by SIGSTOP or starved; it goes on later and has missed nothing but time."""
        if self.alive and not self.stalled:
            self.stalled = True
            self._nature.after(for_s, self._go_on, for_s)

    def _go_on(self, late_s: float) -> None:
        self.stalled = False
        if not self.alive:
            return
        self.bridge.forgive(self.clock, late_s)
        self.put(*self.bridge.tick(self.clock))  # before anything that was sent meanwhile is read
        for at in [t + late_s for t in self._ticks]:
            self._nature.after(max(0.0, at - self._nature.now), self._tick)
        self.look_in(self._nature.hardship.heartbeat_timeout_s)
        self._look()
        backlog, self._backlog = self._backlog, []
        for agent, connection, messages in backlog:
            self.receive(agent, connection, messages)
        self._engine.controller_is_up()
        self._plan_deadline()

    # ── facts ──

    def put(self, *events: AnyEvent) -> None:
        """These facts were heard together."""
        self._queue.extend((event, None) for event in events)
        self._work()

    def connect(self, agent: Agent) -> int:
        """An agent says hello; the number of its connection."""
        if not self.alive or self.stalled:
            return 0
        connection, node = self._engine.new_connection(), agent.node
        events = self.bridge.hello(agent.hello(), self.clock)
        self._queue.extend((event, None) for event in events or [])
        known = events is not None
        welcome = Welcome(protocol=PROTOCOL, acked=self._acked.get(node, 0), known=known)
        messages: list[ToAgent] = [welcome]
        if known:
            self.connections[node] = connection
            messages += self.bridge.orders_for(node)
        self._referees.ordered(node, messages)
        self._engine.down(agent, connection, messages)
        self._work()
        return connection if self.alive else 0  # hearing of it may have been the end of us

    def receive(self, agent: Agent, connection: int, messages: Sequence[Fact | Report]) -> None:
        """Messages of an agent have arrived."""
        if not self.alive or self.connections.get(agent.node) != connection:
            return
        if self.stalled:
            self._backlog.append((agent, connection, messages))
            return
        for message in messages:
            if isinstance(message, Report):
                events = self.bridge.report(message, self.clock)
                self._queue.extend((event, None) for event in events)
            else:
                self._fact(agent.node, message)
        self._work()

    def _fact(self, node: str, fact: Fact) -> None:
        if fact.seq <= self._heard.get(node, 0):
            if fact.seq <= self._acked.get(node, 0):
                self._send(node, [Ack(seq=fact.seq)])
            return
        self._heard[node] = fact.seq
        events = self.bridge.fact(node, fact.event, self.clock)
        self._queue.extend((event, None) for event in events)
        self._queue.append((None, (node, fact.seq)))

    def died(self, node: str, how: str) -> None:
        """The engine says that a node's process has ended."""
        if self.alive:
            self.put(*self.bridge.died(node, how, self.clock))

    def pulse(self, agent: Agent) -> None:
        """A sign of life from this agent."""
        if self.alive and not self.stalled:
            self.bridge.report(agent.pulse, self.clock)

    def telemetry(self) -> None:
        """Everybody's newest reports are looked at."""
        if not self.alive or self.stalled:
            return
        self._hear_all()
        self._work()

    def _hear_all(self) -> None:
        for agent in self._engine.living():
            if self._hears(agent):
                events = self.bridge.report(agent.look(), self.clock)
                self._queue.extend((event, None) for event in events)

    def _hears(self, agent: Agent) -> bool:
        return agent.flows and self.connections.get(agent.node) == agent.connection

    # ── silence ──

    def expect(self, node: str, within_s: float) -> None:
        """This node is to say hello within this time."""
        self.bridge.expect(node, self.clock + within_s)
        self.look_in(within_s)

    def look_in(self, wait_s: float) -> None:
        """Look for silent nodes after this time; in between there is nothing to see."""
        late_s = wait_s + TICK_S * (0.01 + self._nature.dice.random())
        self._ticks.append(self._nature.now + late_s)
        self._nature.after(late_s, self._tick)

    def _tick(self) -> None:
        if self.alive and not self.stalled:
            self._ticks = [t for t in self._ticks if t > self._nature.now]
            self._look()

    def _look(self) -> None:
        heard = [agent for agent in self._engine.living() if self._hears(agent)]
        for agent in heard:
            self.bridge.report(agent.pulse, self.clock)
        self.put(*self.bridge.tick(self.clock))
        quiet = self.state.nodes.keys() - {agent.node for agent in heard}
        if quiet and not self._ticks and self.alive:
            self.look_in(self._nature.hardship.heartbeat_timeout_s / 2)

    # ── decisions ──

    def _work(self) -> None:
        if self._busy or self.stalled:
            return
        self._busy = True
        while self._queue and self.alive:
            batch, self._queue = self._queue, []
            if not self._decide(batch):
                return
            self._settle(self._exits.settled())
            if not self._perform():
                return
        self._busy = False
        self._plan_deadline()

    def _decide(self, heard: Sequence[tuple[AnyEvent | None, tuple[str, int] | None]]) -> bool:
        """Handle and journal these facts; False if this process did not live to see the end."""
        before = self._seq
        for fact, receipt in heard:
            for event in self._exits.hear(fact, receipt, max(self.clock, self.state.now)):
                self._handle(event)
        count = self._seq - before
        risk = self._nature.hardship.share("crash_midway") * (1.0 if self._orders else 0.05)
        if count and self._nature.chance(risk):
            dice = self._nature.dice
            self._doom = dice.randrange(len(self._orders) + 2) - 1
            if self._doom < 0:  # before everything is on the disk
                self._orders.clear()
                self._book.tear(dice.randrange(count), dice.random())
                self.crash()
                return False
        self._book.sync()
        if self._doom == 0:
            self.crash()
        elif self._orders and self._nature.chance(self._nature.hardship.share("stalls_midway")):
            self.stall(self._nature.between(0.5, STALL_MAX_S))
        return self.alive

    def _handle(self, event: AnyEvent) -> None:
        at = max(self.clock, self.state.now)
        actions = self.controller.handle(event, at)
        check(self.state)
        self._seq += 1
        self._book.append(Entry(seq=self._seq, at=at, event=event, actions=tuple(actions)))
        self._orders.extend(actions)

    def _look_at_exits(self) -> None:
        self._due = None
        if self.alive:
            self._queue.append((None, None))
            self._work()

    def _settle(self, receipts: Sequence[tuple[str, int]]) -> None:
        slow = self._nature.hardship.share("slow_acks")
        for node, seq in receipts:
            self._acked[node] = max(seq, self._acked.get(node, 0))
            agent = self._engine.agent(node)
            if self._nature.chance(slow):
                self._send(node, [Ack(seq=seq)])
            elif agent is not None and self._hears_us(agent):
                agent.forget(seq)

    def _hears_us(self, agent: Agent) -> bool:
        connection = self.connections.get(agent.node)
        return agent.alive and not agent.frozen and agent.connection == connection

    def _perform(self) -> bool:
        """Carry out what was decided; False if that waits for something, or was cut short."""
        while self._orders and self.alive:
            if self._doom == 0:
                self.crash()
                return False
            self._doom -= 1
            action = self._orders.popleft()
            if isinstance(action, Survey):  # reports come all the time
                self._hear_all()
            messages, events = self.bridge.carry_out(action, self.clock)
            for node, message in messages:
                self._send(node, [message])
            match action:
                case AskNodes():
                    self._engine.start_nodes(action.count)
                case Fence():
                    return self._fence(action.node, events)
                case EndJob():
                    self._end(action)
                    return False
                case StopAttempt():
                    self.look_in(action.grace_s + MARGIN_S)
                case _:
                    pass
            self._queue.extend((event, None) for event in events)
        self._doom = -1
        return self.alive

    def _fence(self, node: str, events: Sequence[AnyEvent]) -> bool:
        """Kill everything of the node; nothing else is done meanwhile."""
        slow = self._nature.chance(self._nature.hardship.share("slow_fences"))
        wait_s = self._nature.about(2.0) if slow else 0.01
        self._nature.after(wait_s, self._fenced, node, events)
        return False

    def _fenced(self, node: str, events: Sequence[AnyEvent]) -> None:
        agent = self._engine.agent(node)
        if agent is not None:  # the kill signals were sent, whatever became of us since
            agent.die("")
        if not self.alive:
            return
        self._queue.extend((event, None) for event in events)
        if self._perform():
            self._busy = False
            self._work()
            self._plan_deadline()

    def _end(self, action: EndJob) -> None:
        self.alive = False
        for agent in self._engine.living():
            agent.end(0.0)
            self._nature.after(LEAVE_S, agent.die, "the job is over")
        self._referees.ended(action.outcome)

    def _send(self, node: str, messages: Sequence[ToAgent]) -> None:
        agent, connection = self._engine.agent(node), self.connections.get(node)
        if agent is not None and connection is not None:
            self._referees.ordered(node, messages)
            self._engine.down(agent, connection, messages)

    # ── deadlines ──

    def _plan_deadline(self) -> None:
        due = self._exits.due
        if due is not None and self._due is None:
            self._due = due
            self._nature.after(max(0.0, due - self.clock), self._look_at_exits)
        deadline = self.controller.next_deadline()
        if deadline is not None and deadline != self._deadline:
            self._nature.after(max(0.0, deadline - self.clock), self._deadline_passed, deadline)
        self._deadline = deadline

    def _deadline_passed(self, deadline: float) -> None:
        current = self.alive and deadline == self.controller.next_deadline()
        self._deadline = None
        if current and not self._queue and not self._busy and not self.stalled:
            self.put(DeadlinePassed())
        elif current and not self.stalled:
            self._nature.after(0.05, self._deadline_passed, deadline)
