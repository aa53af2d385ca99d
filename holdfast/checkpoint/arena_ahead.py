"""The arena of a worker that waits for its rank, mapped before the rank comes.

Each page that a process uses for the first time costs a fault, and the arena has twice the state of
training. A worker that only begins with it when it has a rank does that beside its restore and its
first step, on cores that both want. The memory is there already, written by the attempts before;
all that a process of its own needs is page tables, and those can be filled while it waits.
"""

import os
from collections.abc import Callable

from holdfast.checkpoint.arena import Arena

FD = "HOLDFAST_ARENA_FD"
LOOK_S = 1.0  # between two looks for what has come: the first attempt may have just begun
_mapped: dict[int, Arena] = {}


def map_while_waiting(has_come: Callable[[float], bool]) -> None:
    """Map what comes to be in this worker's arena, until the rank `has_come` (within so many
    seconds)."""
    while FD in os.environ and not has_come(LOOK_S):
        map_present(lambda: has_come(0.0))


def map_present(stops: Callable[[], bool]) -> None:
    """Map what is in this worker's arena now, until it `stops`; `arena_of` gives it afterwards."""
    if FD in os.environ:
        fd = int(os.environ[FD])
        _mapped.setdefault(fd, Arena(fd)).map_ahead(stops)


def arena_of(fd: int) -> Arena:
    """The arena that was mapped while this process waited, or a new one."""
    return _mapped.pop(fd, None) or Arena(fd)
