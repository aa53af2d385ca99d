"""Ranks that have entered fewer collectives than others by the end of the same step: one was left
out.

Collectives are matched by their order. Where a rank leaves one out once, its next one is matched
with the one before it of the others: nothing waits for ever, nothing fails, and from then on the
gradients of different steps are averaged. What shows it is how many collectives of a group each
rank has entered by the end of a step: that has to be the same number on all of its ranks.

There are groups in which that is not so and nothing is wrong: those of other threads, of ranks that
do steps of their own kind, or that meet less often than once a step. So it is told only where

- all ranks had agreed before, over some steps in a row, and have never differed otherwise;
- since one step they differ by the same in each of the steps that are known, and still do so at the
  next question, some steps later;
- each rank has entered at least one collective of the group in each of these steps;
- the ranks with fewer collectives are ahead in time: they end each step a good part of a step
  before the others do, because only what they do in the next one lets those end theirs.

The majority is right. Of two ranks it is the one that did something unusual in the first step of
which they differ; where that step is not known any more, nobody is blamed.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from holdfast.collectives import CollectivePace, RankTimes
from holdfast.detection.samples import MICROSECOND, Sample, median_low
from holdfast.events import CollectivesShifted, in_rows

STEPS_MIN = 8  # in a row, that ranks have to agree, or to differ
ENDS_MIN = 4  # of steps, by which ranks are compared in time
AHEAD, AHEAD_LEAST = 0.25, 0.1  # of a step: in the median, and in each of them
USUAL_OF = 16  # steps before one that show what is usual

Group = tuple[str, object]


class Course:
    """How many collectives of one group a rank had entered by the end of each step."""

    def __init__(self, pace: CollectivePace) -> None:
        self.points = pace.points
        self.first, self.last = pace.points[0][0], pace.points[-1][0]

    def at(self, step: int) -> int:
        """By the end of this step, which lies between the first and the last."""
        for (start, begun), (end, done) in itertools.pairwise(self.points):
            if start <= step <= end:
                return begun + (done - begun) * (step - start) // (end - start)
        return self.points[-1][1]

    def never_rests(self, since: int) -> bool:
        """Whether it has entered one in each step after this one."""
        steps = range(max(since, self.first), self.last)
        return all(self.at(step + 1) > self.at(step) for step in steps)

    def unusual(self, step: int) -> bool | None:
        """Whether it entered another number in this step than in those before it; None: unknown."""
        before = range(max(self.first, step - USUAL_OF), step - 1)
        if len(before) < ENDS_MIN or step > self.last:
            return None
        counts = Counter(self.at(one + 1) - self.at(one) for one in before)
        return counts.most_common(1)[0][0] != self.at(step) - self.at(step - 1)


class Parting(NamedTuple):
    """Since when ranks differ, and each by how many collectives from the first of them."""

    agreed: int  # newest step by the end of which all had entered as many
    last: int  # newest that is known of all
    apart: tuple[tuple[int, int], ...]  # rank, and by how much
    wrong: tuple[int, ...]  # ranks; nobody if that cannot be told


class ShiftWatch:
    """The groups of the attempt under way."""

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, attempt: int) -> None:
        """Forget everything and watch this attempt."""
        self._attempt = attempt
        self._agreed: dict[Group, int] = {}
        self._loose: set[Group] = set()  # in which a difference means nothing
        self._split: dict[Group, Parting] = {}
        self._told = False

    @property
    def suspects(self) -> bool:
        """Whether another question soon may confirm something."""
        return bool(self._split) and not self._told

    def observe(self, sample: Sample) -> CollectivesShifted | None:
        """Take in a sample; tells of the first group that is shifted, once in an attempt."""
        if self._told:
            return None
        known = {times.rank: times for times in sample.ranks}
        for group, courses in _by_group(sample.ranks).items():
            split = self._look(group, courses)
            before = self._split.pop(group, None)
            if split is None or not _is_ahead(split, known, sample):
                continue
            same = before is not None and before.apart == split.apart
            self._split[group] = before if before is not None and same else split
            if before is not None and same and split.last - before.last >= STEPS_MIN:
                self._told = True
                return _told(self._attempt, group, before, split, known)
        return None

    def _look(self, group: Group, courses: Mapping[int, Course]) -> Parting | None:
        """Whether these ranks, which agreed once, differ now."""
        first = max(course.first for course in courses.values())
        last = min(course.last for course in courses.values())
        if group in self._loose or last - first < STEPS_MIN:
            return None
        bends = {step for course in courses.values() for step, _ in course.points}
        steps = [first, *sorted(step for step in bends if first < step < last), last]
        rows = [(step, _apart(courses, step)) for step in steps]
        alike = list(itertools.takewhile(lambda row: not any(row[1]), rows))
        rest = rows[len(alike) :]
        if alike and (group in self._agreed or alike[-1][0] - first >= STEPS_MIN):
            self._agreed[group] = max(alike[-1][0], self._agreed.get(group, 0))
        if not rest:
            return None
        if len({row[1] for row in rest}) > 1:
            self._loose.add(group)
            return None
        agreed, since = self._agreed.get(group), rest[0][0]
        if agreed is None or last - since < STEPS_MIN:
            return None  # of other kinds from the beginning; or too early to say
        if not all(course.never_rests(since) for course in courses.values()):
            return None
        apart = tuple(zip(courses, rest[0][1], strict=True))
        return Parting(agreed, last, apart, _wrong(apart, courses, since if alike else None))


def _by_group(ranks: Iterable[RankTimes]) -> dict[Group, dict[int, Course]]:
    """Those of which two ranks are known, with a course of each rank."""
    found: dict[Group, dict[int, Course]] = {}
    for times in sorted(ranks, key=lambda times: times.rank):
        for pace in times.paces:
            if len(pace.points) > 1:
                found.setdefault((pace.name, pace.members), {})[times.rank] = Course(pace)
    return {group: courses for group, courses in found.items() if len(courses) > 1}


def _apart(courses: Mapping[int, Course], step: int) -> tuple[int, ...]:
    entered = [course.at(step) for course in courses.values()]
    return tuple(count - entered[0] for count in entered)


def _is_ahead(split: Parting, known: Mapping[int, RankTimes], sample: Sample) -> bool:
    """Whether the ranks with fewer collectives end their steps before those with more."""
    least, most = min(by for _, by in split.apart), max(by for _, by in split.apart)
    ahead = [known[rank] for rank, by in split.apart if by == least]
    behind = [known[rank] for rank, by in split.apart if by == most]
    return all(_leads(one, other, sample) for one in ahead for other in behind[:1])


def _leads(one: RankTimes, other: RankTimes, sample: Sample) -> bool:
    clocks = [sample.clocks.get(times.rank) for times in (one, other)]
    if clocks[0] is None or clocks[1] is None:
        return False
    ends = dict(one.steps)
    leads = [
        (at - clocks[1][0]) - (ends[step] - clocks[0][0])
        for step, at in other.steps
        if step in ends
    ]
    doubt_us = 0.0 if clocks[0] == clocks[1] else clocks[0][1] + clocks[1][1]
    step_us = _step_s(other) / MICROSECOND
    if len(leads) < ENDS_MIN or not step_us:
        return False
    return (
        median_low(leads) - doubt_us >= AHEAD * step_us
        and min(leads) - doubt_us >= AHEAD_LEAST * step_us
    )


def _step_s(times: RankTimes) -> float:
    took = [after - at for (_, at), (_, after) in itertools.pairwise(times.steps)]
    return median_low(took) * MICROSECOND if took else 0.0


def _wrong(
    apart: Sequence[tuple[int, int]], courses: Mapping[int, Course], begun: int | None
) -> tuple[int, ...]:
    """The minority or, of two ranks, the one that did something unusual in the step `begun`, if
    that is known."""
    [(most, count), *_] = Counter(by for _, by in apart).most_common()
    if 2 * count > len(apart):
        return tuple(rank for rank, by in apart if by != most)
    unusual = [r for r, course in courses.items() if begun is not None and course.unusual(begun)]
    return tuple(unusual) if len(unusual) == 1 else ()


def _told(
    attempt: int, group: Group, first: Parting, now: Parting, known: Mapping[int, RankTimes]
) -> CollectivesShifted:
    by = dict(now.apart)
    right = next(count for rank, count in by.items() if rank not in first.wrong)
    least, most = min(by.values()), max(by.values())
    one = known[next(iter(by))]
    names = {log.name: log.description for log in one.groups if log.description}
    return CollectivesShifted(
        attempt=attempt,
        group=names.get(group[0], group[0]),
        agreed=first.agreed,
        step=now.last,
        compared=len(by),
        ranks=in_rows(first.wrong),
        by=by[first.wrong[0]] - right if first.wrong else least - most,
        ago_s=round((now.last - first.agreed) * _step_s(one), 3),
    )
