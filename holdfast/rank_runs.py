"""Sets of ranks as runs with a step: a data-parallel group of ranks 0, 8, 16, ... is one.

Rows without a gap (`events.Ranks`) hold such a group rank by rank: of 12,500 nodes that are 12,500
rows, told by each rank of each node. The process groups of a mesh are runs of its dimensions, so
the members of one take a few numbers whatever the size of the job.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated

from msgspec import Meta

RankRuns = tuple[tuple[int, int, Annotated[int, Meta(ge=1)]], ...]
"""Ascending: start, stop and step of each `range`. Equal for the same ranks."""


def in_runs(ranks: Iterable[int]) -> RankRuns:
    """Ranks as few runs, each as long as it goes, in O(n log n)."""
    left, found, at = sorted(set(ranks)), list[tuple[int, int, int]](), 0
    while at < len(left):
        step = left[at + 1] - left[at] if at + 1 < len(left) else 1
        end = at
        while end + 1 < len(left) and left[end + 1] - left[end] == step:
            end += 1
        found.append((left[at], left[end] + 1, step if end > at else 1))
        at = end + 1
    return tuple(found)


def each_in(runs: RankRuns) -> Iterator[int]:
    """The single ranks, ascending."""
    return (rank for run in runs for rank in range(*run))


def count_in(runs: RankRuns) -> int:
    """How many they are, without counting them one by one."""
    return sum(len(range(*run)) for run in runs)
