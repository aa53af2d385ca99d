"""Ports of nodes that carry far less than they should, for hours: a bad cable, a lower rate.

Every attempt in which such a node takes part is slower. All ranks compute as long as before, so
none is a straggler; nothing stands still, nothing fails, and no agent counts an error. What shows
it is that steps are slower than before, which telemetry tells after some minutes (that detector is
not simulated), and links that are measured, both of the node. `FairNetworks` is the referee: told
by the world whose networks are slow, it lets nobody else be named for that. And such a node may be
left only once attempts have failed one after the other: what is slow and trains goes on.
"""

from typing import TYPE_CHECKING

from holdfast.actions import Entry, Fence, StartAttempt
from holdfast.events import AnyEvent, AttemptStopped, MilestoneReached, NodesChecked, Progressed
from holdfast.profiles import StepsSlowed
from holdfast.simulation.environment import SlowPort

if TYPE_CHECKING:
    from holdfast.simulation.agents import SimulatedAgent
    from holdfast.simulation.world import World

COMMUNICATES = 0.1  # of a step of sound nodes
TIMES = (4.0, 30.0)
LASTS_S = (600.0, 40_000.0)
MEASURED_S = 120.0  # that it takes to measure links twice, and to decide what follows
TOLD_S = 180.0  # until it is certain that steps are slower
TRIES = 2  # attempts in a row without progress, after which a slow node may be left
NETWORK = "network: "  # how what is found in links begins


def slow_ports(world: "World") -> None:
    """From now on, until somebody has repaired it; several nodes may have it at once."""
    living = [agent for agent in world.living() if agent.drags == 1]
    if not living:
        return
    agent, times = world.env.dice.choice(living), world.env.between(*TIMES)
    port = world.env.ports[agent.node] = SlowPort(times, world.env.now)
    world.referees.blame.networks.began(agent.node)
    _drags(world, agent, 1 + COMMUNICATES * (times - 1))
    if world.control is not None:
        world.control.look_in(0.0)
    world.env.after(TOLD_S, _tell, world, agent, port)
    world.env.after(world.env.between(*LASTS_S), _is_repaired, world, agent)


def _tell(world: "World", agent: "SimulatedAgent", port: SlowPort) -> None:
    """Of an attempt that was faster once, to a controller that hears it."""
    control, group = world.control, agent.run.group if agent.run is not None else None
    there = control is not None and not control.stalled and world.env.ports.get(agent.node) == port
    if control is None or not there or group is None or group not in world.truth.training():
        return
    if group.first_at is not None and group.first_at < port.since:
        usual_s, step = world.hardship.step_s, world.truth.step(group)
        control.put(
            StepsSlowed(
                attempt=group.attempt,
                step=step,
                slower=agent.drags - 1,
                step_s=usual_s * agent.drags,
                usual_s=usual_s,
            )
        )


def _drags(world: "World", agent: "SimulatedAgent", times: float) -> None:
    agent.drags = times
    if agent.run is not None:
        world.truth.change_pace(agent.run.group)


def _is_repaired(world: "World", agent: "SimulatedAgent") -> None:
    if world.env.ports.pop(agent.node, None) is not None:
        _drags(world, agent, 1.0)
        world.env.after(MEASURED_S, world.referees.blame.networks.over, agent.node)


class FairNetworks:
    """Whose networks are slow, or were until a moment ago."""

    def __init__(self) -> None:
        self._slow: dict[str, int] = {}  # node → for how many reasons
        self._furthest = -1  # step
        self._tries = 0  # attempts since that grew

    def began(self, node: str) -> None:
        """From now on."""
        self._slow[node] = self._slow.get(node, 0) + 1

    def over(self, node: str) -> None:
        """For one reason less."""
        self._slow[node] -= 1

    def is_slow(self, node: str) -> bool:
        """Whether it may be named for that."""
        return self._slow.get(node, 0) > 0

    def judged(self, entry: Entry) -> str:
        """Who is named for what was measured, and who is left for it."""
        step = _step_of(entry.event)
        if step is not None and step > self._furthest:
            self._furthest, self._tries = step, 0
        said = self._said(entry)
        self._tries += sum(isinstance(action, StartAttempt) for action in entry.actions)
        return said

    def _said(self, entry: Entry) -> str:
        found = entry.event.found if isinstance(entry.event, NodesChecked) else {}
        named = [node for node, why in found.items() if why.startswith(NETWORK)]
        wrong = [node for node in named if not self.is_slow(node)]
        slow = [node for node in self._slow if self.is_slow(node)]
        if wrong:
            return f"the network of {wrong[0]} is called slow; slow are {slow}"
        left = [one.node for one in entry.actions if isinstance(one, Fence) and one.node in named]
        soon = left and self._tries < TRIES
        return f"{left[0]} is left for a slow network after {self._tries} tries" if soon else ""


def _step_of(event: AnyEvent) -> int | None:
    match event:
        case Progressed() | AttemptStopped():
            return event.progress.step
        case MilestoneReached():
            return event.step
        case _:
            return None
