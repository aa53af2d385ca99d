"""Whose clock differs from those of the others, by more than the comparison may be wrong.

Clocks are compared with the controller's, which may be the wrong one: it runs on from when its
process began, whatever its machine is set to since. So what counts is the distance from the median
of all, its own among them. Of two nodes it is then the one that is alone.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

CONDITION = "clock-skew"
LIMIT_S = 1.0  # logs of nodes cannot be put in order by their times; tokens and leases come later
ADVICE = "check the time service on its machine: chronyc tracking, timedatectl"


class ClockOffset(NamedTuple):
    """How far a clock is ahead of the controller's, and by how much that may be wrong."""

    ahead_s: float
    doubt_s: float


OURS = ClockOffset(0.0, 0.0)


def skews(clocks: Mapping[str, ClockOffset], told: Sequence[str]) -> dict[str, str]:
    """Nodes of which it is certain now that their clock differs from the others' by more than a
    second, with a sentence for people, or does not any more, with nothing. Not those that were
    `told`, nor of fewer than two."""
    if len(clocks) < 2:
        return {}
    middle = _median([OURS, *clocks.values()])
    found = {}
    for node, clock in clocks.items():
        off_s, doubt_s = clock.ahead_s - middle.ahead_s, clock.doubt_s + middle.doubt_s
        if node not in told and abs(off_s) - doubt_s > LIMIT_S:
            how = "ahead of" if off_s > 0 else "behind"
            by = f"{abs(off_s):.1f} s (give or take {doubt_s:.1g} s)"
            found[node] = f"its clock is {by} {how} those of the others"
        elif node in told and abs(off_s) + doubt_s <= LIMIT_S:
            found[node] = ""
    return found


def _median(clocks: Sequence[ClockOffset]) -> ClockOffset:
    return sorted(clocks)[(len(clocks) - 1) // 2]
