"""Do the referees see anything? Bugs are planted in the package, and each is to be found.

A process of its own puts the bug into the package (`planting`) and runs world after world from its
first seed on until the promise that the bug breaks is seen broken. The same world is clean without
the bug, or finding it would mean nothing.
"""

import functools
from pathlib import Path

import pytest

import holdfast
from holdfast.simulation.environment import Promise
from holdfast.simulation.swarm import run
from tests import warm
from tests.more import sample
from tests.simulation import planting
from tests.simulation.mutant import Mutant
from tests.simulation.mutants import MUTANTS
from tests.simulation.planting import SEEDS

PACKAGE = Path(holdfast.__file__).parent
ENOUGH = 1  # of a promise, where nobody asked for more
QUICK = {name: mutant.breaks for name, mutant in MUTANTS.items() if not mutant.when_asked}
FEW = [name for promise in Promise for name in [n for n in QUICK if QUICK[n] is promise][:ENOUGH]]


@pytest.mark.parametrize("name", sample(FEW, [name for name in MUTANTS if name not in FEW]))
def test_a_planted_bug_is_found_by_the_referee_it_concerns(name: str) -> None:
    mutant = MUTANTS[name]
    file = PACKAGE / mutant.file
    planted = mutant.planted(file.read_text())
    shape = mutant.hours, mutant.nodes
    words = (str(file), mutant.breaks, str(mutant.first), *map(str, shape))
    searched = warm.program(planting.__name__, *words, given=planted)
    assert searched.returncode == 0, searched.stderr
    assert searched.stdout, f"not found in {SEEDS} worlds from {mutant.first} on"
    assert not without_the_bug(int(searched.stdout), *shape)


@functools.cache
def without_the_bug(seed: int, hours: float, nodes: int) -> str:
    """What is wrong in a world all the same; many bugs are found in the same one."""
    return run(seed, hours=hours, nodes=nodes)[0].foul


def test_every_promise_is_needed_to_find_some_bug() -> None:
    """A referee that no planted bug needs is removed; each has one that is always tried."""
    assert {MUTANTS[name].breaks for name in FEW} == set(Promise)


def test_there_are_enough_bugs_and_each_is_one_line() -> None:
    assert len(MUTANTS) >= 15
    assert not [m for m in MUTANTS.values() if "\n" in m.line + m.instead]
    assert not [m for m in MUTANTS.values() if m.file.startswith("simulation/")]
    for mutant in MUTANTS.values():
        mutant.planted((PACKAGE / mutant.file).read_text())


@pytest.mark.parametrize("source", ["", "  x = 2\n", "x = 1\nif y:\n    x = 1\n"])
def test_a_bug_whose_line_is_not_there_exactly_once_is_refused(source: str) -> None:
    with pytest.raises(LookupError, match="lines that read: x = 1"):
        Mutant("x.py", "x = 1", "x = 3", Promise.TIME).planted(source)


def test_a_planted_bug_replaces_its_line_and_nothing_else() -> None:
    planted = Mutant("x.py", "x = 1", "x = 3", Promise.TIME).planted("if y:\n    x = 1\nx = 12\n")
    assert planted == "if y:\n    x = 3\nx = 12\n"
