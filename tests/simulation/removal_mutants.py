"""Planted bugs in what follows where a limit keeps a node that is to be left; see `mutants`."""

from holdfast.simulation.environment import Promise
from holdfast.simulation.hardship import DEAD_SEEDS
from tests.simulation.mutant import Mutant

HELD_BACK = "controller/policies/held_back.py"

OF_REMOVALS: dict[str, Mutant] = {
    "restarts with a node that only a limit keeps count": Mutant(
        HELD_BACK,
        "return s.history.stays",
        "return False",
        Promise.RATE,
        first=DEAD_SEEDS[0],
    ),
    "attempts with such a node follow at once": Mutant(
        HELD_BACK,
        "return min(wait_s, s.means.held_s)",
        "return 0.0",
        Promise.RATE,
        first=DEAD_SEEDS[0],
    ),
}
