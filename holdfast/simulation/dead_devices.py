"""Machines whose devices are dead for good, many of them within an hour, or a whole rack of them.

Agents see it, and whatever runs on such a machine dies soon, attempt after attempt. The controller
is told which rack a node is in where whole racks die, as the driver of Kubernetes tells it. What
must follow is judged by `removals`: only so many nodes are left in an hour, and that is no reason
for a job to end.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from holdfast.events import AnyEvent, NodeJoined, Severity
from holdfast.simulation.runs import CRASHED

if TYPE_CHECKING:
    from holdfast.simulation.agents import SimulatedAgent
    from holdfast.simulation.world import World

RACKS = "rack_devices"
SPREAD_S = 600.0  # within which the machines of a rack die
LIVES_S = (1.0, 60.0)  # that something runs on such a machine


def _dead_devices(world: "World") -> None:
    if living := world.living():
        _dies(world, world.env.dice.choice(living))


def _rack_devices(world: "World") -> None:
    if living := world.living():
        rack = _rack_of(world, world.env.dice.choice(living).node)
        for agent in living:
            if _rack_of(world, agent.node) == rack:
                world.env.after(SPREAD_S * world.env.dice.random(), _dies, world, agent)


def _dies(world: "World", agent: "SimulatedAgent") -> None:
    if agent.alive and not (agent.frozen or world.env.calm):
        world.sicken(agent, "xid-79", Severity.FATAL)
        _kills(world, agent)


def _kills(world: "World", agent: "SimulatedAgent") -> None:
    """Whatever runs there, for as long as the machine is there."""
    if world.env.calm or not agent.alive:
        return
    if agent.run is not None and agent.run.alive:
        world.truth.kill(agent.run, world.env.dice.choice(agent.run.alive), CRASHED)
    world.env.after(world.env.between(*LIVES_S), _kills, world, agent)


def _rack_of(world: "World", node: str) -> str:
    return f"rack-{world.agents[node].number // world.hardship.rack_size}"


def tell_racks(world: "World") -> None:
    """From now on its controller hears with each node that joins where that is."""

    def explained(event: AnyEvent) -> AnyEvent:
        if not isinstance(event, NodeJoined):
            return event
        return msgspec.structs.replace(event, rack=_rack_of(world, event.node))

    if world.control is not None and RACKS in world.hardship.rates:
        world.control.shell.decisions.explain = explained


def waiting(world: "World") -> list[str]:
    """Nodes that could take a rank at once, in the controller's eyes as in truth."""
    if world.control is None or world.hardship.limits.checks:
        return []  # who has not passed its checks does not count
    nodes = world.control.state.nodes
    there = (world.agents[node] for node in world.control.state.spares if nodes[node].warm)
    return [agent.node for agent in there if agent.alive and not agent.frozen]


OF_DEVICES: dict[str, Callable[["World"], None]] = {
    "dead_devices": _dead_devices,
    RACKS: _rack_devices,
}
