"""The controller's process in a simulated world: the production shell without sockets and disks.

What a host does with an event loop is done here with virtual time: after anything that is heard the
shell does what is due, step by step, and it looks for silence when there may be some. The process
can be killed, or stopped for a while, between any two steps and between any two messages; what is
left of it then is the journal, its last line possibly torn.
"""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from holdfast.actions import AskNodes, EndJob, Entry, Fence, Outcome
from holdfast.controller import State
from holdfast.controller.invariants import check
from holdfast.detection.stopping import MARGIN_S
from holdfast.events import AnyEvent
from holdfast.messages import Fact, Hello, Leave, Report, Stop
from holdfast.shell.nodes import GOODBYE_S
from holdfast.shell.shell import Settings, Shell
from holdfast.simulation.agents import Agent
from holdfast.simulation.book import EPOCH, Book
from holdfast.simulation.duties import SimulatedDuty
from holdfast.simulation.nature import Nature
from holdfast.simulation.referees import RECONNECT_S, Referees
from holdfast.simulation.wires import Downward, SimulatedWire, Upward

REGISTER_S = 60.0  # as in the local driver
LOOK_S = 0.25  # between two looks for silence, as a host has them
STALL_MAX_S = 60.0


class Site(Protocol):
    """Where a controller runs."""

    def start_nodes(self, count: int) -> None:
        """Start this many agents."""

    def agent(self, node: str) -> Agent | None:
        """The agent of a node, dead or alive."""

    def living(self) -> Sequence[Agent]:
        """Agents whose process exists, oldest first."""

    def controller_is_up(self) -> None:
        """Agents may connect."""

    def controller_died(self, control: "Control") -> None:
        """This process is gone."""

    def job_ended(self, control: "Control", outcome: Outcome) -> None:
        """The order to end was carried out."""


NO_FATE: tuple[int, Callable[[], None]] = (-1, lambda: None)


class DiedError(Exception):
    """The process is killed here."""


class Control:
    """One life of the controller's process."""

    def __init__(
        self, nature: Nature, site: Site, book: Book, referees: Referees, offset_s: float
    ) -> None:
        self._nature, self._site, self._book, self._referees = nature, site, book, referees
        controller = book.replay()
        self.state = controller.state
        behind_s = self.state.now - (EPOCH + nature.now + offset_s)
        self._offset_s = EPOCH + offset_s + max(0.0, behind_s)
        self._timeout_s = nature.hardship.heartbeat_timeout_s
        settings = Settings(self._timeout_s, RECONNECT_S, term=book.seq + 1)
        engine = SimulatedEngine(nature, site, self)
        self.shell = Shell(controller, book, engine, settings, lambda: self.clock)
        self.shell.observe, self.shell.catch_up = self._observe, self._hear_all
        self.duties = {
            "watch": SimulatedDuty(nature, self),
            "supply": SimulatedDuty(nature, self),
            "look": SimulatedDuty(nature, self, self._forgive),
        }
        self.alive = True
        self.stalled = False
        self.awake_since = nature.now  # it hears and decides without a pause; inf: it does not
        self._backlog: list[Callable[[], object]] = []  # what came while it was stopped
        self._decided = 0  # orders of the facts that are decided together
        self._owed = 0  # steps until what was decided is done
        self._fate = NO_FATE  # with how many of them left, what happens
        self._sends_left = -1  # until it dies in the middle of a step; negative: it does not
        self._looks: list[float] = []  # when to look for silence
        self._deadline: float | None = None

    @property
    def clock(self) -> float:
        """What this process takes for the present."""
        return self._nature.now + self._offset_s

    # ── life ──

    def begin(self, first: AnyEvent, existing: Sequence[str]) -> None:
        """Take over the agents that exist, and hear the first fact."""
        self.look_in(RECONNECT_S)
        self.hear(lambda: self.shell.begin(first, existing))

    def crash(self) -> None:
        """Killed: nothing of this process is left but the journal."""
        if self.alive:
            self.alive = False
            self._referees.crashed(self.state, self._book.durable)
            self._site.controller_died(self)

    def close(self) -> None:
        """It has done its work."""
        self.alive = False

    def stall(self, for_s: float) -> None:
        """Stopped by SIGSTOP or starved; it goes on later and has missed nothing but time."""
        if self.alive and not self.stalled:
            self.stalled, self.awake_since = True, math.inf
            self._nature.after(for_s, self._go_on, for_s)

    def _go_on(self, late_s: float) -> None:
        self.stalled = False
        if not self.alive:
            return
        self.awake_since = self._nature.now
        self._forgive(late_s)
        for at in [t + late_s for t in self._looks]:
            self._nature.after(max(0.0, at - self._nature.now), self._look_if_due)
        self.falls_silent()
        self._look()  # before anything that was sent meanwhile is read
        backlog, self._backlog = self._backlog, []
        for what in backlog:
            self.hear(what)
        self._site.controller_is_up()

    def _forgive(self, late_s: float) -> None:
        """As a host does that notices how late it is."""
        if late_s > self._timeout_s / 4:
            self.shell.forgive(late_s)

    # ── what is heard ──

    def hear(self, what: Callable[[], object]) -> None:
        """This happens, or is found to have happened once the process goes on; then everything is
        done that is due, unless something comes between."""
        if self.stalled:
            self._backlog.append(what)
        if self.stalled or not self.alive:
            return
        try:
            what()
            while self.alive and not self.stalled and self.shell.step():
                self._stepped()
        except DiedError:
            self.crash()
        if self.alive and self.shell.outcome is not None and not self._referees.over:
            self._site.job_ended(self, self.shell.outcome)
        if self.alive and not self.stalled:
            self._plan_deadline()

    def put(self, *events: AnyEvent) -> None:
        """These facts were heard together."""
        self.hear(lambda: self.shell.put(*events))

    def died(self, node: str, how: str) -> None:
        """The engine says that a node's process has ended."""
        watch = self.duties["watch"]
        self.hear(lambda: watch.do(lambda: self.shell.nodes.died(node, how)))

    def connect(self, agent: Agent) -> SimulatedWire | None:
        """An agent says hello; the connection, if there is somebody."""
        if not self.alive or self.stalled:
            return None
        wire = SimulatedWire(self._nature, agent, self)
        self.hear(lambda: self._greet(wire, agent.hello()))
        return wire if self.alive else None  # hearing of it may have been the end of us

    def _greet(self, wire: SimulatedWire, hello: Hello) -> None:
        if not self.shell.hello(wire, hello):
            wire.close("")

    def receive(self, wire: SimulatedWire, messages: Sequence[Upward]) -> None:
        """Messages of an agent have arrived."""
        self.hear(lambda: self._read(wire, messages))

    def _read(self, wire: SimulatedWire, messages: Sequence[Upward]) -> None:
        if wire.left:
            return
        wire.heard()
        for message in messages:
            match message:
                case Report():
                    self.shell.report(message)
                case Fact():
                    self.shell.fact(wire.agent.node, message)
                case _:
                    self.shell.answered(wire.agent.node, message)

    def closed(self, wire: SimulatedWire) -> None:
        """A connection is gone that it has not closed."""
        self.hear(lambda: self.shell.closed(wire.agent.node, wire))

    def telemetry(self) -> None:
        """Everybody's newest reports are looked at."""
        if not self.stalled:
            self.hear(self._hear_all)

    def _hear_all(self) -> None:
        for agent in self._site.living():
            if self._hears(agent):
                self.shell.report(agent.look())

    def _hears(self, agent: Agent) -> bool:
        return agent.wire is not None and agent.wire.control is self and agent.wire.flows

    # ── time ──

    def falls_silent(self) -> None:
        """From now on something may not be heard."""
        self.look_in(self._timeout_s)

    def look_in(self, wait_s: float) -> None:
        """Look for silence after this time; in between there is nothing to see."""
        at = self._nature.now + wait_s
        if not any(at < planned <= at + LOOK_S for planned in self._looks):
            late_s = wait_s + LOOK_S * (0.01 + 0.99 * self._nature.dice.random())
            self._looks.append(self._nature.now + late_s)
            self._nature.after(late_s, self._look_if_due)

    def _look_if_due(self) -> None:
        if self.alive and not self.stalled:
            self._looks = [at for at in self._looks if at > self._nature.now]
            self._look()

    def _look(self) -> None:
        self.hear(lambda: self.duties["look"].do(self.shell.look))
        quiet = self.state.nodes.keys() - {a.node for a in self._site.living() if self._hears(a)}
        if quiet and not self._looks and self.alive:
            self.look_in(self._timeout_s / 2)

    def _plan_deadline(self) -> None:
        deadline = self.shell.next_deadline()
        if deadline is not None and deadline != self._deadline:
            self._nature.after(max(0.0, deadline - self.clock), self._deadline_passed, deadline)
        self._deadline = deadline

    def _deadline_passed(self, deadline: float) -> None:
        if deadline == self._deadline:
            self._deadline = None
            if not self.stalled:
                self.hear(self.shell.look)

    # ── what comes between ──

    def _observe(self, entry: Entry, state: State) -> None:
        check(state)
        self._decided += len(entry.actions)

    def _stepped(self) -> None:
        """A decision is one step, to make it durable another; then it takes effect, and each of its
        orders is one."""
        if self._owed:
            self._owed -= 1
        else:
            self._owed, self._decided = 2 + self._decided, 0
            self._draw_fate(self._owed)
        if self._sends_left >= 0:
            self.crash()
        elif self._owed == self._fate[0]:
            self._fate[1]()

    def _draw_fate(self, steps: int) -> None:
        nature, share = self._nature, self._nature.hardship.share
        self._fate = NO_FATE
        if nature.chance(share("crash_midway") * (1.0 if steps > 2 else 0.05)):
            left = nature.dice.randrange(steps + 1)
            self._fate = left, self._crash_midway if left < steps else self._crash_while_writing
        elif steps > 2 and nature.chance(share("stalls_midway")):
            left = nature.dice.randrange(steps)
            self._fate = left, lambda: self.stall(nature.between(0.5, STALL_MAX_S))

    def _crash_midway(self) -> None:
        """Now, or in the middle of what it does next."""
        if self._nature.dice.random() < 0.5:
            self._sends_left = self._nature.dice.randrange(1 + len(self.state.nodes))
        else:
            self.crash()

    def _crash_while_writing(self) -> None:
        self._book.tear(self._nature.dice)
        self.crash()

    def sends(self, wire: SimulatedWire, message: Downward) -> None:
        """It is about to send this. Raises `DiedError` if it does not come to that."""
        if self._sends_left == 0:
            raise DiedError
        self._sends_left -= 1
        self._referees.ordered(wire.agent.node, [message])
        if isinstance(message, Stop):
            self.look_in(message.grace_s + MARGIN_S)
        elif isinstance(message, Leave):
            self.look_in(GOODBYE_S)


class SimulatedEngine:
    """Nodes of a simulated world, as the shell orders them."""

    def __init__(self, nature: Nature, site: Site, control: Control) -> None:
        self._nature, self._site, self._control = nature, site, control

    def make(self, order: AskNodes) -> None:
        """Start so many agents."""
        self._control.duties["supply"].do(lambda: self._site.start_nodes(order.count))

    def remove(self, order: Fence, done: Callable[[Sequence[AnyEvent]], None]) -> None:
        """Kill everything of a node."""
        slow = self._nature.chance(self._nature.hardship.share("slow_fences"))
        wait_s = self._nature.about(2.0) if slow else 0.01
        self._nature.after(wait_s, self._removed, order.node, done)
        self._control.awake_since = math.inf

    def _removed(self, node: str, done: Callable[[Sequence[AnyEvent]], None]) -> None:
        agent = self._site.agent(node)
        if agent is not None:  # the kill signals were sent, whatever became of us since
            agent.die("")
        self._control.hear(lambda: self._done(done))

    def _done(self, done: Callable[[Sequence[AnyEvent]], None]) -> None:
        self._control.awake_since = self._nature.now
        done(())

    def leave(self, order: EndJob) -> Leave:
        """The job is over."""
        return Leave(reason=order.reason)

    def near(self, _node: str) -> bool:
        """All nodes go down with this machine."""
        return True

    def connections_changed(self) -> None:
        """Nobody waits for that."""

    def disk_full(self, _full: bool) -> None:
        """It never is."""

    def status(self) -> bytes:
        """Nobody asks."""
        return b""
