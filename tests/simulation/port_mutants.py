"""Planted bugs in what follows from links that are measured; see `mutants`."""

from holdfast.simulation.environment import Promise
from holdfast.simulation.hardship import PORT_SEEDS
from tests.simulation.mutant import Mutant

OF_PORTS: dict[str, Mutant] = {
    "one slow link is enough to name a node": Mutant(
        "diagnosis/slow_links.py",
        "if max(figures) < SHARE * usual:",
        "if min(figures) < SHARE * usual:",
        Promise.BLAME,
        first=PORT_SEEDS[8],
        nodes=9,
    ),
    "a node is left for its slow network while attempts make progress": Mutant(
        "controller/machines.py",
        "fails = state.fruitless >= PUZZLING",
        "fails = True",
        Promise.BLAME,
        first=PORT_SEEDS[8],
        nodes=9,
    ),
    "a network that is slow stays a fault of its node while it trains": Mutant(
        "controller/machines.py",
        "if one.condition == SLOW_NETWORK:",
        "if one.condition == CONDITION:",
        Promise.EFFICIENCY,
        first=PORT_SEEDS[8],
        nodes=9,
    ),
}
