"""The package with a planted bug, in a process of its own: `PLANT` is the beginning of its program.

The bug takes the place of the sound module when that is imported; everything else is loaded from
the compiled files as usual, which a copy of the package would not have.
"""

from pathlib import Path

import holdfast
from tests.simulation.mutants import Mutant

PLANT = """
import importlib.abc, importlib.machinery, sys

class Planted(importlib.machinery.SourceFileLoader):
    def get_code(self, name):
        return compile(sys.argv[2], self.path, "exec", dont_inherit=True)

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.origin != sys.argv[1]:
            return None
        spec.loader = Planted(name, spec.origin)
        Finder.used = True
        return spec

sys.meta_path.insert(0, Finder())
import holdfast.simulation.swarm
assert Finder.used, "the bug is in no module that a world needs"
"""


def words(mutant: Mutant) -> tuple[str, str]:
    """The arguments of such a program: the file, and its source with the bug in it.

    Raises `LookupError` as `Mutant.planted`.
    """
    file = Path(holdfast.__file__).parent / mutant.file
    return str(file), mutant.planted(file.read_text())
