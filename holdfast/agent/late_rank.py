"""Libraries that note the rank when they are imported, imported before there is one.

Lightning and torchmetrics do it, and so do libraries that have taken it over from them: a decorator
with the line `rank_zero_only.rank = getattr(rank_zero_only, "rank", ...)` below it. Such a line is
known by its text. It leaves a placeholder, and is run again once there is a rank. Whoever looks at
the placeholder before has to wait for the rank, as whoever looks into the environment has.

Whatever else looks for the rank at import is not known to be repeatable (`preloading`).
"""

import linecache
import operator
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from holdfast import rank

NOTES = "rank_zero_only"
_LINE = f"{NOTES}.rank = getattr({NOTES}, "
_lines: dict[str, str] = {}  # by the module: a line that is to be run again
_unheld: set[str] = set()  # those that have no placeholder yet


class LateRank:
    """A number that is not known yet; asking for it waits until it is."""

    def __init__(self, noting: Any) -> None:
        self._noting = noting

    def __index__(self) -> int:
        rank.need(f"{NOTES}.rank")
        found = self._noting.rank
        return 0 if isinstance(found, LateRank) else int(found)

    __int__ = __hash__ = __index__

    def __bool__(self) -> bool:
        return self.__index__() != 0

    def __repr__(self) -> str:
        return repr(self.__index__())

    def __format__(self, spec: str) -> str:
        return format(self.__index__(), spec)


def _compared(how: Callable[[Any, Any], Any]) -> Callable[[LateRank, Any], Any]:
    return lambda self, other: how(self.__index__(), other)


for _name in ("eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "mod", "floordiv"):
    setattr(LateRank, f"__{_name}__", _compared(getattr(operator, _name)))


def is_noted(frame: FrameType) -> bool:
    """Whether it is such a line that looks for the rank, in this frame or by a function beside it;
    the module is then remembered."""
    names = frame.f_globals
    while frame.f_back is not None and frame.f_back.f_globals is names:
        frame = frame.f_back
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    if frame.f_code.co_name != "<module>" or not line.startswith(_LINE):
        return False
    _lines[names["__name__"]] = line
    _unheld.add(names["__name__"])
    return True


def hold_places() -> None:
    """After an import: placeholders for what was noted in it."""
    for noting in _noting():
        if not isinstance(noting.rank, LateRank):
            noting.rank = LateRank(noting)
    _unheld.clear()


def settle() -> None:
    """There is a rank: note it as the libraries would have; also in an import that goes on."""
    for module, line in _lines.items():
        noting: Any = getattr(sys.modules.get(module), NOTES, None)
        held = isinstance(getattr(noting, "rank", None), LateRank)
        if held or (module in _unheld and hasattr(noting, "rank")):
            del noting.rank
            exec(line, vars(sys.modules[module]))
    _lines.clear()
    _unheld.clear()


def _noting() -> list[Any]:
    found = (getattr(sys.modules.get(module), NOTES, None) for module in _lines)
    return [one for one in found if hasattr(one, "rank")]
