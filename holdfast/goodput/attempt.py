"""One attempt as the ledger remembers it: the few moments that cut its time into stretches.

Facts arrive late and out of order, each with its age. So nothing is booked while they arrive: they
only sharpen the moments kept here, and `timeline` reads the stretches off once they are asked for.
That takes a handful of numbers for an attempt, however long it trains.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from holdfast.events import Milestone, Progress
from holdfast.goodput.books import NO_STALLS, Stalls
from holdfast.goodput.buckets import Bucket

AFTER: dict[Milestone, Bucket] = {
    Milestone.STARTED: Bucket.START,
    Milestone.ARRIVED: Bucket.RENDEZVOUS,
    Milestone.JOINED: Bucket.RESTORE_MEMORY,
    Milestone.RESTORED: Bucket.FIRST_STEP,
    Milestone.FIRST_STEP: Bucket.REPLAY,
    Milestone.CAUGHT_UP: Bucket.PRODUCTIVE,
    Milestone.FINISHED: Bucket.OTHER,
}
"""What an attempt does once it has reached a milestone, until the next one."""
WITHOUT_STEPS = (Milestone.STARTED, Milestone.OUTPUT, Milestone.STEPPED)  # where none are reported
QUIET_S = 60.0  # who says nothing for longer after the start is taken to train all the same
STEP_WAIT_S = 600.0  # so is who did steps in an earlier attempt, and none for longer in this


class Visibility(Enum):
    """How steps of the script come to be known."""

    UNKNOWN = auto()
    SEEN = auto()  # of its optimizer, or in its output: that there are some, not which
    REPORTED = auto()


class BucketStart(NamedTuple):
    """From this moment on time goes into this bucket and onto this incident's bill."""

    at: int
    bucket: Bucket
    incident: int | None


class LostMember(NamedTuple):
    """A member that is lost."""

    at: int  # its last sign of life
    found: bool = False  # by a new controller: nobody has heard how long it lived after that


@dataclass(slots=True)
class Faults:
    """What went wrong in one attempt."""

    worker: int | None = None  # earliest failed exit, or end of a step that was no number
    node: LostMember | None = None  # the first of the lost members
    stood_until: int | None = None  # without progress that was seen, and not found to be work

    def struck(self, at: int) -> None:
        """A worker failed, or did nothing of use from then on."""
        self.worker = earliest(self.worker, at)

    def first(self, step_end: int | None) -> int | None:
        """When the earliest fault struck; `step_end`: of the newest completed step.

        A node that falls silent may train on: its fault is not before the last completed step. Of
        one that was found gone nothing but that is known, unless a worker that failed tells more.
        What stood still did so from its last completed step on.
        """
        worker, gone, stood = self.worker, self.node, self.stood_until
        if stood is not None and step_end is not None and step_end <= stood:
            worker = earliest(worker, step_end)
        if gone is None or (gone.found and worker is not None):
            return worker
        return earliest(worker, gone.at if step_end is None else max(gone.at, step_end))


@dataclass(slots=True)
class Attempt:
    """Moments in milliseconds. Number 0 stands for the time before the first attempt."""

    number: int
    began: int
    opening: Bucket
    carried: int | None  # incident that was open when the attempt began

    reached: dict[Milestone, int] = field(default_factory=dict)
    step_end: int | None = None  # end of the newest completed step
    sums: Stalls | None = None  # since the start of the attempt, largest of all ranks
    settled: Stalls | None = None  # the part of `sums` that is booked, or before `productive`
    faults: Faults = field(default_factory=Faults)
    last_exit: int | None = None
    ordered: int | None = None  # when StopAttempt was ordered
    saves: bool = False  # somebody asked for it, and what is done until its last step is kept
    incident: int | None = None  # opened by that order, unless somebody asked for the stop
    gone: int | None = None  # when nothing of it was left on any member
    closing: int | None = None  # somebody asked to stop while no attempt trained

    def hear(self, progress: Progress, at: int) -> None:
        """Take in how far a worker, or all of them, had come when the fact was handed over."""
        if progress.step is not None:
            end = at - max(0, round(progress.step_ago_s * 1000))
            self.step_end = end if self.step_end is None else max(self.step_end, end)
        waits_s = (progress.data_wait_s, progress.snapshot_s, progress.paused_s)
        sums = Stalls(*(round(wait_s * 1000) for wait_s in waits_s))
        if sums == NO_STALLS and progress.step is None:
            return  # a worker that reports nothing
        known = self.sums or sums
        self.sums = Stalls(*map(max, known, sums))
        if Milestone.CAUGHT_UP in self.reached and self.settled is None:
            self.settled = self.sums

    def reach(self, milestone: Milestone, at: int) -> None:
        """Note a milestone; only the first report counts."""
        self.reached.setdefault(milestone, at)
        if milestone is Milestone.CAUGHT_UP and self.settled is None:
            self.settled = self.sums

    def owed(self, steps: Visibility) -> Stalls:
        """Stalls of the productive part that are not booked yet: where no steps are reported, all
        that was paused, as whoever is seen to pause is seen to step."""
        if self.sums is None:
            return NO_STALLS
        if self.settled is None:
            return NO_STALLS if steps is Visibility.REPORTED else self.sums
        return self.sums.less(self.settled)

    def settle(self, taken: Stalls) -> None:
        """These stalls are booked."""
        if self.settled is not None:
            self.settled = self.settled.plus(taken)

    def fault(self) -> int | None:
        """When the earliest fault struck."""
        return self.faults.first(self.step_end)


def earliest(known: int | None, at: int) -> int:
    """The earlier of a moment that may be unknown and another."""
    return at if known is None else min(known, at)


def timeline(attempt: Attempt, until: int, *, steps: Visibility, closed: bool) -> list[BucketStart]:
    """The stretches of an attempt up to `until`; `closed`: nothing more will be heard of it.

    The marks are in order and never before the attempt began; where no steps are reported, a worker
    is productive while it runs.
    """
    end = _trained_until(attempt, until, closed)
    reported = steps is Visibility.REPORTED
    marks = _training(attempt) if reported else _blind(attempt, steps)
    marks = [marks[0], *(m for m in marks[1:] if m.at <= end)]
    if reported and attempt.step_end is not None and (attempt.incident or closed):
        marks += _unfinished_step(attempt, marks[-1], end)
    return _in_order([*marks, *_aftermath(attempt, end, marks[-1].incident, closed)], until)


def _trained_until(attempt: Attempt, until: int, closed: bool) -> int:
    """When the attempt stopped training: by a fault, by order, by itself, or not before `until`."""
    if attempt.ordered is not None:
        fault = attempt.fault() if attempt.incident is not None else None
        if attempt.saves and attempt.step_end is not None:
            return max(attempt.ordered, min(attempt.step_end, until))
        return attempt.ordered if fault is None else min(fault, attempt.ordered)
    return attempt.last_exit if closed and attempt.last_exit is not None else until


def _training(attempt: Attempt) -> list[BucketStart]:
    reached = ((attempt.reached.get(milestone), AFTER.get(milestone)) for milestone in Milestone)
    return _marks(attempt, ((at, bucket) for at, bucket in reached if bucket is not None))


def _blind(attempt: Attempt, steps: Visibility) -> list[BucketStart]:
    """Without steps: it starts until it is seen to do one or, where that cannot be seen, until it
    says something, unless that takes too long to tell."""
    started, spoke, stepped = (attempt.reached.get(milestone) for milestone in WITHOUT_STEPS)
    if started is None:
        return _marks(attempt, ((spoke if stepped is None else stepped, Bucket.PRODUCTIVE),))
    latest = started + round(STEP_WAIT_S * 1000)
    if stepped is not None:
        trains = stepped if attempt.carried is None else min(stepped, latest)
    elif steps is Visibility.SEEN:
        trains = latest
    else:
        quick = spoke is not None and spoke - started <= QUIET_S * 1000
        trains = spoke if spoke is not None and quick else started
    return _marks(attempt, ((started, Bucket.START), (trains, Bucket.PRODUCTIVE)))


def _marks(attempt: Attempt, changes: Iterable[tuple[int | None, Bucket]]) -> list[BucketStart]:
    marks = [BucketStart(attempt.began, attempt.opening, attempt.carried)]
    for at, bucket in changes:
        if at is None:
            continue
        trains = bucket in (Bucket.PRODUCTIVE, Bucket.OTHER)
        marks.append(
            BucketStart(max(at, marks[-1].at), bucket, None if trains else marks[-1].incident)
        )
    return marks


def _unfinished_step(attempt: Attempt, last: BucketStart, end: int) -> list[BucketStart]:
    """What came after the last completed step is to be redone or, without a fault, was no step."""
    by_itself = attempt.incident is None
    trained = last.bucket is Bucket.PRODUCTIVE or (last.bucket is Bucket.REPLAY and by_itself)
    if not trained or attempt.step_end is None:
        return []
    at = min(max(attempt.step_end, last.at), end)
    return [BucketStart(at, Bucket.OTHER if by_itself else Bucket.REPLAY, None)]


def _aftermath(attempt: Attempt, end: int, incident: int | None, closed: bool) -> list[BucketStart]:
    marks: list[BucketStart] = []
    if attempt.incident is not None and attempt.ordered is not None:
        incident = attempt.incident
        marks = [
            BucketStart(end, Bucket.DETECT, incident),
            BucketStart(attempt.ordered, Bucket.TEARDOWN, incident),
        ]
        if attempt.gone is not None:
            marks.append(BucketStart(attempt.gone, Bucket.SCHEDULE, incident))
    elif attempt.ordered is not None:
        marks = [BucketStart(max(attempt.ordered, end), Bucket.TEARDOWN, None)]
    elif closed and attempt.number > 0:
        marks = [BucketStart(end, Bucket.TEARDOWN, None)]
    if attempt.closing is not None:
        marks = [m for m in marks if m.at <= attempt.closing]
        marks.append(BucketStart(attempt.closing, Bucket.TEARDOWN, None))
    return marks


def _in_order(marks: list[BucketStart], until: int) -> list[BucketStart]:
    """Each mark not before the one ahead of it, and none after `until`."""
    ordered: list[BucketStart] = []
    for mark in marks:
        at = max(mark.at, ordered[-1].at) if ordered else mark.at
        ordered.append(mark._replace(at=min(at, until)))
    return ordered
