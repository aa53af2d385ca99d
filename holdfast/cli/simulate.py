"""`holdfast simulate`: the production controller in simulated worlds.

Two uses of one verb. With `--swarm` or `--seed` alone it looks for bugs: each seed is another
hostile world, watched by referees. With a scenario it answers capacity questions.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.output import AsJson
from holdfast.errors import Error

Swarm = Annotated[
    int | None,
    typer.Option("--swarm", min=1, max=100_000_000, help="Run this many hostile worlds."),
]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed", min=0, help="The one world to run, or the first; of a scenario the first too."
    ),
]
Hours = Annotated[
    float, typer.Option("--hours", min=0.1, max=2400, help="Length of a hostile world.")
]
Nodes = Annotated[int, typer.Option("--nodes", min=1, max=256, help="Nodes of a hostile world.")]
Scenario = Annotated[
    str | None,
    typer.Argument(help="A scenario file, or the name of one that is shipped.", metavar="SCENARIO"),
]
Plot = Annotated[
    Path | None, typer.Option("--plot", help="Draw the answer into this .png or .svg file.")
]
Compare = Annotated[str | None, typer.Option("--compare", help="Also model another way: torchrun.")]
Sweep = Annotated[
    list[str] | None,
    typer.Option("--sweep", metavar="KEY=VALUES", help="Vary: spares=0..16 or key=10,30,60."),
]
Seeds = Annotated[
    int | None, typer.Option("--seeds", min=1, help="Worlds of a scenario, for the interval.")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a number of the scenario."),
]


def simulate(
    scenario: Scenario = None,
    swarm: Swarm = None,
    seed: Seed = None,
    hours: Hours = 24.0,
    nodes: Nodes = 16,
    seeds: Seeds = None,
    settings: Set = None,
    compare: Compare = None,
    sweep: Sweep = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Run the controller in simulated worlds: a scenario, or a swarm of hostile ones."""
    if scenario is not None:
        if swarm is not None:
            raise _not_both()
        from holdfast.cli import simulate_scenario

        simulate_scenario.run(
            scenario,
            seed=seed,
            seeds=seeds,
            settings=tuple(settings or ()),
            compare=compare,
            sweep=tuple(sweep or ()),
            plot=plot,
            as_json=as_json,
        )
        return
    from holdfast.cli import simulate_swarm

    _refuse_for_swarm(
        {
            "--seeds": seeds,
            "--set": settings,
            "--compare": compare,
            "--sweep": sweep,
            "--plot": plot,
        }
    )
    if swarm is not None:
        simulate_swarm.swarm(seed or 0, swarm, hours=hours, nodes=nodes, as_json=as_json)
    elif seed is not None:
        simulate_swarm.one(seed, hours=hours, nodes=nodes, as_json=as_json)
    else:
        raise _nothing_to_do()


def _refuse_for_swarm(options: Mapping[str, object]) -> None:
    """Nothing that was asked for is left out silently."""
    given = [name for name, value in options.items() if value]
    if given:
        raise Error(
            "usage",
            f"{given[0]} needs a scenario",
            why="hostile worlds are drawn from their seeds; nothing about them can be set or drawn",
            help="holdfast simulate llama3-16k " + given[0] + " ...",
        )


def _not_both() -> Error:
    return Error(
        "usage",
        "--swarm and a scenario exclude each other",
        why="a swarm draws its worlds from seeds, a scenario describes one",
        help="holdfast simulate --help",
    )


def _nothing_to_do() -> Error:
    return Error(
        "usage",
        "neither a scenario nor --swarm nor --seed was given",
        why="simulate has to know what to run",
        help="holdfast simulate --swarm 100   (or: holdfast simulate llama3-16k)",
    )
