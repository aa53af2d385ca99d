"""A simulated world: nodes, the wire, what goes wrong, and the production controller in the middle.

`World(hardship).run()` lets virtual time pass: hours of hardship, then calm, in which the job has
to recover or end. The engine is here; agents, workers, wires, the controller's process and what
goes wrong have modules of their own.
"""

import math

from holdfast.actions import Outcome
from holdfast.controller import Phase, State
from holdfast.controller.phases import TRAINING
from holdfast.events import HealthChanged, Severity, StopRequested, Store
from holdfast.messages import Leave, Start, Stop
from holdfast.simulation import dead_devices, faults
from holdfast.simulation.agents import SimulatedAgent
from holdfast.simulation.book import SimulatedJournal
from holdfast.simulation.control import REGISTER_S, Control
from holdfast.simulation.environment import Environment
from holdfast.simulation.ground_truth import GroundTruth
from holdfast.simulation.hardship import Hardship
from holdfast.simulation.lives import Lives
from holdfast.simulation.referees import Referees
from holdfast.simulation.rollouts import LOOK_S, Images
from holdfast.simulation.runs import Group
from holdfast.simulation.shared_faults import COMPARED_S, DISK
from holdfast.simulation.sightings import Sightings
from holdfast.simulation.wires import SimulatedWire

CALM_S = 900.0  # within this time after the hardship the job trains again, or has ended
END_S = 120.0  # within this time after a job's end nothing of it is left
START_S = 2.0  # from the start of an agent to its first hello, mean
READY_S = 2.0  # from there until it can start workers, mean
LEAVE_S = 10.0  # for agents to end by themselves when the job is over
LATE_S = 180.0  # until there is a machine for a node, mean
NOTICED_S = 0.3  # from the end of a process until the engine tells, mean
EVICTED_S = 60.0  # the same in a cluster, of a machine that does not answer any more


class World:
    """One job in one world."""

    def __init__(self, hardship: Hardship) -> None:
        self.hardship = hardship
        self.env = Environment(hardship)
        self.referees = Referees(hardship, self.env)
        self.referees.in_trouble = self._in_trouble
        self.referees.removals.spares = lambda: dead_devices.waiting(self)
        self.truth = GroundTruth(self.env, self.referees)
        self.truth.on_change = lambda group: self.sightings.changed(group)
        self.agents: dict[str, SimulatedAgent] = {}
        self.lives = Lives(self.env, self, self.referees)
        self.sightings = Sightings(self.env, self, self.referees, self.truth)
        self._cut_off_until = -math.inf  # its controller could not reach agents
        self._excused_until = -math.inf  # it may rightly take them for lost
        self._ended: dict[str, str] = {}  # nodes whose end the engine knows of, and how
        self._ports = 1000
        self.bad_disk = False  # the next node has one
        self.images = Images(self.env)
        self.startless = False  # new nodes die before they are ready
        self._changes = 0  # of what all machines have in common

    # ── the whole story ──

    def run(self) -> None:
        """From submission to the verdict of the referees. Raises `Foul` if one objects."""
        env = self.env
        self.lives.begin()
        faults.begin(self)
        if "image_updates" in self.hardship.rates:
            self._roll_out()
        env.after(self.hardship.telemetry_s, self._telemetry)
        if self.hardship.stop_after_h:
            env.after(self.hardship.stop_after_h * 3600, self._ask_to_stop)
        self._run_until(self.hardship.hours * 3600)
        self._calm_down()
        self._run_until(env.now + CALM_S)
        if not self.referees.over:
            self._judge_calm()
            self._ask_to_stop()
            self._run_until(env.now + CALM_S)
        env.run(env.now + END_S)
        self._judge_end()

    def _run_until(self, end: float) -> None:
        """In strides, so that a job that has ended does not cost the rest of the day."""
        while self.env.now < end and not self.referees.over:
            self.env.run(min(end, self.env.now + 600.0))

    def _calm_down(self) -> None:
        env = self.env
        env.calm, self.startless = True, False
        self.share()
        self.truth.crashing = self.truth.storage_away = False
        env.ports.clear()
        for agent in self.living():
            agent.slow, agent.drags, agent.stalls_until = None, 1.0, 0.0
            agent.wake()
            agent.heal()
            if agent.wire is not None:
                agent.wire.flow()
                agent.wire.hurry()
        self._at_usual_speed()

    def share(self, fault: str = "") -> None:
        """What all machines have in common is broken, or well."""
        self.env.shared_fault = fault
        self._changes += 1
        self.referees.all_changed(lately=True)
        self.env.after(COMPARED_S, self._compared, self._changes)

    def _compared(self, change: int) -> None:
        if change == self._changes:
            self.referees.all_changed(lately=False)

    def _at_usual_speed(self) -> None:
        for group in self.truth.training():
            self.truth.change_pace(group)

    def _judge_calm(self) -> None:
        state = self.control.state if self.control is not None else None
        what = f"{state.phase}, {state.why}" if state is not None else "there is no controller"
        trains = state is not None and any(
            group.attempt == state.attempt and not self.truth.numbers.struck(group.attempt)
            for group in self.truth.training()
        )
        at_work = [a.node for a in self.living() if a.run is not None and a.run.alive]
        self.referees.calm(trains, what, at_work, len(state.nodes) if state is not None else 0)

    def _judge_end(self) -> None:
        ledger = self.book.books.at(None)
        state = self.book.whole().state
        self.referees.at_end(ledger, self.book.known(), self.truth.spent, state.incidents)
        if self.control is not None:
            self.referees.crashed(self.control.state, True)
            self.referees.restarted(state)

    def _in_trouble(self, node: str) -> bool:
        agent = self.agents.get(node)
        until = max(self._excused_until, agent.trouble_until if agent is not None else math.inf)
        return agent is None or not agent.alive or until + 30.0 > self.env.now

    # ── the engine ──

    def start_nodes(self, count: int) -> None:
        """Start this many agents."""
        for _ in range(count):
            late = bool(self.agents) and not self.env.calm
            late = late and self.env.chance(self.hardship.share("late_nodes"))
            self._start_node() if not late else self.env.after(
                self.env.about(LATE_S), self._start_late
            )

    def _start_late(self) -> None:
        if self.control is not None and not self.control.state.ended:
            self._start_node()  # else it is asked for again

    def _start_node(self) -> None:
        env, hard = self.env, self.hardship
        odd = bool(self.agents) and env.chance(hard.share("odd_nodes"))
        agent = SimulatedAgent(env, self, self.truth, len(self.agents), hard.workers + odd)
        self.agents[agent.node] = agent
        if self.bad_disk:
            self.bad_disk, agent.fault = False, DISK
            self.referees.sick(agent.node, DISK, Severity.FATAL)
        control = self.control
        assert control is not None
        lives = self.images.begins(agent.node, control.state.version.image)
        control.shell.nodes.expect(agent.node, REGISTER_S)
        control.look_in(REGISTER_S)
        start_s = env.about(START_S)
        if env.chance(hard.share("stillborn")):
            self.referees.stillborn += 1
            env.after(start_s, agent.die, "its agent process ended with status 1")
            return
        if env.chance(hard.share("slow_nodes")):
            start_s += 120.0
            self.referees.stillborn += 1
            agent.in_trouble(start_s)
        env.after(start_s, agent.connect_soon)
        ready_s = start_s + env.about(READY_S)
        if self.startless or not lives:
            if hard.seed % 2:
                env.after(ready_s + 1.0, agent.die, "its agent process was killed by SIGKILL")
            else:
                env.after(ready_s + 1.0, agent.end, 0.0, "the forkserver dies while it starts")
            return
        env.after(ready_s, self._ready, agent)

    def _roll_out(self) -> None:
        """Whose turn it is to get another image."""
        control = self.control
        if control is not None and control.api and not (control.stalled or control.state.ended):
            step = self.images.next(control.state, self.existing())
            for fact in step.facts:
                if isinstance(fact, HealthChanged):
                    self.referees.sick(fact.node, fact.condition, fact.severity)
            if step.facts:
                control.put(*step.facts)
            if step.evict is not None:
                self.agents[step.evict.uid].end(self.hardship.limits.stop_grace_s)
        self.env.after(LOOK_S, self._roll_out)

    def _ready(self, agent: SimulatedAgent) -> None:
        if agent.alive:
            self.referees.started(agent.node)
        agent.ready()

    def agent(self, node: str) -> SimulatedAgent | None:
        """The agent of a node, dead or alive."""
        return self.agents.get(node)

    def remove(self, node: str) -> None:
        """Kill everything of a node."""
        agent = self.agents.get(node)
        if agent is not None:
            agent.die("")
        self._ended[node] = "it was removed"

    def existing(self) -> list[str]:
        """Nodes that the engine takes for alive: in a cluster a machine that has died is not missed
        for most of a minute, nor is what was on it."""
        unnoticed = self.agents.keys() - self._ended.keys() if self.hardship.cluster else ()
        return [a.node for a in self.agents.values() if a.alive or a.node in unnoticed]

    def living(self) -> list[SimulatedAgent]:
        """Agents whose process exists, oldest first."""
        return [agent for agent in self.agents.values() if agent.alive]

    def unheard(self, agent: SimulatedAgent, since: float) -> None:
        """From now on nobody can hear it: a member has to be named in time."""
        wait_s = self.referees.named_within_s + 0.5
        self.env.after(wait_s, self._require_named, agent, since)

    def _require_named(self, agent: SimulatedAgent, since: float) -> None:
        if agent.gone_since != since or self.referees.over:
            return
        control = self.control
        if control is None:
            self.unheard(agent, since)
        elif agent.node in control.state.nodes and (
            agent.node != control.machine or agent.frozen or not agent.alive
        ):
            awake_s = max(0.0, self.env.now - max(since, control.awake_since))
            self.referees.silent(agent.node, awake_s)
            self.unheard(agent, since)

    def sicken(self, agent: SimulatedAgent, condition: str, severity: Severity) -> None:
        """Something is not as it should be with a node, and its agent sees it."""
        if agent.alive and not agent.frozen:
            self.referees.sick(agent.node, condition, severity)
            agent.tell_condition(condition, severity)

    def hangs(self, group: Group) -> None:
        """An attempt stands still: that has to be found in time."""
        if self.control is not None:
            self.control.look_in(0.0)
        self._watch(group, self.env.now)

    def _watch(self, group: Group, since: float) -> None:
        self.env.after(self._found_within_s(group) + 0.5, self._require_found, group, since)

    def _found_within_s(self, group: Group) -> float:
        tempo = group.tempo
        steps_s = (tempo.slowest_s, tempo.longest_s) if tempo is not None else (0.0, 0.0)
        return self.referees.found_within_s(*steps_s)

    def _require_found(self, group: Group, since: float) -> None:
        stands = group.hung is not None or group.stall.until > self.env.now
        if not (group.lives and stands) or self.referees.over:
            return
        control = self.control
        if control is not None and control.state.attempt == group.attempt:
            trains = control.state.phase in TRAINING and control.reach
            awake_s = max(0.0, self.env.now - max(since, control.awake_since)) if trains else 0.0
            self.referees.stands(group.attempt, awake_s, self._found_within_s(group))
        self._watch(group, since)

    def gone(self, agent: SimulatedAgent, how: str) -> None:
        """The agent's process has ended; the engine may tell, and a cluster does in the end."""
        self.referees.died(agent.node)
        silent = self.env.chance(self.hardship.share("silent_deaths"))
        if how and not silent:
            self.env.after(self.env.about(NOTICED_S), self._notice, agent.node, how)
        elif self.hardship.cluster:
            self.env.after(EVICTED_S, self._notice_late, agent.node, how or "its machine is gone")

    def _notice(self, node: str, how: str) -> None:
        self._ended[node] = how
        if self.control is not None and self.control.api:
            self.control.died(node, how)

    def _notice_late(self, node: str, how: str) -> None:
        known = self.control is not None and node in self.control.state.nodes
        if known or self.control is None:  # else it was given up for its silence long ago
            self._notice(node, how)

    def new_store(self) -> Store:
        """A store on a port that nobody has used."""
        self._ports += 1
        return Store("10.0.0.1", self._ports, True)

    # ── the controller's process ──

    @property
    def control(self) -> Control | None:
        """The controller that agents find, if there is one."""
        return self.lives.control

    @property
    def book(self) -> SimulatedJournal:
        """Its journal, or the one before."""
        return self.lives.book

    def controller_is_up(self) -> None:
        """Agents may connect."""
        dead_devices.tell_racks(self)
        for agent in self.living():
            agent.connect_soon()

    def cut_off(self, for_s: float) -> None:
        """For some time the controller cannot reach agents."""
        self._cut_off_until = max(self._cut_off_until, self.env.now + for_s + 10.0)
        self._excused_until = self._cut_off_until

    def controller_sees(self, control: Control) -> None:
        """It reads from the engine what it has missed."""
        for node in control.state.nodes.keys() & self._ended.keys():
            control.died(node, self._ended[node])

    def controller_died(self, control: Control, *, torn: bool) -> None:
        """This process is gone; `torn`: with its machine, which nobody is told."""
        self.lives.died(control, torn=torn)

    def handed_over(self, control: Control) -> None:
        """It has given the lease back, for one that reaches the nodes."""
        self.lives.handed_over(control)

    def returned(self) -> None:
        """No other has taken it: the same one begins again, and can know that it hears nobody."""
        self._excused_until = -math.inf

    def stands(self) -> bool:
        """Whether workers wait for one that does not move."""
        return self.truth.stands()

    def differ(self) -> bool:
        """Whether workers have found out that they do not have the same."""
        return self.truth.differ()

    def stalls_since(self) -> float:
        """Since when the network of workers carries nothing; -inf: it works."""
        return self.truth.stalls_since

    def slows(self, state: State) -> bool:
        """Whether it is worth asking when workers enter their collectives."""
        return self.sightings.slows(state)

    def disturbed_until(self, group: Group) -> float:
        """Until when something was wrong with whoever is in this attempt, or with its way to us."""
        members = (self.agents[run.host.node].trouble_until for run in group.runs.values())
        return max(self._cut_off_until, *members)

    def connect(self, agent: SimulatedAgent) -> SimulatedWire | None:
        """Say hello to the controller, if there is one."""
        return self.lives.connect(agent)

    def obeys(self, agent: SimulatedAgent, order: Start | Stop | Leave) -> None:
        """It does what it was told."""
        self.referees.obeyed(agent.node, order)

    def job_ended(self, control: Control, outcome: Outcome) -> None:
        """The order to end was carried out: agents that are not told of it are killed."""
        self.referees.ended(outcome)
        for agent in self.living():
            self.env.after(LEAVE_S, agent.die, "the job is over")
        self.env.after(LEAVE_S, control.close)

    # ── people ──

    def _telemetry(self) -> None:
        if self.control is not None:
            self.control.telemetry()
        if not self.referees.over:
            self.env.after(self.hardship.telemetry_s, self._telemetry)

    def _ask_to_stop(self) -> None:
        """`holdfast stop`, again until the controller is seen to have heard it."""
        if self.referees.over:
            return
        self.env.after(10.0, self._ask_to_stop)
        control = self.control
        if control is None or control.stalled or control.state.phase is Phase.CLOSING:
            return
        self.referees.stop_asked = True
        control.put(StopRequested(by="a person", now=self.env.dice.random() < 0.2))
