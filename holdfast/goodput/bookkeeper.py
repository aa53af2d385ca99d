"""Read the journal once, front to back, and keep the books.

Facts sharpen the moments of the attempt that is open (`attempt.py`); once the attempt is over its
stretches are posted (`books.py`). What is productive is posted as it is reported, so that the last
hour is known in detail. One pass, because a journal may be months long.

Incidents are numbered by the first order to stop each attempt, also where the order to start it was
lost with a controller, until somebody asks the job to stop: so the controller numbers them.
"""

from collections.abc import Iterable, Sequence
from typing import assert_never

from holdfast.actions import (
    AnyAction,
    AskNodes,
    AssignRank,
    CheckNodes,
    CollectEvidence,
    Diagnose,
    Dismiss,
    EndJob,
    Entry,
    Fence,
    KeepVersion,
    PrepareUpdate,
    ProfileSteps,
    StartAttempt,
    StopAttempt,
    Survey,
)
from holdfast.events import (
    AnyEvent,
    AttemptStopped,
    CheckpointCommitted,
    CheckpointFailed,
    CollectivesShifted,
    ControllerResumed,
    DeadlinePassed,
    Diagnosed,
    EvidenceTaken,
    HandedOver,
    HangJudged,
    HangSuspected,
    HealthChanged,
    JobSubmitted,
    Judgement,
    LossPlateaued,
    Milestone,
    MilestoneReached,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodePreparing,
    NodeReady,
    NodesChecked,
    NodesMet,
    NodeUnfit,
    NumbersBroke,
    NumbersSpiked,
    OrdersLost,
    Progressed,
    RepetitionRequested,
    ReplicasDiffer,
    ScaleRequested,
    StopRequested,
    StragglersFound,
    Surveyed,
    UpdatePrepared,
    UpdateRequested,
    WorkerExited,
    WorkersExited,
)
from holdfast.goodput.attempt import (
    WITHOUT_STEPS,
    Attempt,
    BucketStart,
    LostMember,
    Visibility,
    timeline,
)
from holdfast.goodput.books import NO_STALLS, Books, milliseconds
from holdfast.goodput.buckets import Bucket
from holdfast.goodput.ledger import Ledger, close_books
from holdfast.profiles import StepsProfiled, StepsSlowed


def ledger(started_at: float, entries: Iterable[Entry], now: float | None) -> Ledger:
    """Where the time went since `started_at` (seconds since the epoch).

    The wall time ends with the entry that ends the job; before that at `now` or, with None, at the
    last entry.
    """
    bookkeeper = Bookkeeper(started_at)
    for entry in entries:
        bookkeeper.add(entry)
    return bookkeeper.at(now)


class Bookkeeper:
    """The ledger of a job that goes on: entries are added as they are journaled."""

    def __init__(self, started_at: float) -> None:
        start = milliseconds(started_at)
        self._books = Books(start, start)
        self._attempt = Attempt(0, start, Bucket.SCHEDULE, None)
        self._ranks: dict[int, str] = {}  # node rank → node
        self._members: set[str] = set()  # the nodes with a rank
        self._steps = Visibility.UNKNOWN
        self._launched = False  # workers have run
        self._asked = False  # somebody wants the job to stop
        self._incidents = 0
        self._last = start
        self._ended = False

    def add(self, entry: Entry) -> None:
        """Take in the next line of the journal; what follows the end of the job is ignored."""
        if self._ended:
            return
        at = max(self._last, milliseconds(entry.at))
        self._hear(entry.event, at)
        for action in entry.actions:
            self._obey(action, at, entry.event)
        self._last = at

    def at(self, now: float | None) -> Ledger:
        """The ledger at `now`, or at the last entry; what is still open is booked as it looks."""
        books = self._books.copy()
        observed = self._steps is Visibility.REPORTED or not self._launched
        if not self._ended:
            until = self._last if now is None else max(self._last, milliseconds(now))
            marks = self._timeline(until, closed=False)
            _post(books, self._attempt, until, marks, self._steps)
        return close_books(books, observed=observed, ended=self._ended)

    @property
    def certain(self) -> dict[Bucket, int]:
        """Milliseconds by bucket of what is posted: all but what the open attempt still does."""
        return self._books.buckets

    # ── facts ──

    def _hear(self, event: AnyEvent, at: int) -> None:
        match event:
            case WorkerExited():
                self._hear_of_exits(event, (event,), event.ago_s, at)
            case WorkersExited():
                exits = [group.first for group in event.groups]  # the earliest of their kinds
                self._hear_of_exits(event, exits, event.last_ago_s, at)
            case AttemptStopped() if event.attempt == self._attempt.number:
                self._attempt.hear(event.progress, at)
                self._attempt.gone = at
            case AttemptStopped():
                pass
            case MilestoneReached() | Progressed():
                self._hear_of_training(event, at)
            case NodeReady():
                self._steps = Visibility.REPORTED if event.instrumented else self._steps
            case NodeLost():
                self._suspect(event.node, at - milliseconds(event.ago_s))
            case NodeLeft():
                self._suspect(event.node, at)
            case StopRequested():
                self._asked = True
                idle = self._attempt.number == 0 or self._attempt.ordered is not None
                if idle and self._attempt.closing is None:
                    self._attempt.closing = at
            case ScaleRequested():
                pass
            case HangSuspected() | HangJudged():
                self._hear_of_standstill(event, at)
            case CollectivesShifted() if event.attempt == self._attempt.number:
                self._attempt.faults.struck(at - milliseconds(event.ago_s))
            case CollectivesShifted():
                pass
            case OrdersLost():
                pass
            case ControllerResumed():
                self._miss(event.existing)
            case (
                JobSubmitted()
                | HandedOver()
                | NodesMet()
                | NodeJoined()
                | NodePreparing()
                | NodeUnfit()
                | Diagnosed()
                | NodesChecked()
            ):
                pass
            case NumbersBroke() | NumbersSpiked() | LossPlateaued() | ReplicasDiffer():
                # a fault only if the attempt is stopped for it
                pass
            case StepsSlowed() | StepsProfiled():
                pass
            case DeadlinePassed() | CheckpointCommitted() | CheckpointFailed() | Surveyed():
                pass
            case StragglersFound() | HealthChanged() | EvidenceTaken():
                pass
            case UpdateRequested() | UpdatePrepared() | RepetitionRequested():
                pass
            case _:
                assert_never(event)

    def _hear_of_exits(
        self,
        event: WorkerExited | WorkersExited,
        exits: Sequence[WorkerExited],
        last_ago_s: float,
        at: int,
    ) -> None:
        attempt = self._attempt
        if event.attempt != attempt.number:
            return
        attempt.hear(event.progress, at)
        last = at - milliseconds(last_ago_s)
        attempt.last_exit = max(last, attempt.last_exit or last)
        for failed in (exited for exited in exits if not _exited_well(exited)):
            when = at - milliseconds(failed.ago_s)
            attempt.faults.struck(when)

    def _hear_of_standstill(self, event: HangSuspected | HangJudged, at: int) -> None:
        """The unproductive time before it was noticed is lost, too: where steps are told all since
        the last one, whatever is then found to end it; elsewhere, if it was a hang."""
        attempt = self._attempt
        if event.attempt != attempt.number:
            return
        judged = event.judgement if isinstance(event, HangJudged) else Judgement.UNKNOWN
        works = judged in (Judgement.SLOW, Judgement.PAUSED, Judgement.OVER)
        attempt.faults.stood_until = None if works else at
        if judged is Judgement.HANG:
            attempt.faults.struck(at - milliseconds(event.ago_s))

    def _hear_of_training(self, event: MilestoneReached | Progressed, at: int) -> None:
        attempt = self._attempt
        if event.attempt != attempt.number:
            return
        if isinstance(event, Progressed):
            attempt.hear(event.progress, at)
            self._post_progress(at)
            return
        self._launched = True
        if event.milestone not in WITHOUT_STEPS:
            self._steps = Visibility.REPORTED
        elif event.milestone is Milestone.STEPPED and self._steps is Visibility.UNKNOWN:
            self._steps = Visibility.SEEN
        attempt.reach(event.milestone, at - milliseconds(event.ago_s))

    def _suspect(self, node: str, when: int, *, found: bool = False) -> None:
        """A lost member is a fault; other nodes may come and go."""
        if node in self._members:
            gone = LostMember(when, found)
            self._attempt.faults.node = min(self._attempt.faults.node or gone, gone)

    def _miss(self, existing: Sequence[str]) -> None:
        """Members that went while there was no controller: nothing is known of them since the line
        before, so that the time for which a machine was off is neither training nor work redone."""
        for node in self._members - set(existing):
            self._suspect(node, self._last, found=True)

    # ── orders ──

    def _obey(self, action: AnyAction, at: int, event: AnyEvent) -> None:
        match action:
            case AssignRank():
                self._members.discard(self._ranks.get(action.node_rank, ""))
                self._ranks[action.node_rank] = action.node
                self._members.add(action.node)
            case StartAttempt():
                if action.attempt > self._attempt.number:  # else it only repeats the order
                    self._begin(action, at)
            case StopAttempt():
                self._stop(action, at, event)
            case EndJob():
                self._close(at)
                self._ended = True
            case (
                AskNodes()
                | Diagnose()
                | CollectEvidence()
                | CheckNodes()
                | Survey()
                | Dismiss()
                | Fence()
            ):
                pass
            case PrepareUpdate() | KeepVersion() | ProfileSteps():
                pass
            case _:
                assert_never(action)

    def _begin(self, order: StartAttempt, at: int) -> None:
        for rank in [rank for rank in self._ranks if rank >= order.node_count]:  # it has shrunk
            del self._ranks[rank]
            self._members = set(self._ranks.values())
        carried = self._close(at)
        self._attempt = Attempt(order.attempt, at, Bucket.START, carried)

    def _stop(self, order: StopAttempt, at: int, event: AnyEvent) -> None:
        if order.attempt > self._attempt.number:
            self._overtake(order.attempt, at)
        attempt = self._attempt
        if order.attempt != attempt.number or attempt.ordered is not None:
            return
        attempt.ordered = at
        if not self._asked:
            self._incidents += 1
            attempt.incident = self._incidents
        attempt.saves = order.save and self._asked
        if isinstance(event, NumbersBroke | ReplicasDiffer):
            ago_s = event.broke.ago_s if isinstance(event, NumbersBroke) else event.ago_s
            bad = max(attempt.began, at - milliseconds(ago_s))
            attempt.faults.struck(bad)
            self._books.take_back(bad, attempt.number)

    def _overtake(self, number: int, at: int) -> None:
        """The lines that ordered the attempts up to this one are lost, and with them when the one
        before has ended, unless it was stopped by then: of that only its last step is certain."""
        known = self._attempt
        if known.number and known.ordered is None:
            known.ordered, known.incident = at, self._incidents + 1
            known.faults.node = LostMember(known.step_end or known.began, found=True)
        self._attempt = Attempt(number, at, Bucket.TEARDOWN, self._close(at))

    # ── posting ──

    def _timeline(self, until: int, *, closed: bool) -> list[BucketStart]:
        return timeline(self._attempt, until, steps=self._steps, closed=closed)

    def _close(self, at: int) -> int | None:
        """Post the rest of the open attempt; the incident that is still open is returned."""
        _post(self._books, self._attempt, at, self._timeline(at, closed=True), self._steps)
        return self._books.incident

    def _post_progress(self, at: int) -> None:
        """Steps that are known to be done are productive for good."""
        attempt, cursor = self._attempt, self._books.cursor
        caught_up = attempt.reached.get(Milestone.CAUGHT_UP)
        over = attempt.ordered is not None or Milestone.FINISHED in attempt.reached
        if caught_up is None or over or attempt.fault() is not None or attempt.step_end is None:
            return
        until = min(at, attempt.step_end)
        if until <= max(cursor, caught_up):
            return
        marks = [BucketStart(cursor, Bucket.PRODUCTIVE, None)]
        if cursor <= caught_up:  # what came before is not posted yet
            marks = self._timeline(until, closed=False)
        _post(self._books, attempt, until, marks, self._steps, final=True)


def _post(
    books: Books,
    attempt: Attempt,
    until: int,
    marks: list[BucketStart],
    steps: Visibility,
    *,
    final: bool = False,
) -> None:
    """Post each stretch; `final`: its stalls will not be asked for again."""
    ends = [*(m.at for m in marks[1:]), until]
    for mark, end in zip(marks, ends, strict=True):
        productive = mark.bucket is Bucket.PRODUCTIVE
        stalls = attempt.owed(steps) if productive else NO_STALLS
        taken = books.post(end, mark.bucket, attempt.number, mark.incident, stalls)
        if final:
            attempt.settle(taken)


def _exited_well(event: WorkerExited) -> bool:
    done = event.progress.finished or event.progress.step is None
    return event.exit_code == 0 and done
