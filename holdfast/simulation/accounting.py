"""Is the ledger true? What it calls productive or work done again is compared with what was done.

`TimeSpent` is the truth: what each attempt has really done, in seconds. `Accounting` is the
referee. Facts travel, so an attempt may be booked a little differently from how it was.
"""

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.controller.state import IncidentRecord
from holdfast.goodput import Bucket, Ledger
from holdfast.goodput.books import milliseconds
from holdfast.simulation.tempo import Tempo

SLACK_S = 1.0  # by which the ledger may differ from the truth, because messages take time
SUSPECTED_S, SUSPECTED_STEPS = 20.0, 5  # a standstill is suspected after both, at the latest


class AttemptKnown(NamedTuple):
    """What is known of an attempt."""

    step: int = 0  # the newest one
    caught_up: bool = False
    broke: bool = False  # of its steps some were worth nothing, and done anew


NOTHING = AttemptKnown()


@dataclass
class AttemptTime:
    """Seconds of one attempt."""

    steps: float = 0.0  # after the first one
    again: float = 0.0  # of these, for what an earlier attempt had done
    longest_step: float = 0.0
    ran: float = 0.0  # from the start of its workers to what broke it, or to the last one's end
    tempo: Tempo | None = None  # None: it did no step
    over_at: float = 0.0  # when it did its last
    stood: bool = False  # before it was over
    redoes: int = 0  # steps that earlier attempts have done

    def unheard(self, step: int) -> float:
        """How long it trained beyond a step, the newest that a controller knows of."""
        if self.tempo is None:
            return 0.0
        return max(0.0, self.over_at - self.tempo.end_of(step))


@dataclass
class TimeSpent:
    """Seconds of all attempts of a world that are over."""

    step_s: float  # as a rule
    furthest: int = 0  # step that any attempt has completed
    attempts: defaultdict[int, AttemptTime] = field(
        default_factory=lambda: defaultdict(AttemptTime)
    )
    _longer_s: float = 0.0  # than usual, by which all new steps took, each counted once

    @property
    def new_steps_s(self) -> float:
        """How long the steps took that were done at all, each counted once."""
        return self.furthest * self.step_s + self._longer_s

    def trained(
        self, attempt: int, tempo: Tempo | None, inherited: int, step: int, now: float
    ) -> None:
        """An attempt that went on from step `inherited` has come so far, and comes no further."""
        spent = self.attempts[attempt]
        spent.tempo, spent.over_at = tempo, now
        spent.longest_step = max(spent.longest_step, self.step_s)
        if tempo is not None:
            spent.longest_step = max(spent.longest_step, tempo.longest_s)
            first_at = tempo.end_of(inherited + 1)
            spent.steps += max(0.0, tempo.end_of(step) - first_at)
            spent.again += max(0.0, tempo.end_of(min(step, self.furthest)) - first_at)
            if step > self.furthest:
                self._longer_s += tempo.longer_s(self.furthest, step, self.step_s)
        self.furthest = max(self.furthest, step)

    def resumed(self, attempt: int, inherited: int, furthest: int) -> None:
        """An attempt goes on from step `inherited`; others have come to `furthest`."""
        self.attempts[attempt].redoes = max(0, furthest - inherited)

    def stands(self, attempt: int) -> None:
        """It does no step any more, and nothing else shows that."""
        self.attempts[attempt].stood = True

    def ran(self, attempt: int, seconds: float) -> None:
        """Its workers ran for so long; what is left of them does nothing of use."""
        self.attempts[attempt].ran += seconds


class Accounting:
    """The ledger adds up, and calls nothing productive or done again that was not."""

    def __init__(self) -> None:
        self._late: list[tuple[float, float]] = []  # when something was heard late; how late

    def heard(self, now: float, sent_at: float) -> None:
        """Ages are as of sending: what travels long is booked later than it was."""
        if now - sent_at > SLACK_S:
            self._late.append((now, now - sent_at))

    def at_end(
        self,
        ledger: Ledger,
        known: Mapping[int, AttemptKnown],
        spent: TimeSpent,
        incidents: Sequence[IncidentRecord],
        *,
        one_clock: bool,
    ) -> str:
        """The books are closed. `known`: what the journal has of each attempt."""
        total = sum(ledger.buckets.values())
        if total != ledger.wall_ms:
            return f"buckets sum to {total} ms of {ledger.wall_ms}"
        edges = [i.start_ms for i in ledger.intervals[1:]]
        if edges != [i.end_ms for i in ledger.intervals[:-1]]:
            return "intervals do not touch"
        wrong = [*_bills(ledger, incidents, one_clock=one_clock), *_steps_lost(incidents, spent)]
        if wrong:
            return wrong[0]
        if not one_clock:
            return ""
        found = self._steps if ledger.observed else self._runs
        return next(found(ledger, known, spent), "")

    def _steps(
        self, ledger: Ledger, known: Mapping[int, AttemptKnown], spent: TimeSpent
    ) -> Iterator[str]:
        """Steps count as new twice that only dead nodes knew of, or whose numbers were wrong."""
        new_s = spent.new_steps_s
        for it in _booked(ledger):
            real, slack_s = spent.attempts[it.number], self._slack_s(it)
            told = known.get(it.number, NOTHING)
            new_s += (real.steps if told.broke else real.unheard(told.step)) + slack_s
            if it.productive > real.steps + slack_s:
                yield f"{it.productive:.1f} s of {it} are productive, steps took {real.steps:.1f} s"
            if it.again > _again_s(real, told) + slack_s:
                yield f"{it.again:.1f} s of {it} are for steps done again, of {real.again:.1f} s"
        productive_s = ledger.buckets[Bucket.PRODUCTIVE] / 1000
        if productive_s > new_s:
            yield f"{productive_s:.1f} s are productive, new steps took {spent.new_steps_s:.1f} s"

    def _runs(
        self, ledger: Ledger, _: Mapping[int, AttemptKnown], spent: TimeSpent
    ) -> Iterator[str]:
        for it in _booked(ledger):
            ran_s = spent.attempts[it.number].ran
            if it.productive > ran_s + self._slack_s(it):
                yield f"{it.productive:.1f} s of {it} are productive, and it ran for {ran_s:.1f} s"

    def _slack_s(self, booked: "_Booked") -> float:
        """As much as what was heard latest while the attempt was in the books."""
        first = bisect_left(self._late, (booked.start, 0.0))
        last = bisect_right(self._late, (booked.end + SLACK_S, math.inf))
        return SLACK_S + max((late_s for _, late_s in self._late[first:last]), default=0.0)


def _bills(
    ledger: Ledger, incidents: Sequence[IncidentRecord], *, one_clock: bool
) -> Iterator[str]:
    """Each incident of the controller has the bill of its number, which runs when it is noticed."""
    if ledger.bills.keys() != {one.id for one in incidents}:
        yield f"the ledger counts {len(ledger.bills)} incidents, the controller {len(incidents)}"
    for one in incidents if one_clock else ():
        bill, at = ledger.bills.get(one.id), milliseconds(one.detected_at)
        if bill is not None and not bill.fault_ms <= at <= bill.until_ms:
            yield f"bill {one.id} is not that of incident {one.id}"


def _steps_lost(incidents: Sequence[IncidentRecord], spent: TimeSpent) -> Iterator[str]:
    """No incident costs more steps than those that attempts which went on after it did again."""
    ends = [*(one.attempt for one in incidents[1:]), max(spent.attempts, default=0)]
    for one, last in zip(incidents, ends, strict=False):
        after = (spent.attempts[number] for number in range(one.attempt + 1, last + 1))
        redone = max((attempt.redoes for attempt in after), default=0)
        if one.steps_lost > redone:
            yield f"incident {one.id} cost {one.steps_lost} steps, {redone} were done again"


def _again_s(real: AttemptTime, told: AttemptKnown) -> float:
    """What may be booked as done again, or to be. The first new step of an attempt is, since at its
    end it has caught up; all are where nobody heard of that. So is what came after the newest known
    step, and the time until a standstill is suspected, where something else ends it before."""
    again_s = real.again + real.longest_step if told.caught_up else real.steps
    stood_s = SUSPECTED_S + SUSPECTED_STEPS * real.longest_step if real.stood else 0.0
    return again_s + real.longest_step + real.unheard(told.step) + stood_s


@dataclass
class _Booked:
    """What the books say of one attempt, in seconds, and in which stretch of the world's time."""

    number: int
    start: float
    end: float
    productive: float = 0.0
    again: float = 0.0

    def __str__(self) -> str:
        return f"attempt {self.number}"


def _booked(ledger: Ledger) -> Iterable[_Booked]:
    found: dict[int, _Booked] = {}
    for it in ledger.intervals:
        start, end = (it.start_ms - ledger.start_ms) / 1000, (it.end_ms - ledger.start_ms) / 1000
        booked = found.setdefault(it.attempt, _Booked(it.attempt, start, end))
        booked.end = end
        booked.productive += end - start if it.bucket is Bucket.PRODUCTIVE else 0.0
        booked.again += end - start if it.bucket is Bucket.REPLAY else 0.0
    return found.values()
