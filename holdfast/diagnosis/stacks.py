"""Stacks of many ranks as a prefix tree: where they are together, and where they part.

Ranks that hang in a collective stand at the same place; whoever they wait for stands elsewhere. So
branches come the smallest first.
"""

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.events import Ranks, each_of, in_rows
from holdfast.stacks import StackGroup


class Branch(NamedTuple):
    """`frames` that all these ranks have in common, after those of the branch above; then each is
    at one of the places below. `ended` are groups whose stack ends here."""

    frames: tuple[str, ...]
    ranks: Ranks
    ended: tuple[StackGroup, ...]
    below: tuple["Branch", ...]


def tree(groups: Sequence[StackGroup]) -> Branch:
    """Of groups whose stacks could be read."""
    return _branch(sorted(groups, key=lambda group: group.frames), 0)


def _branch(groups: Sequence[StackGroup], depth: int) -> Branch:
    common = depth + _shared(groups, depth)
    ended = tuple(group for group in groups if len(group.frames) == common)
    ways: dict[str, list[StackGroup]] = {}
    for group in groups:
        if len(group.frames) > common:
            ways.setdefault(group.frames[common], []).append(group)
    below = sorted((_branch(way, common) for way in ways.values()), key=_rarest_first)
    frames = groups[0].frames[depth:common] if groups else ()
    return Branch(frames, _ranks(groups), ended, tuple(below))


def _shared(groups: Sequence[StackGroup], depth: int) -> int:
    """How many frames from `depth` on all of them share; they are sorted."""
    if not groups:
        return 0
    first, last = groups[0].frames[depth:], groups[-1].frames[depth:]
    shared = 0
    for one, other in zip(first, last, strict=False):
        if one != other:
            break
        shared += 1
    return shared


def _ranks(groups: Sequence[StackGroup]) -> Ranks:
    return in_rows(rank for group in groups for rank in each_of(group.ranks))


def _rarest_first(branch: Branch) -> tuple[int, Ranks]:
    return sum(last - first + 1 for first, last in branch.ranks), branch.ranks
