"""From the times of steady.py to what a step costs; pure.

A step is measured from its beginning to the beginning of the next one of the same loop, so that
everything the loop does between two steps is in it. The last step before the other loop's turn has
no such end and is left out.
"""

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

from table import Row

WARM_UP = 16  # steps of each loop left out at the beginning: lazy allocations, the first snapshot

Times = Sequence[tuple[str, float, float]]  # loop; beginning and end of the step's own work, s


class Length(NamedTuple):
    """One step: all of it, and the part that is not its own work; seconds."""

    step_s: float
    between_s: float


def lengths(times: Times, loop: str) -> list[Length]:
    """The whole steps of one loop after the warm-up."""
    begins = [began for name, began, _ in times if name == loop][WARM_UP:]
    first = begins[0] if begins else float("inf")
    return [
        Length(after[1] - before[1], after[1] - before[2])
        for before, after in pairwise(times)
        if before[0] == after[0] == loop and before[1] >= first
    ]


def row(blocks: Sequence[Times], loop: str, agent_cpu: float | None) -> Row:
    """One contestant's line; its overhead is that over the bare loop of the same processes."""
    measured = [lengths(times, loop) for times in blocks]
    bare = [lengths(times, "plain") for times in blocks]
    both = list(zip(measured, bare, strict=True))
    return {
        "n": sum(map(len, measured)),
        "blocks": len(blocks),
        "median_s": round(median(map(_median, measured)), 6),
        "overhead": round(median(_median(own) / _median(other) for own, other in both) - 1, 5),
        "overhead_mean": round(median(_mean(own) / _mean(other) for own, other in both) - 1, 5),
        "between_s": round(median(fmean(x.between_s for x in own) for own in measured), 7),
        "agent_cpu": None if agent_cpu is None else round(agent_cpu, 5),
    }


def _median(steps: Sequence[Length]) -> float:
    return median(step.step_s for step in steps)


def _mean(steps: Sequence[Length]) -> float:
    return fmean(step.step_s for step in steps)
