"""Every world that ever failed is lived through again.

The first of each mistake of the product always is, unless it takes seconds ("long"); the others
("the same") are with HOLDFAST_TEST_MORE=1, and so are those in which only a referee, or the world
itself, was wrong.
"""

import shlex
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.simulation.swarm import run
from tests.more import sample

FILE = Path(__file__).with_name("regressions.txt")


class Regression(NamedTuple):
    """One line of the file."""

    seed: int
    hours: float
    nodes: int
    why: str


def parsed(line: str) -> Regression:
    """`SEED [--hours H] [--nodes N] # WHY`, as `holdfast simulate` prints it after `--seed`."""
    words, _, why = line.partition("#")
    seed, *options = shlex.split(words)
    given = dict(zip(options[::2], options[1::2], strict=True))
    hours, nodes = float(given.pop("--hours", "24")), int(given.pop("--nodes", "16"))
    assert not given, f"unknown options: {given}"
    assert why.strip(), f"seed {seed}: what was wrong?"
    return Regression(int(seed), hours, nodes, why.strip())


LINES = [line for line in FILE.read_text().splitlines() if line and not line.startswith("#")]
WHEN_ASKED = ("the same", "of the referees", "of the world", "long: ")
AGAIN = [line for line in LINES if parsed(line).why.startswith(WHEN_ASKED)]
FIRST = [line for line in LINES if line not in AGAIN]


@pytest.mark.parametrize("line", sample(FIRST, AGAIN))
def test_a_world_that_failed_once_is_well(line: str) -> None:
    world = parsed(line)
    told, _ = run(world.seed, hours=world.hours, nodes=world.nodes)
    assert not told.foul, f"{told.command}\n{told.foul}\nfirst seen as: {world.why}"
    assert told.outcome


def test_no_world_is_there_twice() -> None:
    worlds = [parsed(line)[:3] for line in LINES]
    assert len(set(worlds)) == len(worlds) > 0


@pytest.mark.parametrize("line", ["12 # ", "12", "x # why", "1 --hours # why", "1 --days 3 # why"])
def test_a_line_that_nobody_understands_is_refused(line: str) -> None:
    with pytest.raises((AssertionError, ValueError)):
        parsed(line)
