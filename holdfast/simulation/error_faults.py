"""Errors that workers raise again and again, of the code, its data or one machine; see `faults`.

Only in scripts that report their steps: errors of others are not compared.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.events import UpdateRequested, WorkerError
from holdfast.simulation.fair_updates import KIND
from holdfast.simulation.repeating_errors import CRASHES, FLAKY, ILLEGAL, Bug
from holdfast.simulation.runs import NodeWorkers

if TYPE_CHECKING:
    from holdfast.simulation.agents import SimulatedAgent
    from holdfast.simulation.world import World

AGAIN_S = (60.0, 3600.0)  # between two errors
AHEAD = 30  # steps until the bad batch comes, at most
FLAKY_BUG = Bug(0, 0)


def _training(world: "World") -> list[NodeWorkers]:
    groups = world.truth.training() if world.hardship.instrumented else []
    return [run for group in groups for run in group.runs.values() if run.alive]


def _bad_batches(world: "World") -> None:
    """It stays so: the job is to end."""
    for run in _training(world)[:1]:
        step = world.truth.step(run.group) + 1 + world.env.dice.randrange(AHEAD)
        ranks = range(run.group.world_size)
        world.truth.errors.spoil(step, world.env.dice.choice((None, world.env.dice.choice(ranks))))
        world.truth.spoil_batch(run.group, step)


def _bad_devices(world: "World") -> None:
    _go_bad(world, ILLEGAL)


def _bad_hosts(world: "World") -> None:
    _go_bad(world, FLAKY)


def _go_bad(world: "World", error: WorkerError) -> None:
    living = world.living()
    if living:
        _fails_on(world, world.env.dice.choice(living), error)


def _fails_on(world: "World", agent: "SimulatedAgent", error: WorkerError) -> None:
    """A worker of this node fails, and later another one, for as long as there are any."""
    for run in _training(world):
        if run.host is agent:
            world.truth.fail(run, world.env.dice.choice(run.alive), error, None)
    if agent.alive and not world.env.calm:
        world.env.after(world.env.between(*AGAIN_S), _fails_on, world, agent, error)


def _flaky_scripts(world: "World") -> None:
    """From now on any worker may fail."""
    if runs := _training(world):
        run = world.env.dice.choice(runs)
        world.truth.fail(run, world.env.dice.choice(run.alive), FLAKY, FLAKY_BUG)
    if not world.env.calm:
        world.env.after(world.env.between(*AGAIN_S), _flaky_scripts, world)


def _crashing_updates(world: "World") -> None:
    control = world.control
    if world.hardship.instrumented and control is not None and not control.stalled:
        asked = f"{world.env.dice.random()}"
        control.put(UpdateRequested(by="a person", id=asked, sets={KIND: CRASHES}))


OF_ERRORS: dict[str, Callable[["World"], None]] = {
    "bad_batches": _bad_batches,
    "bad_devices": _bad_devices,
    "bad_hosts": _bad_hosts,
    "flaky_scripts": _flaky_scripts,
    "crashing_updates": _crashing_updates,
}
