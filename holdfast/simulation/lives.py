"""The processes of a job's controller: one after the other and, in a cluster, two at once.

On one machine the journal outlives the process, and somebody starts another. In a cluster the disk
goes with the machine: a lease says who may be the controller, whoever stands by on another machine
takes it once it is not renewed, and gathers the journal from the agents that hold copies, as the
driver for Kubernetes does. The one before may still run meanwhile, or come back.
"""

import math
from collections.abc import Callable, Sequence

from holdfast import lines
from holdfast.events import ControllerResumed, JobSubmitted
from holdfast.shell.succession import RUNNING_S, RollCall, StandingAside, newest
from holdfast.simulation.agents import SimulatedAgent
from holdfast.simulation.book import SimulatedJournal
from holdfast.simulation.control import Control, Post, Site
from holdfast.simulation.environment import Environment
from holdfast.simulation.lease import DURATION_S, POLL_S, SimulatedLease
from holdfast.simulation.referees import Referees
from holdfast.simulation.wires import SimulatedWire

AWAY_S = (0.2, 900.0)  # until somebody starts another process
AGAIN_S = (0.2, 8.0)  # until the same container runs again
LOOK_S = 0.05
RECORD_S = 30.0  # how old the published journal is, at most


class Gathered:
    """Copies of the journal, as agents that connect give them; `done` is called with the newest."""

    def __init__(
        self,
        env: Environment,
        call: RollCall,
        running: Callable[[], Sequence[str]],
        done: Callable[[RollCall], None],
    ) -> None:
        self._env, self._call, self._running, self._done = env, call, running, done
        env.after(LOOK_S, self._look)
        env.after(RUNNING_S, self._watch)

    def visit(self, agent: SimulatedAgent) -> None:
        """An agent is here, and is sent away again."""
        replica = agent.replica
        if self._call.wanted(replica.term, replica.seq):
            copy = copy_of(agent)
            assert lines.sound(copy)
            self._call.fetched(replica.term, replica.seq, copy)
        hello = agent.hello()
        self._call.heard(agent.node, hello.ordered, hello.fenced)

    def _look(self) -> None:
        if self._call.is_over(self._env.now):
            self._done(self._call)
        else:
            self._env.after(LOOK_S, self._look)

    def _watch(self) -> None:
        if not self._call.is_over(self._env.now):
            self._call.only(self._running())
            self._env.after(RUNNING_S, self._watch)

    def doubt(self) -> None:
        """It reaches the API."""

    def stand_aside(self) -> None:
        """It holds no agents."""


def copy_of(agent: SimulatedAgent) -> bytes:
    """All lines that an agent holds."""
    return b"".join(part.data for part in agent.replica.copy())


class Lives:
    """Who is the controller now: new connections lead to `control`."""

    def __init__(self, env: Environment, site: Site, referees: Referees) -> None:
        self._env, self._site, self._referees = env, site, referees
        self._hard = env.hardship
        self.control: Control | None = None
        self.book = SimulatedJournal(self._hard.limits, referees, self._hard.seed)
        self._lease = SimulatedLease(env, self._succeed) if self._hard.cluster else None
        self._gathered: Gathered | None = None
        self._published: SimulatedJournal | None = None  # whole, by a controller that handed over
        self._former = ""  # machine of the newest controller
        self._offset_s = 0.0  # of the clock where the next one runs
        self._deaf_until = -math.inf  # no agent reaches the newest one, unless on its machine

    def begin(self) -> None:
        """The first one."""
        self._start("n0" if self._lease is not None and self._env.dice.random() < 0.5 else "")

    def _start(self, machine: str, obeyed: int = 0) -> None:
        if self._referees.over:
            return
        lease, first = self._lease, self.book.count() == 1
        term = lease.term if lease is not None else self.book.count()  # lines that are durable
        if lease is not None and lease.holder is None:
            term += 1
        post = Post(self._offset_s, term, machine, lease, self._deaf_until)
        self.control = control = Control(self._env, self._site, self.book, self._referees, post)
        if lease is not None and lease.holder is None:
            lease.take(control)
        elif lease is not None:
            lease.go_on_with(control)
        self._former = machine
        self._referees.restarted(control.state)
        existing = tuple(self._site.existing())
        event = JobSubmitted() if first else ControllerResumed(existing=existing, obeyed=obeyed)
        control.begin(event, existing)
        self._site.controller_is_up()

    def connect(self, agent: SimulatedAgent) -> SimulatedWire | None:
        """An agent says hello to whoever the Service leads to."""
        heard = self._env.now >= self._deaf_until
        if self._gathered is not None and agent.reach and heard:
            self._gathered.visit(agent)
        control = self.control
        if control is None or not _reach(agent, control):
            return None
        wire = control.connect(agent)
        if wire is not None and agent.node != control.machine:
            self._referees.met()
        return wire

    def died(self, control: Control, *, torn: bool) -> None:
        """This process is gone. Agents notice, unless it went with its machine."""
        for wire in [a.wire for a in self._site.living()]:
            if wire is not None and wire.control is control:
                if torn:
                    wire.stall(up=True, down=True)
                else:
                    wire.agent.disconnect()
        if control is not self.control:
            return
        self.control = None
        self._referees.crashed(control.state, self.book.durable)
        dice, step_s = self._env.dice, self._hard.clock_step_s
        self._offset_s += step_s * (2 * dice.random() - 1)
        if self._lease is None:
            self._env.after(self._env.between(*AWAY_S), self._start, "")
            return
        self._lease.stops(control)
        if not torn and dice.random() < 0.5:
            wait_s = self._env.between(*AGAIN_S)
            self._env.after(wait_s, self._start_again, self._lease, control)

    def handed_over(self, control: Control) -> None:
        """It has published its journal and given the lease back."""
        assert self._lease is not None
        self.control, self._published = None, self.book
        self._referees.handed_over()
        if self._hard.standby:
            self._lease.release(control)
        aside = StandingAside(DURATION_S, self._env.now)
        self._look_aside(self._lease, control, aside)

    def _look_aside(self, lease: SimulatedLease, control: Control, aside: StandingAside) -> None:
        """The process ends only then, and soon its container runs again."""
        if aside.is_over(self._env.now, taken=lease.holder is not control):
            self._env.after(self._env.between(*AGAIN_S), self._return, lease, control)
        else:
            self._env.after(POLL_S, self._look_aside, lease, control, aside)

    def _return(self, lease: SimulatedLease, control: Control) -> None:
        """The container of the same pod runs again, where it was, and takes what nobody has."""
        if lease.holder is control and not self._referees.over:
            self._referees.returned(standby=self._hard.standby)
            self._site.returned()
            self._follow(control.machine, control.deaf_until)

    def _start_again(self, lease: SimulatedLease, control: Control) -> None:
        """The container of the same pod: the same holder with the same disk, if it still is."""
        if lease.holder is control:
            self._start(control.machine)

    # ── in a cluster ──

    def _succeed(self) -> None:
        """Whoever stands by has taken the lease."""
        if self._referees.over:
            return
        living = self._site.living()
        machines = ["", *(agent.node for agent in living if agent.reach and not agent.frozen)]
        self._follow(self._env.dice.choice(machines))

    def _follow(self, machine: str, deaf_until: float = -math.inf) -> None:
        assert self._lease is not None
        self.control, self._deaf_until = None, deaf_until
        near = {self._former}.intersection(self._site.existing())
        call = RollCall(set(self._site.existing()) - near, near, self._env.now)
        running = self._site.existing
        self._gathered = Gathered(self._env, call, running, lambda over: self._go_on(machine, over))
        self._lease.take(self._gathered)
        self._site.controller_is_up()

    def _go_on(self, machine: str, call: RollCall) -> None:
        old, self._gathered = self.book, None
        age_s = 0.0 if self._published is old else self._env.dice.random() * RECORD_S
        record = old.before(age_s)
        content = newest([call.best, record])
        self.book = SimulatedJournal.of_copy(
            content, self._hard.limits, self._referees, self._hard.seed
        )
        free = [agent for agent in self._site.living() if agent.wire is None]
        heard = self._env.now >= self._deaf_until
        holders = [agent for agent in free if agent.reach and heard and not agent.frozen]

        def is_kept(seq: int) -> bool:
            return any(_holds(agent, old, seq) for agent in holders)

        self._referees.took_over(old.shared(self.book), self.book.starts(), is_kept)
        self._start(machine, call.obeyed)


def _reach(agent: SimulatedAgent, control: Control) -> bool:
    return agent.node == control.machine or (agent.reach and control.reach)


def _holds(agent: SimulatedAgent, book: SimulatedJournal, seq: int) -> bool:
    """Whether this entry of this journal is in the agent's copy."""
    return agent.replica.seq >= seq and copy_of(agent).splitlines()[seq] == book.line(seq)[:-1]
