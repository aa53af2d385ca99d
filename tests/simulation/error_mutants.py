"""Planted bugs in how it is told whose an error is that comes again; see `mutants`."""

from holdfast.simulation.environment import Promise
from holdfast.simulation.hardship import ERROR_SEEDS
from tests.simulation.mutant import Mutant

JUDGE, RECOVERY = "diagnosis/code_or_machine.py", "controller/recovery.py"

OF_ERRORS: dict[str, Mutant] = {
    "the same error at any step is the code's": Mutant(
        JUDGE,
        "here = [one for one in same if one.step == now.step]",
        "here = same",
        Promise.BLAME,
        first=ERROR_SEEDS[0],
    ),
    "it is not asked whether others had the error": Mutant(
        JUDGE,
        "return often and len(_names(times)) == 1 and any(one.rank for one in times)",
        "return often",
        Promise.BLAME,
        first=ERROR_SEEDS[0],
    ),
    "what is the code's counts against the node": Mutant(
        RECOVERY,
        'cleared = bool(unproven) or (recurs is not None and recurs.whose == "code")',
        "cleared = False",
        Promise.BLAME,
        first=ERROR_SEEDS[8],
        nodes=5,
    ),
    "no error of a device is an update's": Mutant(
        "controller/versions.py",
        'innocent = cause in INNOCENT and (recurs is None or recurs.whose != "code")',
        "innocent = cause in INNOCENT",
        Promise.BLAME,
        first=ERROR_SEEDS[0],
    ),
}
