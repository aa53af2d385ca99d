"""How the samples of a step are dealt to any number of ranks. Pure; `train` does it."""

from typing import NamedTuple


class Turn(NamedTuple):
    """The samples of one step: positions `first` up to `first + size` of an epoch."""

    epoch: int
    first: int
    size: int


def next_turn(epoch: int, used: int, *, count: int, whole: int, least: int) -> Turn:
    """The step after so many samples of an epoch of `count` are used: `whole` samples, or what is
    left if that is at least `least`; else the next epoch begins."""
    size = min(whole, count - used)
    return Turn(epoch, used, size) if size >= least else Turn(epoch + 1, 0, min(whole, count))


def share(turn: Turn, rank: int, ranks: int) -> range:
    """The positions that are this rank's: as many as any other's, or one more."""
    first, last = turn.size * rank // ranks, turn.size * (rank + 1) // ranks
    return range(turn.first + first, turn.first + last)
