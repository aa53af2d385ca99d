"""Ranks that are slow in a simulated world, and when everybody enters the collectives.

A step has four collectives that all ranks take part in. None is over before the slowest rank has
entered it; each rank begins to compute the next one's input then. So the times at which ranks enter
show who is slow, and not how slow the network is, as in a real job. How long the others compute
varies by a tenth, by a formula instead of dice: worlds in which nobody asks are none the poorer.
"""

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.collectives import Collective, GroupLog
from holdfast.simulation.tempo import Tempo

A_STEP = 4  # collectives
KEPT = 32  # collectives that a recorder has room for
VARIES = 0.1  # of the time that a rank computes
GROUP = "default_pg"
MICROSECONDS = 1e6
EPOCH = 1_700_000_000.0
APART_S = 0.1  # by which the wall clocks of nodes differ, and its multiples


class Slow(NamedTuple):
    """A node whose workers, or one of them, take `times` as long."""

    times: float
    place: int | None  # of the worker; None: all of the node
    starved: bool  # they wait for a processor
    since: float
    profiled: bool = False  # it is for that, and nobody is to be blamed

    def takes(self, place: int) -> bool:
        """Whether this worker is slow."""
        return self.place is None or self.place == place

    def starved_s(self, now: float) -> float:
        """What it has waited for a processor meanwhile."""
        return (now - self.since) * (1 - 1 / self.times) if self.starved else 0.0


def wall_clock_us(number: int, now: float) -> int:
    """Of a node: they are apart, by less than is told of."""
    return int((now + _ahead_s(number)) * MICROSECONDS)


def _ahead_s(number: int) -> float:
    return (number % 7 - 3) * APART_S + EPOCH


class Meeting(NamedTuple):
    """One collective: when the one before it was over, when it is over itself, and for how long
    sound ranks compute before they enter it."""

    sequence: int
    since: float
    until: float
    compute_s: float


def meetings(
    tempo: Tempo, first: int, after: int, now: float, step_s: float, most: int
) -> list[Meeting]:
    """The newest, at most so many, with a number above `after` of those that all ranks have entered
    by now. `first` is the first step of the attempt, and `step_s` what sound ranks need for one."""
    done, found = tempo.step_at(now), []
    begun = max(first + 1 + after // A_STEP, done + 1 - -(-most // A_STEP))
    begin, compute_s = tempo.end_of(begun - 1), step_s / A_STEP
    for step in range(begun, done + 1):
        end = tempo.end_of(step)
        took_s = (end - begin) / A_STEP
        for place in range(A_STEP):
            sequence = (step - first - 1) * A_STEP + place + 1
            since = begin + place * took_s
            found.append(Meeting(sequence, since, since + took_s, compute_s))
        begin = end
    return [one for one in found if one.sequence > after][-most:]


def told_of(
    rank: int, world_size: int, slow: Slow | None, number: int, joins: Sequence[Meeting]
) -> GroupLog:
    """What a rank tells by the clock of its node, `slow` or not."""
    ahead_s, recent = _ahead_s(number), []
    for sequence, since, until, compute_s in joins:
        if slow is not None and since >= slow.since:
            at = min(since + slow.times * compute_s, until)
        else:
            evenly = ((rank * 0x9E3779B1 + sequence * 0x85EBCA6B) >> 8 & 0xFFFF) / 0x10000
            at = since + (1 - VARIES * evenly) * compute_s
        recent.append(Collective(sequence, int((at + ahead_s) * MICROSECONDS)))
    members, ranks = ((0, world_size, 1),), ((rank, rank),)
    return GroupLog(name=GROUP, members=members, ranks=ranks, recent=tuple(recent))
