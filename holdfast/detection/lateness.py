"""How much later than others each rank enters its collectives, second by second.

A collective ends when its last member has entered it, so in a synchronous training one slow rank
makes all of them equally slow: step times tell nothing, and who enters last tells all. A rank's
delay at a collective is that behind the median of the others. Only collectives count that somebody
waited in: where most others entered the next one before the last came to this one, nobody waited
yet, and the delay is counted where it is paid.

Delays are summed by the second, because those of one second are not independent of each other: a
machine that is busy for a moment is late in all of them. Groups with the same members are summed,
too: a step waits for its slow rank once, in the first that it comes to, and in the others nobody is
late any more.

Clocks of nodes differ. They are compared through the controller's, as by NTP (RFC 5905, section 8):
half the round trip is the most that such a comparison is wrong by.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.collectives import GroupLog, RankTimes
from holdfast.detection.samples import MICROSECOND, Sample
from holdfast.rank_runs import count_in, each_in

SECOND_S = 1.0

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Members = object  # what tells groups of other members apart


class Lateness(NamedTuple):
    """Of all groups with the same members, second after second; a collective that takes longer is
    one. `late_s`: by which each of its ranks, a column, was behind the others, in sum; negative
    where it came early, NaN where it did not answer."""

    ranks: tuple[int, ...]
    numbers: Integers  # of the seconds, ascending
    waits: Floats  # collectives that somebody waited in
    spans_s: Floats
    late_s: Floats
    doubts_s: Floats  # how wrong each delay may be because clocks differ

    def plus(self, later: "Lateness") -> "Lateness":
        """With what came after it."""
        if self.ranks != later.ranks:  # members are unknown, and others have answered
            return later
        return self._with(later, np.add)

    def beside(self, other: "Lateness") -> "Lateness":
        """With another group of the same members."""
        if self.ranks != other.ranks:
            return max(self, other, key=lambda one: len(one.ranks))
        return self._with(other, np.maximum)

    def _with(self, other: "Lateness", both: "np.ufunc") -> "Lateness":
        """`both`: how times, and numbers of waits, of the same second become one."""
        numbers = np.concatenate((self.numbers, other.numbers))
        order = np.argsort(numbers, kind="stable")
        numbers, first = np.unique(numbers[order], return_index=True)
        if not len(numbers):
            return self

        def reduced(mine: Floats, others: Floats, how: "np.ufunc") -> Floats:
            one: Floats = how.reduceat(np.concatenate((mine, others))[order], first, axis=0)
            return one

        return Lateness(
            self.ranks,
            numbers,
            reduced(self.waits, other.waits, both),
            reduced(self.spans_s, other.spans_s, both),
            reduced(self.late_s, other.late_s, np.add),
            reduced(self.doubts_s, other.doubts_s, np.maximum),
        )

    def since(self, at: float, most: int) -> "Lateness":
        """So many of its newest seconds from this time on."""
        first = int(np.searchsorted(self.numbers, at / SECOND_S - 1, side="right"))
        return self._part(slice(max(first, len(self.numbers) - most), None))

    def until(self, rest: "Lateness") -> "Lateness":
        """All but its newest seconds."""
        return self._part(slice(len(self.numbers) - len(rest.numbers)))

    def _part(self, kept: slice) -> "Lateness":
        return Lateness(
            self.ranks,
            *(self.numbers[kept], self.waits[kept], self.spans_s[kept], self.late_s[kept]),
            self.doubts_s[kept],
        )

    @property
    def shares(self) -> Floats:
        """Of the time that the others lose with each rank: a row for each second."""
        shares: Floats = self.late_s / self.spans_s[:, None]
        return shares

    @property
    def delay_s(self) -> Floats:
        """Of each rank, at a collective that somebody waited in."""
        mean: Floats = np.nansum(self.late_s, axis=0) / np.sum(self.waits)
        return mean

    @property
    def doubt_s(self) -> float:
        """How wrong such a delay may be because clocks differ."""
        return float(np.sum(self.waits * self.doubts_s) / np.sum(self.waits))


def delays(sample: Sample, since: Iterable[RankTimes]) -> dict[Members, Lateness]:
    """Of each group that has two ranks here, of collectives that were not in the sample `since`.
    Costs O(n log n) for n times in the sample."""
    groups: dict[tuple[str, Members], list[tuple[int, GroupLog]]] = {}
    for times in sample.ranks:
        for log in times.groups:
            if log.recent:
                groups.setdefault((log.name, log.members), []).append((times.rank, log))
    found: dict[Members, Lateness] = {}
    seen_until = _seen_until(since)
    for (name, members), logs in groups.items():
        if len(logs) > 1 and len(logs) * 2 > count_in(logs[0][1].members):
            course = _of_group(logs, sample, seen_until.get((name, members), 0))
            alike = members or name
            found[alike] = found[alike].beside(course) if alike in found else course
    return found


def _seen_until(since: Iterable[RankTimes]) -> dict[tuple[str, Members], int]:
    """The newest collective of each group that all of its ranks had entered."""
    found: dict[tuple[str, Members], int] = {}
    for log in (log for times in since for log in times.groups if log.recent):
        group = (log.name, log.members)
        found[group] = min(log.last.sequence, found.get(group, log.last.sequence))
    return found


def _of_group(logs: Sequence[tuple[int, GroupLog]], sample: Sample, seen_until: int) -> Lateness:
    """Only collectives count that all have entered, and the one after them, too."""
    here = [rank for rank, _ in logs]
    ranks = tuple(each_in(logs[0][1].members)) or tuple(here)
    clocks = [sample.clocks.get(rank, (0.0, math.inf)) for rank in here]
    first = max(max(log.recent[0].sequence for _, log in logs), seen_until)
    entered = [
        {c.sequence: (c.entered_us - clock[0]) * MICROSECOND for c in log.recent}
        for (_, log), clock in zip(logs, clocks, strict=True)
    ]
    known = sorted(n for n in set.intersection(*map(set, entered)) if n >= first)
    rows = np.array([[times[n] for times in entered] for n in known]).reshape(-1, len(here))
    course = _by_second(rows, ranks, _doubt_s(clocks))
    place = {rank: number for number, rank in enumerate(ranks)}
    late_s = np.full((len(course.numbers), len(ranks)), math.nan)
    late_s[:, [place[rank] for rank in here]] = course.late_s
    return course._replace(late_s=late_s)


def _by_second(rows: Floats, ranks: tuple[int, ...], doubt_s: float) -> Lateness:
    """When each rank, a column, entered each collective, a row; by when most did."""
    ordered = np.sort(rows, axis=1)
    at, last = ordered[:, (ordered.shape[1] - 1) // 2], ordered[:, -1]
    paid = (at[1:] >= last[:-1]).astype(float)  # else nobody waited for the last one yet
    numbers, first = np.unique(np.floor(at[:-1] / SECOND_S).astype(int), return_index=True)
    late_s = _behind_others(rows, ordered)[:-1] * paid[:, None]
    if not len(first):
        return Lateness(ranks, numbers, np.zeros(0), np.zeros(0), late_s, np.zeros(0))
    waits, spans_s = np.add.reduceat(paid, first), np.add.reduceat(np.diff(at), first)
    late_s = np.add.reduceat(late_s, first, axis=0)
    some = (waits > 0) & (spans_s > 0)
    doubts_s = np.full(np.count_nonzero(some), doubt_s)
    return Lateness(ranks, numbers[some], waits[some], spans_s[some], late_s[some], doubts_s)


def _behind_others(rows: Floats, ordered: Floats) -> Floats:
    """Of each, behind the lower median of the others."""
    count = rows.shape[1]
    place = (count - 2) // 2
    below, middle = ordered[:, [place]], ordered[:, [min(place + 1, count - 1)]]
    behind: Floats = rows - np.where(rows > below, below, middle)
    return behind


def _doubt_s(clocks: Sequence[tuple[float, float]]) -> float:
    """How wrong a comparison may be; ranks of one node have one clock."""
    if len(set(clocks)) == 1:
        return 0.0
    return 2 * max(doubt_us for _, doubt_us in clocks) * MICROSECOND
