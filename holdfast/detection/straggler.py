"""Which ranks all others wait for, second after second: from when they enter collectives.

A straggler is late by a noticeable share of the time (the median of its seconds, so that what
happens now and then is none), in nearly each second (a sign test, so that it does not matter how
uneven steps are), evenly (a t test that knows that seconds next to each other are alike, so that a
machine that is busy in turns is none), for a quarter of a minute at least, and all that in each of
the groups that it belongs to: who waits in a small group for somebody else is late in the large one
with it, and punctual in the small one. Stages of a pipeline are compared with their like, in their
own groups. The newest seconds are judged, as few as are enough; where steps take long or are very
uneven, more of them. The more ranks there are, the more certain it has to be of each.

A mean delay within what the comparison of clocks may be wrong by blames nobody. Who is slow stays
so until it is certain that it is not. What a slow rank does meanwhile (`slow_by`) is looked at anew
with each sample, and told again if that changes.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from holdfast.detection.lateness import SECOND_S, Floats, Lateness, Members, delays
from holdfast.detection.samples import Doing, Sample
from holdfast.detection.slow_by import explain, only_waits
from holdfast.detection.stages import UNDIVIDED, Stages, StageWatch
from holdfast.events import StragglersFound
from holdfast.slow_ranks import SlowBy, Straggler

SHARE = 0.08  # of the time that others lose, at least: 1.09 times as slow
SUSPECTED = 0.06  # where it is looked at more closely
CLEARED = 0.04  # below which a straggler is none any more
SIGN_Z, STEADY_T, UNUSUAL_T = 4.0, 5.0, 4.0  # of two ranks
STEADY_UNKNOWN_T = 8.0  # where it is not known yet what is usual
CLEARED_T = 3.0
LASTS_S = 20.0
SECONDS_MIN, SECONDS_TO_CLEAR = 18, 9  # that are known, of these, to call one slow, or not
HORIZONS_S = (LASTS_S, 25.0, 30.0, 40.0, 60.0, 90.0, 150.0, 300.0, 450.0, 600.0, 900.0, 1800.0)
KEPT, KEPT_LEAST, KEPT_OF_ALL = 160, 64, 1 << 20  # seconds of a rank, and of all ranks together
SHORT = 2.0  # collectives a second, of which a second tells what is usual
BUSY_LASTS_S = 90.0  # where a rank waits for a processor: a machine is busy now and then
SUSPECTS = ((3, 3), (5, 4), (9, 8))  # late in so many of so few newest seconds: worth a closer look
NORMAL = 1.4826  # a standard deviation, of a normal distribution, by the median of what is off
TOLD_MAX = 64  # stragglers that are told


class Latecomer(NamedTuple):
    """A rank that is late: in the newest seconds that show it, and in most that do."""

    share: float
    since: float
    longest: float


class StragglerWatch:
    """Who is slow in one attempt."""

    def __init__(self, attempt: int, stages: Stages = UNDIVIDED) -> None:
        self._attempt = attempt
        self._stages, self._stage_watch = stages, StageWatch(stages)
        self._slow_stage: Straggler | None = None
        self._courses: dict[Members, Lateness] = {}
        self._newest: dict[int, float] = {}
        self._done: deque[tuple[float, Mapping[int, Doing]]] = deque()
        self._last: Sample | None = None
        self._slow: dict[int, Straggler] = {}
        self._slow_since: dict[int, float] = {}
        self._well_since: dict[int, float] = {}

    def skip(self) -> None:
        """What happens up to the next sample is not counted; who was slow still is."""
        self._last = None
        self._stage_watch.skip()

    def observe(self, sample: Sample) -> StragglersFound | None:
        """Take in a sample; returns who is slow if that are others, or for another reason."""
        last, self._last = self._last, sample
        self._done.append((sample.at, sample.doing))
        if last is None:
            return None  # what the next ones are compared with
        known = delays(sample, last.ranks).items()
        one_stage = {key: course for key, course in known if self._stages.are_one(course.ranks)}
        self._take_in(one_stage, sample)
        before, stage_before = self._slow, self._slow_stage
        self._slow, self._slow_stage = self._judged(sample), self._stage_watch.observe(sample)
        if _in_short(before) == _in_short(self._slow) and stage_before == self._slow_stage:
            return None
        worst = sorted(self._slow.values(), key=lambda one: -one.share)[:TOLD_MAX]
        worst += [self._slow_stage] if self._slow_stage is not None else []
        told = sorted(worst, key=lambda one: one.rank)
        return StragglersFound(attempt=self._attempt, stragglers=tuple(told))

    def lateness(self) -> dict[int, float]:
        """Of each rank the share of the last sample's time in which others waited for it."""
        return self._newest

    @property
    def suspects(self) -> bool:
        """Whether somebody may be slow who is not known to be: worth to ask again soon."""
        courses = self._courses.values()
        late = [
            rank for of in SUSPECTS for rank in _in_all(_seems_late(one, *of) for one in courses)
        ]
        return not self._slow.keys() >= set(late)

    def _take_in(self, found: Mapping[Members, Lateness], sample: Sample) -> None:
        since = sample.at - HORIZONS_S[-1]
        kept = min(KEPT, max(KEPT_LEAST, KEPT_OF_ALL // max(1, len(sample.ranks))))
        for members, course in found.items():
            known = self._courses.get(members)
            self._courses[members] = course if known is None else known.plus(course)
        self._courses = {
            members: course.since(since, kept) for members, course in self._courses.items()
        }
        while len(self._done) > 1 and self._done[1][0] <= since:
            self._done.popleft()
        self._newest = {}
        for course in found.values():
            for rank, share in _whole(course).items():
                self._newest[rank] = max(share, self._newest.get(rank, 0.0))

    def _judged(self, sample: Sample) -> dict[int, Straggler]:
        """Who is slow now, and why."""
        found, there = self._found(sample), {times.rank for times in sample.ranks}
        slow = {r: one for r, one in self._slow.items() if not self._is_well(r)}
        for rank, late in found.items():
            one = self._straggler(rank, found, sample)
            if rank in self._slow or (one is not None and _lasts(one, late, sample.at)):
                slow[rank] = one or slow[rank]
        slow = {rank: slow[rank] for rank in sorted(slow.keys() & there)}
        since = {rank: one.since for rank, one in found.items()} | self._slow_since
        self._slow_since = {rank: since[rank] for rank in slow}
        return slow

    def _is_well(self, rank: int) -> bool:
        """Again, who was slow."""
        return self._well_since.get(rank, -math.inf) > self._slow_since[rank]

    def _found(self, sample: Sample) -> dict[int, Latecomer]:
        """Who is late in newest seconds, of which some are enough. Of courses in which nobody is,
        only the fewest are looked at, to know who is well."""
        more = _more(len(sample.ranks))
        known = self._courses
        matter = self._slow.keys() | {r for one in known.values() for r in _maybe_late(one)}
        some = {key: one for key, one in known.items() if not matter.isdisjoint(one.ranks)}
        found: dict[int, Latecomer] = {}
        for number, (since, newest) in enumerate(_horizons(sample.at, known)):
            for rank in {r for key in (some if number else known) for r in _punctual(newest[key])}:
                self._well_since[rank] = max(since, self._well_since.get(rank, since))
            late = _in_all(_late(newest[key], known[key].until(newest[key]), more) for key in some)
            for rank, share in late.items():
                if since >= self._well_since.get(rank, since):
                    one = found.get(rank, Latecomer(share, since, since))
                    found[rank] = one._replace(longest=since)
        return found

    def _straggler(
        self, rank: int, found: Mapping[int, Latecomer], now: Sample
    ) -> Straggler | None:
        """By what it did in the seconds that show it; None if it may wait for another stage."""
        known, late = self._slow.get(rank), found[rank]
        done = (one for one in reversed(self._done) if one[0] <= late.since)
        since, doing = next(done, self._done[0])
        told = known.cause if known is not None else None
        delay_s, like = late.share * (now.at - since), self._stages.like(rank, now.doing)
        cause, text = explain(rank, delay_s, doing, like, told)
        if cause is SlowBy.ITSELF:
            waits = only_waits(rank, delay_s, doing, like)
            if self._stages.are_late_together(rank, found) if waits is None else waits:
                return None
        return Straggler(rank=rank, share=late.share, cause=cause, text=text)


def _lasts(straggler: Straggler, found: Latecomer, now: float) -> bool:
    """For long enough to be told."""
    return straggler.cause is not SlowBy.PROCESSOR or found.longest <= now - BUSY_LASTS_S


def _in_short(slow: Mapping[int, Straggler]) -> list[tuple[int, SlowBy]]:
    return [(rank, one.cause) for rank, one in slow.items()]


def _horizons(
    now: float, courses: Mapping[Members, Lateness]
) -> Iterator[tuple[float, dict[Members, Lateness]]]:
    """What is known of the newest seconds, since when; the fewest first, and no more once that is
    all."""
    longest = 0
    for since in (now - horizon_s for horizon_s in HORIZONS_S):
        some = {members: one.since(since, KEPT) for members, one in courses.items()}
        known = max((len(course.numbers) for course in some.values()), default=0)
        if known >= SECONDS_MIN and known > longest:
            longest = known
            first = min(float(one.numbers[0]) for one in some.values() if len(one.numbers))
            yield max(since, first * SECOND_S), some


def _more(ranks: int) -> float:
    """Square standard deviations by which to be more certain of each of so many than of two."""
    return 2 * math.log(max(2, ranks) / 2)


def seen_within_s(ranks: int, collective_s: float, untold_s: float = 0.0) -> float:
    """How long it takes, at most, to be certain of one of so many ranks that is late in each
    collective, if those of the newest `untold_s` are not known yet; infinite where they take too
    long for that."""
    needed = max(SECONDS_MIN, SIGN_Z**2 + _more(ranks)) + 2
    wanted_s = max(BUSY_LASTS_S, needed * max(SECOND_S, collective_s) + untold_s)
    return next((one for one in HORIZONS_S if one >= wanted_s), math.inf)


# ── of one group ──────────────────────────────────────────────────────────────────────────────


def _late(now: Lateness, before: Lateness, more: float) -> dict[int, float]:
    """Who is later than chance, clocks and what is usual in this training explain, and by which
    share; 0 for the others, of whom less has to be known. `more` makes it more certain."""
    if len(now.numbers) < SECONDS_TO_CLEAR:
        return {}
    shares = now.shares
    count = np.sum(~np.isnan(shares), axis=0)
    known, enough = count >= SECONDS_TO_CLEAR, count >= SECONDS_MIN
    z = (np.sum(shares > 0, axis=0) - count / 2) / np.sqrt(np.maximum(count, 1) / 4)
    late = enough & (z >= math.sqrt(SIGN_Z**2 + more)) & (now.delay_s > now.doubt_s)
    typical = np.zeros(len(now.ranks))
    if late.any():
        some = shares[:, late]
        typical[late] = _median(some)
        least = np.maximum(
            SHARE, _least(some, before.shares, more, bool(np.mean(now.waits) >= SHORT))
        )
        late[late] = (typical[late] >= SHARE) & (np.nanmean(some, axis=0) >= least)
    return {now.ranks[at]: float(typical[at] * late[at]) for at in np.flatnonzero(known)}


def _least(shares: Floats, before: Floats, more: float, short: bool) -> Floats:
    """What the means of these columns have to be, to be no accident. `short`: rows are many
    collectives each."""
    usual, steady = _usual_error(before, len(shares)), STEADY_T
    if math.isnan(usual):
        usual, steady = 0.0, STEADY_UNKNOWN_T if short else STEADY_T
    least: Floats = math.sqrt(steady**2 + more) * _error(shares)
    return np.maximum(least, math.sqrt(UNUSUAL_T**2 + more) * usual)


def _usual_error(shares: Floats, count: int) -> float:
    """How much means of so many seconds next to each other differ (Allan deviation), in most of
    this time, so that who was slow before does not count; NaN: too little is known."""
    if len(shares) < 2 * count:
        return math.nan
    sums = np.cumsum(np.nan_to_num(np.vstack((0 * shares[:1], shares))), axis=0)
    means = (sums[count:] - sums[:-count]) / count
    apart = np.abs(means[count:] - means[:-count])
    return float(NORMAL * np.median(apart) / math.sqrt(2))


def _maybe_late(course: Lateness) -> list[int]:
    """Of whom it takes a closer look to know: on average late in so many newest seconds or more."""
    shares = course.shares[::-1]
    count = np.cumsum(~np.isnan(shares), axis=0)
    late = np.cumsum(np.nan_to_num(shares), axis=0) >= SHARE * count
    maybe = np.any(late & (count >= SECONDS_MIN), axis=0)
    return [course.ranks[place] for place in np.flatnonzero(maybe)]


def _seems_late(course: Lateness, of: int, least: int) -> dict[int, float]:
    """Who is late in at least so many of the newest seconds; 0 for the others."""
    shares = course.shares[-of:]
    if len(shares) < of:
        return {}
    seems = (np.sum(shares > 0, axis=0) >= least) * np.median(shares, axis=0)
    return {
        rank: float(one * (one >= SUSPECTED)) for rank, one in zip(course.ranks, seems, strict=True)
    }


def _punctual(course: Lateness) -> list[int]:
    """Of whom it is certain that they are not slow."""
    if len(course.numbers) < SECONDS_MIN:
        return []
    shares = course.shares
    enough = np.flatnonzero(np.sum(~np.isnan(shares), axis=0) >= SECONDS_MIN)
    shares = shares[:, enough]
    most = np.nanmean(shares, axis=0) + CLEARED_T * _error(shares)
    sure = (_median(shares) < CLEARED) & (most < SHARE)
    return [course.ranks[place] for place in enough[sure]]


def _median(shares: Floats) -> Floats:
    """Of columns."""
    whole = not np.isnan(shares).any()
    median: Floats = (np.median if whole else np.nanmedian)(shares, axis=0)
    return median


def _error(shares: Floats) -> Floats:
    """Of the means of columns, whose rows are alike where they are next to each other."""
    count = np.sum(~np.isnan(shares), axis=0)
    off = np.nan_to_num(shares - np.nanmean(shares, axis=0))
    squares = np.sum(off * off, axis=0)
    alike = np.sum(off[1:] * off[:-1], axis=0) / np.maximum(squares, 1e-30)
    alike = np.clip(alike + (1 + 3 * alike) / count, 0.0, 0.9)  # Kendall: it is seen too small
    wrong: Floats = np.sqrt(squares / (count - 1) / count * (1 + alike) / (1 - alike))
    return wrong


def _in_all(groups: Iterable[Mapping[int, float]]) -> dict[int, float]:
    """Who is late in all of the groups of which enough is known, and by which share at most."""
    found: dict[int, float] = {}
    for shares in groups:
        for rank, share in shares.items():
            both = found.get(rank, share)
            found[rank] = max(both, share) if both and share else 0.0
    return {rank: share for rank, share in found.items() if share}


def _whole(course: Lateness) -> dict[int, float]:
    """By which share of its time the others waited for each rank."""
    shares = np.nansum(course.late_s, axis=0) / max(np.sum(course.spans_s), 1e-9)
    return {rank: max(0.0, float(share)) for rank, share in zip(course.ranks, shares, strict=True)}
