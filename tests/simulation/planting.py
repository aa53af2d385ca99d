"""`planting.main`: looks in worlds of the package with a planted bug, until its promise breaks.

Runs in a process forked from one that has imported everything (`tests.warm`). The bug takes the
place of the sound module when that is imported, so what is above the vocabulary is forgotten and
imported once more; no planted bug is in the vocabulary, which takes the longest to import.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType

SEEDS = 500
HOURS, NODES = 6.0, 6
VOCABULARY = (
    *(
        "actions",
        "collectives",
        "digests",
        "dimensions",
        "errors",
        "events",
        "evidence",
        "files",
        "lines",
        "log_times",
        "masking",
        "messages",
        "monitoring",
    ),
    *("slugs", "spec", "status", "versions"),
)


def main() -> None:
    """`FILE PROMISE FIRST`, and on standard input the source of FILE with the bug in it."""
    file, promise, first = sys.argv[1:]
    for name in [name for name in sys.modules if _is_above(name)]:
        del sys.modules[name]
    planting = Planting(file, sys.stdin.read())
    sys.meta_path.insert(0, planting)
    swarm = importlib.import_module("holdfast.simulation.swarm")
    assert planting.done, "the bug is in no module that a world needs"
    for seed in range(int(first), int(first) + SEEDS):
        foul = swarm.run(seed, hours=HOURS, nodes=NODES)[0].foul
        if foul.startswith(f"{promise} at "):
            print(seed)
            return


def _is_above(name: str) -> bool:
    package, _, rest = name.partition(".")
    return package == "holdfast" and rest.partition(".")[0] not in ("", *VOCABULARY)


class Planting(importlib.abc.MetaPathFinder):
    """Finds the one module with the bug in it."""

    def __init__(self, file: str, source: str) -> None:
        self.file, self.source, self.done = file, source, False

    def find_spec(
        self, name: str, path: Sequence[str] | None, _: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.origin != self.file:
            return None
        spec.loader = Planted(name, self.file, self.source)
        self.done = True
        return spec


class Planted(importlib.machinery.SourceFileLoader):
    """Takes the source it was given for that of the file."""

    def __init__(self, name: str, file: str, source: str) -> None:
        super().__init__(name, file)
        self.source = source

    def get_code(self, _: str) -> CodeType:
        return compile(self.source, self.path, "exec", dont_inherit=True)
