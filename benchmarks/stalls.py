"""From the times of steady.py to what a step costs; pure.

A step is measured from its beginning to the beginning of the next, so that everything a framework
does between two steps is in it; the part outside the step's own arithmetic is also told apart,
because it is far more precise than the difference of two noisy step times.
"""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from table import Row

WARM_UP = 15  # steps left out at the beginning: lazy allocations, the first snapshot

Times = Sequence[tuple[float, float]]  # beginning of each step, end of its own work; seconds


def lengths(times: Times) -> list[float]:
    """Seconds from the beginning of each step to that of the next, warm-up left out."""
    begins = [began for began, _ in times][WARM_UP:]
    return [after - before for before, after in pairwise(begins)]


def between(times: Times) -> list[float]:
    """Seconds of each step that are not its own work, warm-up left out."""
    pairs = list(pairwise(times))[WARM_UP:]
    return [after[0] - before[1] for before, after in pairs]


def row(blocks: Sequence[Times], plain_s: float, agent_cpu: float | None) -> Row:
    """One contestant's line; `plain_s` is the step time to compare with."""
    step_s = step_time(blocks)
    outside = [_mean(between(times)) for times in blocks]
    return {
        "n": sum(len(lengths(times)) for times in blocks),
        "blocks": len(blocks),
        "median_s": round(step_s, 6),
        "mean_s": round(median(_mean(lengths(times)) for times in blocks), 6),
        "overhead": round(step_s / plain_s - 1, 5),
        "between_s": round(median(outside), 7),
        "between_median_s": round(median(median(between(times)) for times in blocks), 7),
        "between_share": round(median(outside) / step_s, 6),
        "agent_cpu": None if agent_cpu is None else round(agent_cpu, 5),
    }


def step_time(blocks: Sequence[Times]) -> float:
    """Median over the blocks of the median step."""
    return median(median(lengths(times)) for times in blocks)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
