"""Hostile worlds, always the same ones: whoever breaks a promise sees a seed.

The worlds differ in size and length as well as in what goes wrong in them. `holdfast simulate
--swarm 10000` looks at more of them; a seed that fails goes into regressions.txt.
"""

from collections import Counter
from collections.abc import Iterable

import pytest

from holdfast.simulation.swarm import Told, run
from tests.more import sample

SWARMS = sample(  # first seed, worlds, hours, nodes
    [
        (1000, 7, 24.0, 2),
        (1000, 3, 24.0, 4),
        (2000, 25, 2.0, 1),
        (3000, 4, 6.0, 64),
        (4003, 1, 96.0, 16),
    ],
    [
        (10, 15, 24.0, 16),
        (1007, 6, 24.0, 2),
        (1003, 10, 24.0, 4),
        *((first, 25, 24.0, 16) for first in range(25, 300, 25)),
        *((1025, 125, 24.0, nodes) for nodes in (2, 4)),
        *((1013, 12, 24.0, nodes) for nodes in (2, 4)),
        (2025, 25, 2.0, 1),
        (3004, 36, 6.0, 64),
        (4004, 16, 96.0, 16),
    ],
)


def lived(seeds: Iterable[int], hours: float, nodes: int) -> list[Told]:
    return [run(seed, hours=hours, nodes=nodes)[0] for seed in seeds]


def objections(told: list[Told]) -> list[str]:
    return [f"{world.command}: {world.foul}" for world in told if world.foul]


@pytest.mark.parametrize(("first", "worlds", "hours", "nodes"), SWARMS)
def test_no_promise_is_broken_in_any_world(
    first: int, worlds: int, hours: float, nodes: int
) -> None:
    assert objections(lived(range(first, first + worlds), hours, nodes)) == []


def test_no_promise_is_broken_in_worlds_that_are_worth_looking_at() -> None:
    """Jobs end in every way there is, and most of them are restarted several times."""
    told = lived(sample([25, 26, 27], [20, 21, 23, 29, 48, 63]), 24.0, 16)
    told += lived([6, 8], 24.0, 6)
    assert objections(told) == []
    assert set(Counter(world.outcome for world in told)) == {
        "succeeded", "failed", "gave_up", "stopped",
    }  # fmt: skip
    assert sum(world.attempts > 5 for world in told) > len(told) - 2
    assert max(world.attempts for world in told) > 50
