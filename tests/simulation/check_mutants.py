"""Planted bugs in what follows from checks of machines; see `mutants`."""

from holdfast.simulation.environment import Promise
from tests.simulation.mutant import Mutant

MACHINES = "controller/machines.py"

OF_CHECKS: dict[str, Mutant] = {
    "machines are left one after the other for what they share": Mutant(
        MACHINES,
        'return f"{same[-1].name} failed the same check, so {SHARED}"',
        "pass",
        Promise.EFFICIENCY,
        first=520,
    ),
}
