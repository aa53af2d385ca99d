"""Switching the integration of a trainer on in a script that does not ask for it.

Only in a worker of a job with `integrate: auto`, and only once the script, or what it imports, has
imported the trainer: nothing else of a script is touched. The integrations are imported by name and
no earlier, because they import what they integrate. What is waited for is a module after which all
of that is whole: Lightning's trainer is imported while the packages around it are not.
"""

import importlib
import sys
from types import ModuleType

from holdfast import later_imports

INTEGRATIONS = {
    "transformers.trainer": "holdfast.integrations.transformers",
    "lightning.pytorch": "holdfast.integrations.lightning",
}


def watch() -> None:
    """From now on, keep the trainings of trainers that we know."""
    later_imports.when_imported(dict.fromkeys(INTEGRATIONS, _switch_on))


def _switch_on(trainer: ModuleType) -> None:
    name = INTEGRATIONS[trainer.__name__]
    try:
        importlib.import_module(name).switch_on()
    except Exception as error:  # the script would run without us
        print(f"holdfast: {name} is not used: {type(error).__name__}: {error}", file=sys.stderr)
