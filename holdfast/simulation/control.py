"""The controller's process in a simulated world: the production shell without sockets and disks.

What a host does with an event loop is done here with virtual time: after anything that is heard the
shell does what is due, step by step, and it looks for silence when there may be some. The process
can be killed, or stopped for a while, between any two steps and between any two messages; what is
left of it then is the journal, its last line possibly torn.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from holdfast.actions import AskNodes, EndJob, Entry, Fence, Outcome
from holdfast.controller import State
from holdfast.controller.invariants import check
from holdfast.detection.stopping import MARGIN_S
from holdfast.events import AnyEvent, Beginning, Store, StragglersFound
from holdfast.messages import Fact, Hello, Leave, Report, Start, Stop
from holdfast.shell.knocking import AWAY, LOOK, Answered
from holdfast.shell.nodes import GOODBYE_S
from holdfast.shell.preparation import Tried
from holdfast.shell.shell import Settings, Shell
from holdfast.shell.straggler_sampling import EVERY_S, SOON
from holdfast.simulation.agents import SimulatedAgent
from holdfast.simulation.book import EPOCH, SimulatedJournal
from holdfast.simulation.duties import SimulatedDuty
from holdfast.simulation.environment import Environment
from holdfast.simulation.keeping import grace_of
from holdfast.simulation.lease import SimulatedLease
from holdfast.simulation.referees import Referees
from holdfast.simulation.wires import Downward, SimulatedWire, Upward

REGISTER_S = 60.0  # as in the local driver
RECONNECT_S = 10.0
RECONNECT_IN_CLUSTER_S = 15.0
LATE_S = 1.0  # so late a look blames nobody, as in a host
LOOK_S = 0.25  # between two looks for silence, as a host has them
STALL_MAX_S = 60.0
RETRY_S = 1.0
KNOCK_S = 0.002  # for the answer of a kernel


class Site(Protocol):
    """Where a controller runs."""

    def start_nodes(self, count: int) -> None:
        """Start this many agents."""

    def remove(self, node: str) -> None:
        """Kill everything of a node."""

    def existing(self) -> Sequence[str]:
        """Nodes that the engine takes for alive."""

    def living(self) -> Sequence[SimulatedAgent]:
        """Agents whose process exists, oldest first."""

    def controller_is_up(self) -> None:
        """Agents may connect."""

    def cut_off(self, for_s: float) -> None:
        """For some time the controller cannot reach agents."""

    def controller_sees(self, control: "Control") -> None:
        """It reads from the engine what it has missed."""

    def controller_died(self, control: "Control", *, torn: bool) -> None:
        """This process is gone; `torn`: with its machine, which nobody is told."""

    def handed_over(self, control: "Control") -> None:
        """It has given the lease back, for one that reaches the nodes."""

    def returned(self) -> None:
        """No other has taken it: the same one begins again, where it hears of nobody."""

    def stands(self) -> bool:
        """Whether workers wait for one that does not move."""

    def differ(self) -> bool:
        """Whether workers have found out that they do not have the same."""

    def slows(self, state: State) -> bool:
        """Whether it is worth asking when workers enter their collectives."""

    def stalls_since(self) -> float:
        """Since when the network of workers carries nothing; -inf: it works."""

    def job_ended(self, control: "Control", outcome: Outcome) -> None:
        """The order to end was carried out."""


NO_FATE: tuple[int, Callable[[], None]] = (-1, lambda: None)


class Post(NamedTuple):
    """Where a controller runs, and by what right."""

    offset_s: float  # of its clock
    term: int
    machine: str = ""  # that of this node; empty: of no node
    lease: SimulatedLease | None = None  # in a cluster, where the disk goes with the machine
    deaf_until: float = -math.inf  # no agent on another machine reaches it there


class DiedError(Exception):
    """The process is killed here."""


class Control:
    """One life of the controller's process."""

    def __init__(
        self, env: Environment, site: Site, book: SimulatedJournal, referees: Referees, post: Post
    ) -> None:
        self._env, self._site, self._book, self._referees = env, site, book, referees
        self.machine, self.lease = post.machine, post.lease
        controller = book.replay()
        self.state = controller.state
        behind_s = self.state.now - (EPOCH + env.now + post.offset_s)
        self._offset_s = EPOCH + post.offset_s + max(0.0, behind_s)
        self._timeout_s = env.hardship.heartbeat_timeout_s
        reconnect_s = RECONNECT_S if self.lease is None else RECONNECT_IN_CLUSTER_S
        settings = Settings(self._timeout_s, reconnect_s, post.term)
        engine = SimulatedEngine(env, site, self)
        kept = book if self.lease is not None else None
        self.shell = Shell(controller, book, engine, settings, lambda: self.clock, kept)
        self.shell.decisions.observe, self.shell.catch_up = self._observe, self._hear_all
        self.shell.doubt = self._doubts
        if self.lease is not None:
            self.shell.preparation.try_image = self._try_image
        self.shell.hangs.may_stand = self._may_stand
        if "blackouts" in env.hardship.rates:
            self.shell.nodes.knocking.knock = self._knock
        self.shell.can_hand_over = lambda: self.lease is not None and not self._doubts()
        self.duties = {
            "watch": SimulatedDuty(env, self),
            "supply": SimulatedDuty(env, self),
            "look": SimulatedDuty(env, self, self._forgive),
        }
        self.alive = True
        self.stalled = False
        self.deaf_until = post.deaf_until
        self.reach = env.now >= self.deaf_until  # agents
        self.api = self.listens = True  # it reaches the API; it takes in agents
        self.awake_since = env.now  # it hears and decides without a pause; inf: it does not
        self._backlog: list[Callable[[], object]] = []  # what came while it was stopped
        self._decided: int | None = None  # orders of the facts that were just decided together
        self._owed = 0  # steps until what was decided is done
        self._fate = NO_FATE  # with how many of them left, what happens
        self._sends_left = -1  # until it dies in the middle of a step; negative: it does not
        self._waits_since: float | None = None  # with what was decided
        self._read_at: dict[str, float] = {}  # node → when its progress was last read
        self._kept: dict[str, int] = {}  # node → newest line that it holds
        self._looks: list[float] = []  # when to look for silence
        self._deadline: float | None = None

    @property
    def clock(self) -> float:
        """What this process takes for the present."""
        return self._env.now + self._offset_s

    # ── life ──

    def begin(self, first: Beginning, existing: Sequence[str]) -> None:
        """Take over the agents that exist, and hear the first fact."""
        reconnect_s = RECONNECT_S if self.lease is None else RECONNECT_IN_CLUSTER_S
        self.look_in(max(reconnect_s, self._timeout_s))
        if not self.reach:
            self._env.after(self.deaf_until - self._env.now, self._regain)
        self.hear(lambda: self.shell.begin(first, existing))

    def crash(self, *, torn: bool = False) -> None:
        """Killed: nothing of this process is left but the journal. `torn`: with its machine."""
        if self.alive:
            self.alive = False
            self._site.controller_died(self, torn=torn)

    def close(self) -> None:
        """It has done its work."""
        self.alive = False

    def stall(self, for_s: float) -> None:
        """Stopped by SIGSTOP or starved; it goes on later and has missed nothing but time."""
        if self.alive and not self.stalled:
            self.stalled, self.awake_since, self._waits_since = True, math.inf, None
            self._env.after(for_s, self._go_on, for_s)
            for wire in self._wires():
                wire.is_asked()
            if self.lease is not None:
                self.lease.stops(self)

    def _go_on(self, late_s: float) -> None:
        self.stalled = False
        if not self.alive:
            return
        self.awake_since = self._env.now
        self._referees.heard(self._env.now - late_s)
        self._forgive(late_s)
        for at in [t + late_s for t in self._looks]:
            self._env.after(max(0.0, at - self._env.now), self._look_if_due)
        self.falls_silent()
        self._look()  # before anything that was sent meanwhile is read
        backlog, self._backlog = self._backlog, []
        for what in backlog:
            self.hear(what)
        self._site.controller_is_up()
        if self.lease is not None and not self.lease.is_sure(self):
            self.doubt()
        if self.lease is not None and not self.lease.is_safe(self):
            self.stand_aside()
        self._renew_soon()

    def _forgive(self, late_s: float) -> None:
        """As a host does that notices how late it is."""
        if late_s > min(LATE_S, self._timeout_s / 4):
            self.shell.forgive(late_s)

    # ── the lease ──

    def lose(self, *, api: bool, agents: bool, for_s: float) -> None:
        """For some time it can reach neither the API nor agents, or one of them."""
        if not self.alive or not (self.api and self.reach):
            return
        self._env.after(for_s, self._regain)
        self.api, self.reach = not api, not agents
        if api and self.lease is not None:
            self.lease.stops(self)
        if agents:
            self.deaf_until = self._env.now + for_s
            self._site.cut_off(for_s)
            for wire in self._wires():
                if wire.agent.node != self.machine:
                    wire.stall(up=True, down=True)

    def _regain(self) -> None:
        self.api = self.reach = True
        if self.alive:
            for wire in self._wires():
                wire.flow()
            self._site.controller_is_up()
            self._site.controller_sees(self)
            self._renew_soon()

    def _renew_soon(self) -> None:
        if self.lease is not None:
            self._env.after(self._env.dice.random(), self._renew, self.lease)

    def _renew(self, lease: SimulatedLease) -> None:
        if not self.alive or self.stalled or not self.api:
            return
        if not lease.renew(self):
            self._end("another controller has taken over")
        elif self.shell.paused:
            self.shell.paused, self.awake_since = "", self._env.now
            self.listens = True
            self._site.controller_is_up()
            self.hear(lambda: None)

    def _doubts(self) -> str:
        sure = self.lease is None or self.lease.is_sure(self)
        return "" if sure else "the lease cannot be renewed"

    def doubt(self) -> None:
        """It may lose the lease soon."""
        if self.alive and not self.stalled:
            self.shell.paused, self.awake_since = "the lease cannot be renewed", math.inf

    def stand_aside(self) -> None:
        """Somebody else may have the lease: agents are let go, to find whoever has it."""
        if self.alive and not self.stalled:
            self.listens = False
            for wire in self._wires():
                wire.abort("the controller stands aside")

    def _end(self, why: str) -> None:
        """For another one to go on."""
        self.alive = False
        for wire in self._wires():
            wire.abort(why)

    def _wires(self) -> list[SimulatedWire]:
        found = (agent.wire for agent in self._site.living())
        return [wire for wire in found if wire is not None and wire.control is self]

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
        if self.alive and self.shell.replaced_by:
            self._end("another controller has taken over")
        if self.alive and self.shell.cut_off:
            self._end("it hears of no node")
            self._site.handed_over(self)
        if self.alive and not self.stalled:
            self._plan_deadline()
            self._tell_of_waiting()

    def _tell_of_waiting(self) -> None:
        """What was decided is not done yet, and nothing but a copy of the journal is missing."""
        done = not self._owed and (self.lease is None or self._is_kept())
        if done or self.awake_since == math.inf or self._doubts():
            self._waits_since = None
            return
        now = self._env.now
        self._waits_since = now if self._waits_since is None else self._waits_since
        self._referees.waits(now - self._waits_since)
        self.look_in(LOOK_S)

    def put(self, *events: AnyEvent) -> None:
        """These facts were heard together."""
        self.hear(lambda: self.shell.put(*events))

    def _try_image(self, _image: str, tried: Tried) -> None:
        """It runs, whatever becomes of nodes with it."""
        tried("", self.shell.nodes.connected, self.clock)

    def died(self, node: str, how: str) -> None:
        """The engine says that a node's process has ended."""
        watch = self.duties["watch"]
        self.hear(lambda: watch.do(lambda: self.shell.nodes.died(node, how)))

    def _greet_late(self, wire: SimulatedWire, agent: SimulatedAgent) -> None:
        if agent.wire is wire:
            self._greet(wire, agent.hello())

    def connect(self, agent: SimulatedAgent) -> SimulatedWire | None:
        """An agent says hello; the connection, if there is somebody."""
        if not self.alive or not self.listens:
            return None
        wire = SimulatedWire(self._env, agent, self)
        if self.stalled:
            self._backlog.append(lambda: self._greet_late(wire, agent))
        else:
            self.hear(lambda: self._greet(wire, agent.hello()))
        if self.stalled:
            wire.is_asked()
        return wire if self.alive else None  # hearing of it may have been the end of us

    def _greet(self, wire: SimulatedWire, hello: Hello) -> None:
        if not self.shell.hello(wire, hello):
            wire.close("")

    def receive(self, wire: SimulatedWire, messages: Sequence[Upward], sent_at: float) -> None:
        """Messages of an agent have arrived."""
        self.hear(lambda: self._read(wire, messages, sent_at))

    def _read(self, wire: SimulatedWire, messages: Sequence[Upward], sent_at: float) -> None:
        if wire.left:
            return
        wire.heard()
        self._referees.heard(sent_at)
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
        if "blackouts" in self._env.hardship.rates:
            self.look_in(AWAY * self._timeout_s)

    def _knock(self, stores: Sequence[Store], within_s: float, answered: Answered) -> None:
        """Kernels answer, whatever their processes do; that of a dead machine does not."""
        doors = self.shell.nodes.knocking
        nodes = {doors.door(node): node for node in self.state.nodes}
        agents = {agent.node: agent for agent in self._site.living()}
        found = [agents.get(nodes[store]) for store in stores]
        there = [a is not None and (a.node == self.machine or self._reaches(a)) for a in found]

        def tell() -> None:
            answered(there, self.clock)
            self.look_in(LOOK * self._timeout_s)

        self._env.after(KNOCK_S if all(there) else within_s, self.hear, tell)

    def _reaches(self, agent: SimulatedAgent) -> bool:
        return self.reach and agent.reach

    def telemetry(self) -> None:
        """Everybody's newest reports are looked at."""
        if not self.stalled:
            self.hear(self._hear_all)

    def _hear_all(self) -> None:
        for agent in self._site.living():
            if self._hears(agent):
                self._read_at[agent.node] = self._env.now
                self.shell.report(agent.look())

    def _may_stand(self) -> bool:
        """Telemetry is read when it is wanted, and every second in truth: what was read before the
        network of the workers stalled says nothing of who stands."""
        since = self._site.stalls_since()
        there = (agent for agent in self._site.living() if agent.node in self.shell.nodes.connected)
        mine = (agent for agent in there if agent.wire is not None and agent.wire.control is self)
        return self._site.stands() and all(self._read_at.get(a.node, 0.0) >= since for a in mine)

    def keeps(self, node: str, seq: int) -> None:
        """A node holds the journal up to this line."""
        self._kept[node] = max(seq, self._kept.get(node, -1))

    def _is_kept(self) -> bool:
        """Whether what an order follows from outlives this machine, as far as anything can."""
        members = self.shell.nodes.connected & {*self.state.ranks.values(), *self.state.spares}
        far = [node for node in members if node != self.machine]
        wanted = far or members
        holders = [node for node, seq in self._kept.items() if seq >= self._book.seq]
        return not wanted or any(not far or node != self.machine for node in holders)

    def _hears(self, agent: SimulatedAgent) -> bool:
        return agent.wire is not None and agent.wire.control is self and agent.wire.flows

    # ── time ──

    def falls_silent(self) -> None:
        """From now on something may not be heard."""
        self.look_in(self._timeout_s)
        if "blackouts" in self._env.hardship.rates:
            self.look_in(self.shell.nodes.asking.after_s)

    def look_in(self, wait_s: float) -> None:
        """Look for silence after this time; in between there is nothing to see."""
        at = self._env.now + wait_s
        if not any(at < planned <= at + LOOK_S for planned in self._looks):
            late_s = wait_s + LOOK_S * (0.01 + 0.99 * self._env.dice.random())
            self._looks.append(self._env.now + late_s)
            self._env.after(late_s, self._look_if_due)

    def _look_if_due(self) -> None:
        if self.alive and not self.stalled:
            self._looks = [at for at in self._looks if at > self._env.now]
            self._look()

    def _look(self) -> None:
        if self._site.stands() or self._site.differ():
            self.hear(self._hear_all)
            self.look_in(LOOK_S)
        self.hear(lambda: self.duties["look"].do(self.shell.look))
        if self.alive and self._site.slows(self.state):
            self.look_in(EVERY_S * SOON)
        if self.alive and self.shell.nodes.asking.goes_on:
            self.look_in(0.0)
        quiet = self.state.nodes.keys() - {a.node for a in self._site.living() if self._hears(a)}
        if quiet and not self._looks and self.alive:
            self.look_in(self._timeout_s / 2)

    def _plan_deadline(self) -> None:
        deadline = self.shell.next_deadline()
        if deadline is not None and deadline != self._deadline:
            self._env.after(max(0.0, deadline - self.clock), self._deadline_passed, deadline)
        self._deadline = deadline
        if "slow_ports" in self._env.hardship.rates and self.shell.checks.links.goes_on:
            self.look_in(LOOK_S)

    def _deadline_passed(self, deadline: float) -> None:
        if deadline == self._deadline:
            self._deadline = None
            if not self.stalled:
                self.hear(self.shell.look)

    # ── what comes between ──

    def _observe(self, entry: Entry, state: State) -> None:
        check(state)
        self._decided = (self._decided or 0) + len(entry.actions)
        if isinstance(entry.event, StragglersFound):
            self.look_in(EVERY_S)  # somebody else may be slow by now

    def _stepped(self) -> None:
        """A decision is one step, to make it durable another; then it takes effect, and each of its
        orders is one."""
        if self._decided is not None:
            self._owed, self._decided = 2 + self._decided, None
            self._draw_fate(self._owed)
        elif self._owed:
            self._owed -= 1
        if self._sends_left >= 0:
            self.crash()
        elif self._owed == self._fate[0]:
            self._fate[1]()

    def _draw_fate(self, steps: int) -> None:
        env, share = self._env, self._env.hardship.share
        self._fate = NO_FATE
        if env.chance(share("crash_midway") * (1.0 if steps > 2 else 0.05)):
            left = env.dice.randrange(steps + 1)
            self._fate = left, self._crash_midway if left < steps else self._crash_while_writing
        elif steps > 2 and env.chance(share("stalls_midway")):
            left = env.dice.randrange(steps)
            self._fate = left, lambda: self.stall(env.between(0.5, STALL_MAX_S))

    def _crash_midway(self) -> None:
        """Now, or in the middle of what it does next."""
        if self._env.dice.random() < 0.5:
            self._sends_left = self._env.dice.randrange(1 + len(self.state.nodes))
        else:
            self.crash()

    def _crash_while_writing(self) -> None:
        self._book.tear(self._env.dice)
        self.crash()

    def sends(self, wire: SimulatedWire, message: Downward) -> None:
        """It is about to send this. Raises `DiedError` if it does not come to that."""
        if self._sends_left == 0:
            raise DiedError
        self._sends_left -= 1
        self._referees.ordered(wire.agent.node, [message])
        if isinstance(message, Start | Stop):
            self.acts(f"{wire.agent.node} is told to {type(message).__name__.lower()}")
            kept = self.lease is None or self._is_kept()
            self._referees.unkept("" if kept else f"{message} leaves before a copy is kept")
        if isinstance(message, Stop):
            self.look_in(grace_of(message) + MARGIN_S)
        elif isinstance(message, Leave):
            self.look_in(GOODBYE_S)

    def acts(self, what: str) -> None:
        """It does something that only one controller may do."""
        safe = self.lease is None or self.lease.is_safe(self)
        self._referees.acts("" if safe else f"{what} by one whose lease may be another's")


class SimulatedEngine:
    """Nodes of a simulated world, as the shell orders them."""

    def __init__(self, env: Environment, site: Site, control: Control) -> None:
        self._env, self._site, self._control = env, site, control

    def make(self, order: AskNodes) -> None:
        """Start so many agents."""
        self._control.duties["supply"].do(lambda: self._make(order.count))

    def _make(self, count: int) -> None:
        """Once the API can be reached, and the lease is sure."""
        if self._may_change():
            self._control.acts("nodes are made")
            self._site.start_nodes(count)
        else:
            self._env.after(RETRY_S, self._control.hear, lambda: self._make(count))

    def _may_change(self) -> bool:
        control = self._control
        return control.lease is None or (control.api and control.lease.is_sure(control))

    def remove(self, order: Fence, done: Callable[[Sequence[AnyEvent]], None]) -> None:
        """Kill everything of a node."""
        slow = self._env.chance(self._env.hardship.share("slow_fences"))
        wait_s = self._env.about(2.0) if slow else 0.01
        self._env.after(wait_s, self._removed, order.node, done)
        self._control.awake_since = math.inf

    def _removed(self, node: str, done: Callable[[Sequence[AnyEvent]], None]) -> None:
        if not self._may_change():
            if self._control.alive:
                self._env.after(RETRY_S, self._removed, node, done)
            return
        self._control.acts(f"{node} is removed")
        self._site.remove(node)  # the kill signals were sent, whatever became of us since
        self._control.hear(lambda: self._done(done))

    def _done(self, done: Callable[[Sequence[AnyEvent]], None]) -> None:
        self._control.awake_since = self._env.now
        done(())

    def leave(self, order: EndJob) -> Leave:
        """The job is over."""
        return Leave(reason=order.reason)

    def near(self, node: str) -> bool:
        """On one machine, or where all of them are."""
        return self._control.lease is None or node == self._control.machine

    def connections_changed(self) -> None:
        """Nobody waits for that."""

    def disk_full(self, _full: bool) -> None:
        """It never is."""

    def status(self) -> bytes:
        """Nobody asks."""
        return b""
