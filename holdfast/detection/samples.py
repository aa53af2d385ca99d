"""What is asked of all ranks now and then: when they entered their collectives, and what they did.

Kept apart from the arithmetic on it, which needs numpy: that is loaded with the first answers, not
while a job starts.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.collectives import RankTimes

MICROSECOND = 1e-6


class Doing(NamedTuple):
    """Seconds since its start that a rank has spent with something, and how much it has done."""

    input_s: float = 0.0
    starved_s: float = 0.0  # ready to run, without a processor
    saves_s: float = 0.0
    garbage_s: float = 0.0  # in Python's garbage collector
    processor_s: float = 0.0
    tokens: float = 0.0
    stage_s: float = 0.0  # computing in its stages of a pipeline, by the end of `steps`
    steps: float = 0.0


class Sample(NamedTuple):
    """All ranks that have answered one question. Clocks are by rank, in microseconds: what has to
    be taken off its times, and by how much that may be wrong."""

    at: float
    ranks: Sequence[RankTimes]
    clocks: Mapping[int, tuple[float, float]]
    doing: Mapping[int, Doing]


def median_low(values: Sequence[float]) -> float:
    """The lower one where there are two."""
    return sorted(values)[(len(values) - 1) // 2]
