"""Which ranks all others wait for, step after step: from the times at which they enter collectives.

A collective ends when its last member has entered it, so in a synchronous training one slow rank
makes all of them equally slow: step times tell nothing, and who enters last tells all. A rank's
delay at a collective is that behind the median of the others. Only collectives count that somebody
waited in: where most others entered the next one before the last came to this one, nobody waited
yet, and the delay is counted where it is paid.

A straggler is late far more often than chance would have it (a sign test, so that it does not
matter how noisy steps are), its mean delay is a noticeable share of the time, and that holds in
each process group that it belongs to: who waits in a small group for somebody else is late in the
large one with it, and punctual in the small one. Stages of a pipeline are compared with their like,
in their own groups.

Clocks of nodes differ. They are compared through the controller's, as by NTP (RFC 5905, section 8):
half the round trip is the most that such a comparison is wrong by, and a mean delay within that
blames nobody. What a slow rank does meanwhile (`Doing`) says whether its input, a busy processor or
the work it was given explains the delay, before the machine is suspected.
"""

import itertools
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from holdfast.collectives import GroupLog, RankTimes
from holdfast.events import StragglersFound
from holdfast.slow_ranks import SlowBy, Straggler

SHARE = 0.08  # of the time that others lose, at least: 1.09 times as slow
CLEARED = 0.04  # a straggler is one until it is below that
SIGN_Z = 4.4  # standard deviations from a coin's: 1 in 200,000 by chance
WINDOWS = 3  # between samples, that are judged together
COUNT_MIN = 20  # collectives that somebody waited in
ENOUGH = 64  # of them; while there are fewer, older windows are judged with the newest
OLDEST_S = 900.0
TOLD_MAX = 64  # stragglers that are told
EXPLAINS = 0.5  # of the delay, by one thing
MICROSECOND = 1e-6


class Doing(NamedTuple):
    """Seconds since its start that a rank has spent with something, and how much it has done."""

    input_s: float = 0.0
    starved_s: float = 0.0  # ready to run, without a processor
    saves_s: float = 0.0
    processor_s: float = 0.0
    tokens: float = 0.0


class Sample(NamedTuple):
    """All ranks that have answered one question. Clocks are by rank, in microseconds: what has to
    be taken off its times, and by how much that may be wrong."""

    at: float
    ranks: Sequence[RankTimes]
    clocks: Mapping[int, tuple[float, float]]
    doing: Mapping[int, Doing]


class Delays(NamedTuple):
    """Of one rank in one group over a window."""

    waits: int  # collectives that somebody waited in
    late: int  # of these, how many it came to after the median of the others
    seconds: float  # in sum; negative where it came early
    span_s: float
    doubt_s: float  # of each

    @property
    def share(self) -> float:
        """Of the time that others lose with it."""
        return self.seconds / self.span_s if self.span_s > 0 else 0.0

    def plus(self, other: "Delays") -> "Delays":
        """Of both windows."""
        return Delays(
            self.waits + other.waits,
            self.late + other.late,
            self.seconds + other.seconds,
            self.span_s + other.span_s,
            max(self.doubt_s, other.doubt_s),
        )


Group = tuple[str, object]


class Window(NamedTuple):
    """Between two samples: since when, what the ranks had done by then, and who was late."""

    since: float
    doing: Mapping[int, Doing]
    found: Mapping[int, Mapping[Group, Delays]]


NONE = Delays(0, 0, 0.0, 0.0, 0.0)


class StragglerWatch:
    """Who is slow in the attempt under way."""

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, attempt: int) -> None:
        """Forget everything and watch this attempt."""
        self._attempt = attempt
        self._windows: deque[Window] = deque()
        self._last: Sample | None = None
        self._slow: tuple[int, ...] = ()

    def skip(self) -> None:
        """What happens up to the next sample is not counted; who was slow still is."""
        self._last = None

    def observe(self, sample: Sample) -> StragglersFound | None:
        """Take in a sample; returns who is slow if that are others than before."""
        last, self._last = self._last, sample
        if last is None:
            return None  # what the next ones are compared with
        since = {times.rank: times for times in last.ranks}
        self._windows.append(Window(last.at, last.doing, delays(sample, since)))
        slow = self._judge(self._forget(sample.at))
        if tuple(slow) == self._slow:
            return None
        self._slow = tuple(slow)
        told = [self._straggler(rank, share, sample) for rank, share in slow.items()]
        return StragglersFound(attempt=self._attempt, stragglers=tuple(told[:TOLD_MAX]))

    def lateness(self) -> dict[int, float]:
        """Of each rank the share of the last window in which others waited for it."""
        if not self._windows:
            return {}
        return {
            rank: max(0.0, max(one.share for one in groups.values()))
            for rank, groups in self._windows[-1].found.items()
        }

    def _forget(self, now: float) -> dict[int, dict[Group, Delays]]:
        """Windows that are not needed any more; returns the sum of the others."""
        while len(self._windows) > WINDOWS:
            rest = _sum(list(self._windows)[1:])
            if _most(rest) < ENOUGH and self._windows[1].since > now - OLDEST_S:
                break
            self._windows.popleft()
        return _sum(self._windows)

    def _judge(self, known: Mapping[int, Mapping[Group, Delays]]) -> dict[int, float]:
        """The slow ranks, each with the share that the others lose."""
        shares = {rank: self._share(rank, groups) for rank, groups in known.items()}
        return {rank: share for rank, share in sorted(shares.items()) if share}

    def _share(self, rank: int, groups: Mapping[Group, Delays]) -> float:
        """0 for a rank that is not slow."""
        enough = _by_members(groups)
        least = CLEARED if rank in self._slow else SHARE
        if not enough or not all(_is_late(found, least) for found in enough):
            return 0.0
        return max(found.share for found in enough)

    def _straggler(self, rank: int, share: float, now: Sample) -> Straggler:
        first = self._windows[0]
        cause, text = explain(rank, share * (now.at - first.since), first.doing, now.doing)
        return Straggler(rank=rank, share=share, cause=cause, text=text)


def _by_members(groups: Mapping[Group, Delays]) -> list[Delays]:
    """Of groups with enough collectives, one for those with the same members: a step waits for its
    slow rank once, in the first that it comes to, and in the others nobody is late any more."""
    alike: dict[object, list[Delays]] = {}
    for (name, members), found in groups.items():
        if found.waits >= COUNT_MIN:
            alike.setdefault(members or name, []).append(found)
    return [
        max(same, key=lambda one: one.share)._replace(
            seconds=sum(one.seconds for one in same), span_s=max(one.span_s for one in same)
        )
        for same in alike.values()
    ]


def _sum(windows: Iterable[Window]) -> dict[int, dict[Group, Delays]]:
    known: dict[int, dict[Group, Delays]] = {}
    for window in windows:
        for rank, groups in window.found.items():
            own = known.setdefault(rank, {})
            for group, found in groups.items():
                own[group] = own.get(group, NONE).plus(found)
    return known


def _most(known: Mapping[int, Mapping[Group, Delays]]) -> int:
    counts = (found.waits for groups in known.values() for found in groups.values())
    return max(counts, default=0)


def _is_late(found: Delays, least: float) -> bool:
    z = (found.late - found.waits / 2) / math.sqrt(found.waits / 4)
    certain = found.seconds / found.waits > found.doubt_s
    return z >= SIGN_Z and found.share >= least and certain


# ── arithmetic of one sample ──────────────────────────────────────────────────────────────────


def delays(sample: Sample, since: Mapping[int, RankTimes]) -> dict[int, dict[Group, Delays]]:
    """Of each rank in each of its groups that has two ranks here, of collectives that were not in
    the sample `since`. Costs O(n log n) for n times in the sample."""
    groups: dict[Group, list[tuple[int, GroupLog]]] = {}
    for times in sample.ranks:
        for log in times.groups:
            if log.recent:
                groups.setdefault((log.name, log.members), []).append((times.rank, log))
    found: dict[int, dict[Group, Delays]] = {}
    seen_until = _seen_until(since.values())
    for group, logs in groups.items():
        if len(logs) > 1 and len(logs) * 2 > _size(logs[0][1]):
            for rank, delay in _of_group(logs, sample, seen_until.get(group, 0)).items():
                found.setdefault(rank, {})[group] = delay
    return found


def _size(log: GroupLog) -> int:
    return sum(last - first + 1 for first, last in log.members)


def _seen_until(since: Iterable[RankTimes]) -> dict[Group, int]:
    """The newest collective of each group that all of its ranks had entered."""
    found: dict[Group, int] = {}
    for log in (log for times in since for log in times.groups if log.recent):
        group = (log.name, log.members)
        found[group] = min(log.last.sequence, found.get(group, log.last.sequence))
    return found


def _of_group(
    logs: Sequence[tuple[int, GroupLog]], sample: Sample, seen_until: int
) -> dict[int, Delays]:
    """Only collectives count that all have entered, and the one after them, too."""
    ranks = [rank for rank, _ in logs]
    clocks = [sample.clocks.get(rank, (0.0, math.inf)) for rank in ranks]
    first = max(max(log.recent[0].sequence for _, log in logs), seen_until)
    last = min(log.last.sequence for _, log in logs)
    if last - first < 1:
        return {}
    entered = [
        {c.sequence: (c.entered_us - clock[0]) * MICROSECOND for c in log.recent}
        for (_, log), clock in zip(logs, clocks, strict=True)
    ]
    rows = [[times.get(n) for times in entered] for n in range(first, last + 1)]
    return _of_rows(ranks, [row for row in rows if None not in row], _doubt_s(clocks))


def _of_rows(
    ranks: Sequence[int], rows: Sequence[Sequence[float | None]], doubt_s: float
) -> dict[int, Delays]:
    whole = [[at for at in row if at is not None] for row in rows]
    late, sums, count = [0] * len(ranks), [0.0] * len(ranks), 0
    for row, after in itertools.pairwise(whole):
        if median_low(after) < max(row):
            continue  # nobody waited for the last one yet
        count += 1
        for place, delay in enumerate(_behind_others(row)):
            late[place] += delay > 0
            sums[place] += delay
    span_s = median_low(whole[-1]) - median_low(whole[0]) if whole else 0.0
    return {
        rank: Delays(count, late[place], sums[place], span_s, doubt_s)
        for place, rank in enumerate(ranks)
    }


def median_low(values: Sequence[float]) -> float:
    """The lower one where there are two."""
    return sorted(values)[(len(values) - 1) // 2]


def _behind_others(row: Sequence[float]) -> list[float]:
    """Of each, behind the lower median of the others."""
    ordered = sorted(row)
    count = len(ordered)
    below, middle = ordered[(count - 2) // 2], ordered[min((count - 2) // 2 + 1, count - 1)]
    return [at - (below if at > below else middle) for at in row]


def _doubt_s(clocks: Sequence[tuple[float, float]]) -> float:
    """How wrong a comparison may be; ranks of one node have one clock."""
    if len(set(clocks)) == 1:
        return 0.0
    return 2 * max(doubt_us for _, doubt_us in clocks) * MICROSECOND


# ── what explains it ──────────────────────────────────────────────────────────────────────────


def explain(
    rank: int, delay_s: float, before: Mapping[int, Doing], after: Mapping[int, Doing]
) -> tuple[SlowBy, str]:
    """Why this rank has come `delay_s` later in sum, by what it did and others did meanwhile."""
    did = {r: _since(before.get(r), now) for r, now in after.items()}
    own = did.pop(rank, None)
    if own is None or not did or delay_s <= 0:
        return SlowBy.ITSELF, "nothing else is known of it"
    usual = Doing(*(median_low(column) for column in zip(*did.values(), strict=True)))
    explained = (
        (SlowBy.INPUT, own.input_s - usual.input_s, "waits longer for its input"),
        (SlowBy.PROCESSOR, own.starved_s - usual.starved_s, "waits for a processor of its node"),
        (SlowBy.SAVES, own.saves_s - usual.saves_s, "copies its state for longer"),
    )
    cause, most_s, text = max(explained, key=lambda one: one[1])
    if most_s >= EXPLAINS * delay_s:
        return cause, f"it {text} ({most_s / delay_s:.0%} of the delay)"
    if usual.tokens > 0 and own.tokens / usual.tokens - 1 >= SHARE:
        return SlowBy.WORK, f"it has {own.tokens / usual.tokens:.2f} times the tokens of the others"
    more_s = own.processor_s - usual.processor_s
    if more_s >= EXPLAINS * delay_s:
        return SlowBy.ITSELF, "it computes longer than the others: its work, or its machine"
    return SlowBy.ITSELF, "neither its input nor its processor explains it"


def _since(before: Doing | None, now: Doing) -> Doing:
    return Doing(*(b - a for a, b in zip(before or Doing(), now, strict=True)))
