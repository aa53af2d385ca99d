"""The books: stretches of time posted one after the other, each into one bucket.

A cursor moves forward, and every post covers the time from the cursor to a given moment. So the
buckets are exact, never overlap and always sum to the time from the start to the cursor, whatever
the facts were. It moves back only where steps turn out to be lost that were taken for good. All in
integer milliseconds, because sums of floats would drift.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.goodput.buckets import Bucket

WINDOW_MS = 3_600_000
ENDS_INCIDENT = (Bucket.PRODUCTIVE, Bucket.OTHER)


def milliseconds(seconds: float) -> int:
    """Seconds as the nearest whole millisecond."""
    return round(seconds * 1000)


class Stalls(NamedTuple):
    """Training time that was spent waiting, in milliseconds."""

    data_wait: int = 0
    checkpoint: int = 0
    paused: int = 0

    def within(self, room: int) -> "Stalls":
        """As much of them as has room; what was paused comes first, as the others include it."""
        paused = min(self.paused, room)
        data_wait = min(self.data_wait, room - paused)
        return Stalls(data_wait, min(self.checkpoint, room - paused - data_wait), paused)

    def plus(self, others: "Stalls") -> "Stalls":
        """Both."""
        return Stalls(*(mine + more for mine, more in zip(self, others, strict=True)))

    def less(self, others: "Stalls") -> "Stalls":
        """What is left without the others, of each kind none at least."""
        return Stalls(*(max(0, mine - more) for mine, more in zip(self, others, strict=True)))


NO_STALLS = Stalls()
STALLED = (Bucket.DATA_WAIT, Bucket.CHECKPOINT_STALL, Bucket.PAUSED)


class LedgerInterval(NamedTuple):
    """A stretch of time, in milliseconds since the epoch; consecutive ones touch.

    Of the stalls within a productive stretch only the sums are known, not their moments: they are
    kept here, and counted under `data_wait`, `checkpoint_stall` and `paused`, not `productive`.
    """

    start_ms: int
    end_ms: int
    bucket: Bucket
    attempt: int
    incident: int | None = None
    stalls: Stalls = NO_STALLS


@dataclass(slots=True)
class Bill:
    """What one incident cost: bucket → milliseconds, from its fault on.

    It runs until training is productive again, the job is asked to stop, the job ends, or the next
    fault strikes, which opens a bill of its own: no millisecond is on two bills. Redoing steps
    that an earlier incident lost is thus billed to the last one before the redo.
    """

    fault_ms: int
    until_ms: int
    recovered: bool = False
    buckets: dict[Bucket, int] = field(default_factory=dict)

    @property
    def lost_ms(self) -> int:
        """The whole bill."""
        return sum(self.buckets.values())


@dataclass(slots=True)
class Books:
    """Everything posted so far; `cursor` is the moment up to which it is complete."""

    start: int
    cursor: int
    buckets: dict[Bucket, int] = field(default_factory=lambda: dict.fromkeys(Bucket, 0))
    intervals: list[LedgerInterval] = field(default_factory=list)
    bills: dict[int, Bill] = field(default_factory=dict)
    incident: int | None = None  # the one that time is billed to at the cursor
    curve: deque[tuple[int, int]] = field(default_factory=deque)  # (moment, productive until then)

    def copy(self) -> "Books":
        """Independent books with the same content."""
        bills = {
            k: Bill(b.fault_ms, b.until_ms, b.recovered, dict(b.buckets))
            for k, b in self.bills.items()
        }
        return Books(
            self.start,
            self.cursor,
            dict(self.buckets),
            list(self.intervals),
            bills,
            self.incident,
            self.curve.copy(),
        )

    def post(
        self, until: int, bucket: Bucket, attempt: int, incident: int | None, stalls: Stalls
    ) -> Stalls:
        """Book the time from the cursor until `until`; returns how much of `stalls` found room.

        Nothing is booked twice: with `until` before the cursor this only notes the incident.
        """
        self._note(bucket, incident)
        room = until - self.cursor
        if room <= 0:
            return NO_STALLS
        taken = stalls.within(room)
        self._add(LedgerInterval(self.cursor, until, bucket, attempt, incident, taken))
        self.cursor = until
        self._draw()
        return taken

    def take_back(self, moment: int, attempt: int) -> None:
        """What was booked as productive for this attempt from `moment` on was not: the cursor goes
        back, and that time is to be booked anew. Of stalls within a cut stretch a share stays."""
        while self.intervals and self.cursor > moment:
            last = self.intervals[-1]
            if last.bucket is not Bucket.PRODUCTIVE or last.attempt != attempt:
                break
            self._remove(self.intervals.pop())
            self.cursor = max(last.start_ms, moment)
            if self.cursor > last.start_ms:
                self._add(_cut(last, self.cursor))
        productive = self.buckets[Bucket.PRODUCTIVE]
        while self.curve and (self.curve[-1][0] > self.cursor or self.curve[-1][1] > productive):
            self.curve.pop()
        self._draw()

    def _remove(self, old: LedgerInterval) -> None:
        """Take a stretch that is on no bill out of the buckets."""
        for bucket, stall in zip(STALLED, old.stalls, strict=True):
            self.buckets[bucket] -= stall
        self.buckets[old.bucket] -= old.end_ms - old.start_ms - sum(old.stalls)

    def _note(self, bucket: Bucket, incident: int | None) -> None:
        if self.incident is not None and bucket in ENDS_INCIDENT:
            self.bills[self.incident].recovered = True
        if incident is not None and incident not in self.bills:
            self.bills[incident] = Bill(fault_ms=self.cursor, until_ms=self.cursor)
        self.incident = incident

    def _add(self, new: LedgerInterval) -> None:
        length = new.end_ms - new.start_ms
        for bucket, stall in zip(STALLED, new.stalls, strict=True):
            self.buckets[bucket] += stall
        self.buckets[new.bucket] += length - sum(new.stalls)
        if new.incident is not None:
            bill = self.bills[new.incident]
            bill.buckets[new.bucket] = bill.buckets.get(new.bucket, 0) + length
            bill.until_ms = new.end_ms
        if self.intervals and _continues(self.intervals[-1], new):
            new = _merge(self.intervals.pop(), new)
        self.intervals.append(new)

    def _draw(self) -> None:
        """Keep as much of the curve as a window that ends at the cursor needs."""
        self.curve.append((self.cursor, self.buckets[Bucket.PRODUCTIVE]))
        while len(self.curve) > 1 and self.curve[1][0] <= self.cursor - WINDOW_MS:
            self.curve.popleft()

    def productive_since(self, moment: int) -> int:
        """Productive milliseconds from `moment`, at most a window before the cursor, until it."""
        before = (self.start, 0)
        for point in self.curve:
            if point[0] > moment:
                return self.buckets[Bucket.PRODUCTIVE] - _between(before, point, moment)
            before = point
        return 0


def _cut(old: LedgerInterval, end_ms: int) -> LedgerInterval:
    """The stretch up to `end_ms`, with its share of the stalls."""
    whole, left = old.end_ms - old.start_ms, end_ms - old.start_ms
    stalls = Stalls(*(stall * left // whole for stall in old.stalls))
    return old._replace(end_ms=end_ms, stalls=stalls)


def _continues(old: LedgerInterval, new: LedgerInterval) -> bool:
    return (old.bucket, old.attempt, old.incident) == (new.bucket, new.attempt, new.incident)


def _merge(old: LedgerInterval, new: LedgerInterval) -> LedgerInterval:
    return old._replace(end_ms=new.end_ms, stalls=old.stalls.plus(new.stalls))


def _between(left: tuple[int, int], right: tuple[int, int], moment: int) -> int:
    """The curve at `moment`: straight between two points."""
    span = right[0] - left[0]
    share = max(0, moment - left[0])
    return left[1] + (right[1] - left[1]) * share // span if span else right[1]
