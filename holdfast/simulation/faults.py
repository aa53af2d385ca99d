"""What goes wrong in a simulated world: each kind of fault strikes again and again, by the dice.

How often is the world's hardship; whom it strikes, and for how long, is drawn when it happens.
"""

from typing import TYPE_CHECKING

from holdfast.controller import NodeState
from holdfast.simulation.agents import Agent
from holdfast.simulation.floor import CRASHED, KILLED
from holdfast.simulation.wires import SimulatedWire

if TYPE_CHECKING:
    from holdfast.simulation.world import World

NOTICED_S = 20.0  # from a tear until the end that is not told of it knows, at most
LAG_S = (0.2, 3.0)


class Faults:
    """All that may go wrong in one world, until it is calm."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.nature, self.hardship = world.nature, world.hardship
        self.referees, self.floor = world.referees, world.floor
        self.living = world.living

    def begin(self) -> None:
        """From now on everything may happen."""
        for kind in self.hardship.rates:
            self._plan(kind)

    def _plan(self, kind: str) -> None:
        self.nature.after(self.nature.about(1.0 / self.hardship.rate(kind)), self._strike, kind)

    def _strike(self, kind: str) -> None:
        """`worker_kills` is what `_worker_kills` does, and so on."""
        if not self.nature.calm and not self.referees.over:
            getattr(self, f"_{kind}")()
            self._plan(kind)

    def _some_agent(self) -> Agent | None:
        living = self.living()
        return self.nature.dice.choice(living) if living else None

    def _worker_kills(self) -> None:
        agent = self._some_agent()
        if agent is not None and agent.run is not None and agent.run.alive:
            share = self.hardship.share("forkserver_deaths")
            if share and self.nature.chance(share):
                agent.lose_forkserver()
                return
            rank = self.nature.dice.choice(agent.run.alive)
            self.floor.kill(agent.run, rank, self.nature.dice.choice((KILLED, CRASHED)))

    def _node_deaths(self) -> None:
        agent = self._some_agent()
        if agent is not None:
            agent.die("its agent process was killed by SIGKILL")

    def _spare_deaths(self) -> None:
        state = self._world.control.state if self._world.control is not None else None
        nodes = state.nodes.values() if state is not None else ()
        waiting = [n.node for n in nodes if n.state is not NodeState.MEMBER]
        if waiting:
            self._world.agents[self.nature.dice.choice(waiting)].die("its node was lost")

    def _agent_freezes(self) -> None:
        agent = self._some_agent()
        if agent is not None and not agent.frozen:
            for_s = self.nature.between(0.5, 600.0)
            agent.in_trouble(for_s + 20.0)
            agent.freeze()
            self.nature.after(for_s, agent.wake)

    def _node_hangs(self) -> None:
        agent = self._some_agent()
        if agent is not None and not agent.frozen:
            agent.in_trouble(float("inf"))
            agent.freeze()
            if agent.run is not None and agent.run.alive:
                self.floor.break_up(agent.run.group, f"{agent.node} hangs", all_fail=False)

    def _partitions(self) -> None:
        agent = self._some_agent()
        if agent is not None and agent.reach:
            self._cut(agent, self.nature.between(0.5, 600.0))

    def _cut(self, agent: Agent, for_s: float) -> None:
        agent.in_trouble(for_s + 20.0)
        agent.cut()
        self.nature.after(for_s, agent.heal)

    def _rack(self) -> list[Agent]:
        one = self._some_agent()
        size = self.hardship.rack_size
        return [a for a in self.living() if one and a.number // size == one.number // size]

    def _switch_cuts(self) -> None:
        for_s = self.nature.between(0.5, 600.0)
        for agent in self._rack():
            if agent.reach:
                self._cut(agent, for_s)
            if agent.run is not None and agent.run.alive:
                self.floor.break_up(agent.run.group, "a switch failed", all_fail=True)

    def _rack_losses(self) -> None:
        for agent in self._rack():
            self.nature.after(3 * self.nature.dice.random(), agent.die, "its rack lost power")

    def _power_losses(self) -> None:
        for agent in self.living():
            agent.die("power was lost")

    def _blips(self) -> None:
        agent = self._some_agent()
        if agent is not None:
            agent.disconnect()

    def _preemptions(self) -> None:
        agent = self._some_agent()
        if agent is not None:
            agent.end(self.hardship.limits.stop_grace_s)

    def _store_losses(self) -> None:
        agent = self._some_agent()
        if agent is not None:
            agent.lose_store()

    def _crash_loops(self) -> None:
        self.floor.crashing = True
        self.nature.after(self.nature.between(5.0, 300.0), self._loop_ends)

    def _loop_ends(self) -> None:
        self.floor.crashing = False

    def _storage_outages(self) -> None:
        self.floor.lose_storage()
        self.nature.after(self.nature.between(5.0, 2000.0), self._storage_is_back)

    def _storage_is_back(self) -> None:
        self.floor.storage_away = False

    def _controller_crashes(self) -> None:
        if self._world.control is not None:
            self._world.control.crash()

    def _controller_stalls(self) -> None:
        if self._world.control is not None:
            self._world.control.stall(self.nature.between(0.5, 60.0))

    # ── links ──

    def _some_wire(self) -> SimulatedWire | None:
        agent = self._some_agent()
        return agent.wire if agent is not None else None

    def _link_stalls(self) -> None:
        wire = self._some_wire()
        if wire is not None:
            for_s = self.nature.between(0.5, 60.0)
            wire.agent.in_trouble(for_s + 30.0)
            up = self.nature.dice.random() < 0.5
            wire.stall(up=up, down=not up)
            self.nature.after(for_s, wire.flow)

    def _half_opens(self) -> None:
        wire = self._some_wire()
        if wire is not None:
            wire.agent.in_trouble(60.0)
            wire.stall(up=True, down=True)

    def _link_tears(self) -> None:
        wire = self._some_wire()
        if wire is not None:
            wire.agent.in_trouble(NOTICED_S + 30.0)
            late_s = self.nature.between(0.01, NOTICED_S)
            first = self.nature.dice.random() < 0.5
            wire.tear(agent_s=0.0 if first else late_s, control_s=late_s if first else 0.0)

    def _link_lags(self) -> None:
        wire = self._some_wire()
        if wire is not None:
            for_s = self.nature.between(5.0, 600.0)
            wire.agent.in_trouble(for_s + 30.0)
            wire.lag_s = self.nature.between(*LAG_S)
            self.nature.after(for_s, wire.hurry)

    # ── duties ──

    def _duty_deaths(self) -> None:
        control = self._world.control
        if control is not None:
            duty = self.nature.dice.choice(list(control.duties.values()))
            duty.broken = self.nature.chance(self.hardship.share("broken_duties"))
            duty.fail()
