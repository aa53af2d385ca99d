"""`planting.main`: looks in worlds of the package with a planted bug, until its promise breaks.

Runs in a process forked from one that has imported everything (`tests.warm`). The bug takes the
place of the sound line where that has been imported: in the code of the function that it is in.
"""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from holdfast.simulation import swarm

SEEDS = 60  # a bug that is seen this rarely costs the suite a minute: begin where it is seen


def main() -> None:
    """`FILE PROMISE FIRST HOURS NODES`, and on standard input the source of FILE with the bug."""
    file, promise, first, hours, nodes = sys.argv[1:]
    plant(Path(file), sys.stdin.read())
    for seed in range(int(first), int(first) + SEEDS):
        foul = swarm.run(seed, hours=float(hours), nodes=int(nodes))[0].foul
        if foul.startswith(f"{promise} at "):
            print(seed)
            return


def plant(file: Path, source: str) -> None:
    """Change the functions of an imported module that differ from those of this source."""
    (module,) = (m for m in sys.modules.values() if getattr(m, "__file__", None) == str(file))
    sound = compile(file.read_text(), file, "exec", dont_inherit=True)
    planted = compile(source, file, "exec", dont_inherit=True)
    found = list(_different(sound, planted))
    assert found, "no function changes: quote the use of a constant, not its definition"
    for old, new in found:
        function = _function(module, old.co_qualname)
        assert function.__code__ == old, f"{old.co_qualname} is not what the file says"
        function.__code__ = new


def _different(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Functions whose code differs, outermost first; what they contain goes with them."""
    if old == new:
        return
    if old.co_flags & inspect.CO_OPTIMIZED:  # of a function; not of a module or class
        yield old, new
        return
    parts = (
        [const for const in code.co_consts if isinstance(const, CodeType)] for code in (old, new)
    )
    for pair in zip(*parts, strict=True):
        yield from _different(*pair)


def _function(module: ModuleType, name: str) -> FunctionType:
    """The function that a module or a class in it defines under this name."""
    found: Any = module
    for step in name.split("."):
        found = vars(found)[step]
    found = getattr(found, "fget", None) or getattr(found, "__func__", found)
    found = inspect.unwrap(found)
    assert isinstance(found, FunctionType), name
    return found
