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
    typer.Option(
        "--swarm",
        min=1,
        max=100_000_000,
        help="Number of randomized fault-injection worlds to run.",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", min=0, help="Seed of the world to run, or of the first one."),
]
Hours = Annotated[
    float, typer.Option("--hours", min=0.1, max=2400, help="Length of a swarm world.")
]
Nodes = Annotated[int, typer.Option("--nodes", min=1, max=256, help="Nodes of a swarm world.")]
Scenario = Annotated[
    str | None,
    typer.Argument(help="A scenario file, or the name of one that is shipped.", metavar="SCENARIO"),
]
Plot = Annotated[
    Path | None, typer.Option("--plot", help="Plot the result to this .png or .svg file.")
]
Compare = Annotated[str | None, typer.Option("--compare", help="Also model a baseline: torchrun.")]
Sweep = Annotated[
    list[str] | None,
    typer.Option(
        "--sweep", metavar="KEY=VALUES", help="Values to sweep: spares=0..16 or key=10,30,60."
    ),
]
Seeds = Annotated[
    int | None,
    typer.Option(
        "--seeds", min=1, help="Number of worlds of a scenario, for the confidence interval."
    ),
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
    """Run the controller in simulated worlds: a scenario, or a swarm with injected faults."""
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
            f"{given[0]} requires a scenario",
            why="swarm worlds are generated from their seeds, without other settings or plots",
            help="holdfast simulate llama3-16k " + given[0] + " ...",
        )


def _not_both() -> Error:
    return Error(
        "usage",
        "--swarm and a scenario are mutually exclusive",
        why="a swarm generates its worlds from seeds, a scenario describes one",
        help="holdfast simulate --help",
    )


def _nothing_to_do() -> Error:
    return Error(
        "usage",
        "neither a scenario nor --swarm nor --seed was given",
        why="nothing to simulate",
        help="holdfast simulate --swarm 100   (or: holdfast simulate llama3-16k)",
    )
