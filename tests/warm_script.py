"""The program of `tests.warm.Script`: runs its first word as `python -c` would."""

import sys
from types import ModuleType


def main() -> None:
    """In a `__main__` of its own."""
    _, script = sys.argv
    sys.argv = ["-c"]
    sys.modules["__main__"] = ModuleType("__main__")
    exec(compile(script, "<string>", "exec"), vars(sys.modules["__main__"]))
