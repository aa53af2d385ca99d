"""When an attempt has stood still for too long: no event per heartbeat, one suspicion per stall.

A rank shows that it lives by completing a step or by going on to another phase. How long that may
take is learned from the attempt itself: several median steps, and more than the longest pause so
far, so that an evaluation every fifty steps is suspected once. What is no step is learned apart:
each section by its name, waits for data, snapshots, and, from one attempt to the next, how long it
takes to come to the loop, and from there to the first step. Where the job file says how long a
step may take at most (`step_timeout_s`), that is it, outside of what the script names. One that
reports no steps can name nothing, so it holds from each step that is seen to the next one or to the
end of the script; where steps are printed, perhaps each hundredth, it is never less than 1.5 times
the longest such pause so far. Before its first step nothing is known of a rank, and compiling or
loading may take minutes. A suspicion is cheap: it only has the workers looked at, and what is seen
there decides (`diagnosis/hang.py`). While it is not confirmed, the next one comes after half as
long again. Times are of one clock that never steps back.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from holdfast.events import HangSuspected, Milestone, in_rows
from holdfast.messages import SAVES, Report, WorkerReport

FLOOR_S = 2.0  # nobody is suspected earlier
SECTION = "section"  # a stretch that the script has named, because it may take long
SECTION_FLOOR_S = 60.0  # nor while one is in it
STORAGE_FLOOR_S = 30.0  # nor while all wait for data or save: storage is sometimes slow
BEGIN_S = 120.0  # until the first step, in the first attempt
BEGIN_MIN_S = 20.0  # in later ones, which are known to take less
BEGINS = 4.0  # times what that took in the attempt before: up to the loop, and from there
STEPS = 5.0  # median steps
PAUSES = 1.5  # times the longest pause so far
AGAIN = 0.5  # of what a stall has lasted, until it is suspected again
DECISIVE_S = (15.0, 30.0, 60.0)  # after which some ways to stand still are no longer waited for
LEARNED = 8  # steps, before which the first one says how long they may take
KEPT = 512  # step times that the median is taken of
SHORT_ROW = 32  # steps among which one long pause can be told from many steps
STORAGE_PHASES = ("data", "snapshot")
STEP_PHASES = ("data", "step")
LEFT = "finished", SAVES
ENDS = "ending"  # its script is over, and its process is not
SHOWS_STEPS = frozenset((Milestone.ARRIVED, Milestone.STEPPED))
TRAINS = frozenset((Milestone.FIRST_STEP, Milestone.STEPPED))
NAMED = 64  # ranks that a suspicion names


class Beginning(NamedTuple):
    """How long ranks may stand still before their first step: some before the loop, all in it."""

    loop_s: float = BEGIN_S
    first_s: float = BEGIN_S

    @staticmethod
    def after(loop_s: float, first_s: float) -> "Beginning":
        """What that took in the attempt before."""
        return Beginning(*(min(max(BEGINS * s, BEGIN_MIN_S), BEGIN_S) for s in (loop_s, first_s)))


class RankMark(NamedTuple):
    """What a rank said last: a report that differs in this shows that it moves."""

    step: int
    phase: str
    milestones: int
    section: str
    printed: bool  # the step is one that it printed: nothing else is known of it
    restored: bool  # it is in its loop
    data_wait_s: float  # in all
    snapshot_s: float  # likewise

    @property
    def stretch(self) -> str:
        """What it is in that may take longer than a step; empty: nothing of the kind."""
        if self.phase == SECTION:
            return f"section {self.section}"
        return self.phase if self.phase in STORAGE_PHASES else ""


class HangWatch:
    """What is known of the progress of one attempt's ranks. One that has neither called `join()`
    nor been seen to step or to print steps, or has left its loop, is not watched, until its script
    has ended."""

    def __init__(self, timeout_s: float, step_timeout_s: float = 0.0) -> None:
        self._timeouts_s = timeout_s, step_timeout_s or math.inf  # of anything, of a step
        self._beginning = Beginning()
        self.begin(0, 0, 0.0)

    def begin(self, attempt: int, world_size: int, now: float) -> None:
        """Forget everything and watch this attempt of `world_size` ranks."""
        self._attempt, self._began = attempt, now
        self._moved = [math.inf] * world_size  # when each rank last moved; inf: not watched
        self._step = [-1] * world_size
        self._reported = True
        self._trained = bytearray(world_size)  # whether it has done its first step
        self._untrained = world_size
        self._marks: dict[int, RankMark] = {}  # what each rank said last
        self._times: deque[float] = deque(maxlen=KEPT)
        self._longest_s = self._first_s = 0.0  # pauses: of all steps, and of the first
        self._stretches_s: dict[str, float] = {}  # the longest of each name
        # The next suspicion, at the earliest, of those who have not moved since the second time.
        self._rests = 0.0, math.inf

    def observe(self, report: Report, now: float) -> None:
        """Take in one node's report. Costs O(workers in the report)."""
        if report.attempt == self._attempt:
            for worker in report.workers:
                if 0 <= worker.rank < len(self._moved):
                    self._take_in(worker, now)

    def forgive(self, now: float, late_s: float = math.inf) -> None:
        """We did not listen for so long: for all we know, everybody has moved meanwhile."""
        self._moved = [min(now, at + late_s) if at < math.inf else at for at in self._moved]

    def stands_s(self, now: float) -> float:
        """For how long the rank has stood still that has done so the longest."""
        oldest = min(self._moved, default=math.inf)
        return max(0.0, now - oldest) if oldest < math.inf else 0.0

    @property
    def step_s(self) -> float:
        """A median step; 0 while unknown."""
        return median(self._times) if self._times else 0.0

    def is_due(self, now: float) -> bool:
        """Whether somebody has stood still for too long; again and again while that lasts."""
        stands_s = self.stands_s(now)
        until, moved = self._rests
        enough = stands_s >= FLOOR_S and (now >= until or now - stands_s > moved)
        return enough and stands_s >= self._budget_s(self._still(now))

    def suspect(self, now: float) -> HangSuspected:
        """Who that is."""
        stands_s, still = self.stands_s(now), self._still(now)
        limit_s = self._limit_s(still)
        decisive_s = (*DECISIVE_S, *self._timeouts_s, limit_s)
        ahead = [at - stands_s for at in decisive_s if at > stands_s]
        next_s = min([max(FLOOR_S, AGAIN * stands_s), *ahead])
        self._rests = now + next_s, now - stands_s / 2  # as in `_still`
        behind = self._behind(still)
        step = self._marks[behind[0]].step
        return HangSuspected(
            attempt=self._attempt,
            ago_s=stands_s,
            budget_s=self._budget_s(still),
            step=step if step >= 0 and self._reported else None,
            counted=step if step >= 0 and not self._reported else None,
            step_s=self.step_s,
            trained=all(self._trained[rank] for rank in still),
            reported=self._reported,
            overdue=stands_s >= limit_s,
            ranks=in_rows(behind[:NAMED]),
        )

    def _still(self, now: float) -> list[int]:
        """Ranks that have stood still about as long as the one that has done so the longest."""
        latest = now - self.stands_s(now) / 2
        return [rank for rank, at in enumerate(self._moved) if at <= latest]

    def _budget_s(self, still: Sequence[int]) -> float:
        floor_s = self._floor_s([self._marks[rank] for rank in still])
        if not all(self._trained[rank] for rank in still):
            return max(floor_s, self._begin_s)
        if len(self._times) < LEARNED:
            floor_s = max(floor_s, BEGIN_MIN_S, PAUSES * self._first_s)
        usual_s = max(floor_s, STEPS * self.step_s, PAUSES * self._longest_s)
        return min(usual_s, self._limit_s(still))

    @property
    def _begin_s(self) -> float:
        """Before the first step: less once all are in their loops."""
        there = len(self._marks) == len(self._moved)
        there = there and all(mark.restored for mark in self._marks.values())
        return self._beginning.first_s if there else self._beginning.loop_s

    def _floor_s(self, marks: Sequence[RankMark]) -> float:
        """By what they are in, if that is no step."""
        storage = all(mark.phase in STORAGE_PHASES for mark in marks)
        sections = [mark.stretch for mark in marks if mark.phase == SECTION]
        names = sections or ([mark.stretch for mark in marks] if storage else [])
        longest_s = max((self._stretches_s.get(name, 0.0) for name in names), default=0.0)
        floor_s = SECTION_FLOOR_S if sections else STORAGE_FLOOR_S if storage else FLOOR_S
        return max(floor_s, PAUSES * longest_s)

    def _limit_s(self, still: Sequence[int]) -> float:
        """What the job file gives these for a step; inf: nothing, or they are in none."""
        if not self._is_step(still):
            return math.inf
        printed = any(self._marks[rank].printed for rank in still)
        return max(self._timeouts_s[1], PAUSES * self._longest_s if printed else 0.0)

    def _is_step(self, still: Sequence[int]) -> bool:
        """Whether these are in their steps, or wait for data, and nobody does anything else."""
        known = len(self._times) >= LEARNED and all(self._trained[rank] for rank in still)
        watched = (mark for rank, mark in self._marks.items() if self._moved[rank] < math.inf)
        return known and all(
            mark.phase in STEP_PHASES if self._reported else mark.phase != ENDS and mark.step >= 0
            for mark in watched
        )

    def _behind(self, still: Sequence[int]) -> list[int]:
        """Of the ranks that stand still, those that have come least far."""
        least = min(self._step[rank] for rank in still)
        return [rank for rank in still if self._step[rank] == least]

    def _take_in(self, worker: WorkerReport, now: float) -> None:
        rank = worker.rank
        if worker.phase != ENDS and (worker.phase in LEFT or worker.progress.finished):
            self._moved[rank] = math.inf
            return
        step, ended_at = _newest_step(worker, now)
        printed = worker.progress.step is None and not worker.optimizer_steps
        mark = _mark_of(worker, step, printed=printed)
        known = self._marks.get(rank)
        if mark == known or worker.milestones.keys().isdisjoint(SHOWS_STEPS):
            return
        self._marks[rank] = mark
        self._reported = Milestone.ARRIVED in worker.milestones
        if known is not None:
            self._learn_stretches(rank, known, mark, now)
        if known is not None and known.printed and not printed:
            self._begin_anew(rank)  # what it printed before was another count
        same_phase = known is not None and known.phase == worker.phase
        at = ended_at if step > self._step[rank] and same_phase else now
        if step > self._step[rank]:
            waited_s = _waited_s(known, mark) if same_phase else 0.0
            self._advance(worker, step, ended_at, waited_s, printed=printed)
        before = self._moved[rank]
        self._moved[rank] = max(before, at) if before < math.inf else at

    def _learn_stretches(self, rank: int, known: RankMark, mark: RankMark, now: float) -> None:
        """From a rank that was in one at its last mark, or in between."""
        took = {"data": mark.data_wait_s - known.data_wait_s}
        took["snapshot"] = mark.snapshot_s - known.snapshot_s
        if known.stretch and mark.stretch != known.stretch and self._moved[rank] < math.inf:
            took[known.stretch] = now - self._moved[rank]
        for name, seconds in took.items():
            if seconds >= FLOOR_S:
                self._stretches_s[name] = max(self._stretches_s.get(name, 0.0), seconds)
                self.forgive(now)  # others may have waited for it

    def _begin_anew(self, rank: int) -> None:
        self._step[rank] = -1
        self._untrained += self._trained[rank]
        self._trained[rank] = False

    def _advance(
        self, worker: WorkerReport, step: int, at: float, waited_s: float, *, printed: bool
    ) -> None:
        """It has completed steps: learn how long they take, the first of an attempt apart, without
        what it `waited_s` for data and snapshots meanwhile."""
        rank = worker.rank
        count, pause_s = step - self._step[rank], at - self._moved[rank] - waited_s
        self._step[rank], is_first = step, self._step[rank] < 0
        if printed and is_first:
            return  # it may say where it goes on from
        if self._trained[rank] and pause_s > -math.inf:
            step_s = worker.step_time_s or worker.optimizer_step_time_s or pause_s / count
            self._times.extend([step_s] * min(count, LEARNED))
            if printed:
                longest_s = pause_s  # many print each tenth or hundredth step only
            elif count <= SHORT_ROW:
                longest_s = pause_s - (count - 1) * step_s
            else:
                longest_s = pause_s / count
            self._longest_s = max(self._longest_s, longest_s)
        elif not self._trained[rank] and not worker.milestones.keys().isdisjoint(TRAINS):
            self._trained[rank] = True
            self._untrained -= 1
            self._first_s = max(self._first_s, pause_s)
            if not self._untrained:
                took_s = max(at - self._began, _begin_took_s(worker.milestones))
                first_s = max(self._first_s, _first_took_s(worker.milestones, took_s))
                self._beginning = Beginning.after(max(0.0, took_s - first_s), first_s)


def _begin_took_s(ages: Mapping[Milestone, float]) -> float:
    """From the start of a worker to its first step, which may have been before we watched it: a
    controller that takes over begins in the middle of an attempt."""
    return max(ages.values()) - max(age for one, age in ages.items() if one in TRAINS)


def _newest_step(worker: WorkerReport, now: float) -> tuple[int, float]:
    """How many steps are done, -1 where none are known of, and when the newest was. Those of a
    script that reports none are those of its optimizers, and count from 1 in each attempt; where
    none are seen, those that it prints or writes to its file of progress."""
    if worker.progress.step is not None:
        return worker.progress.step, now - worker.progress.step_ago_s
    if worker.optimizer_steps:
        return worker.optimizer_steps, now - worker.optimizer_step_ago_s
    if worker.printed_step is not None:
        return worker.printed_step, now - worker.printed_step_ago_s
    return -1, now


def _first_took_s(ages: Mapping[Milestone, float], took_s: float) -> float:
    """From the beginning of its loop to its first step; `took_s` where only steps are seen."""
    if (in_loop_s := ages.get(Milestone.RESTORED)) is None:
        return took_s
    return in_loop_s - max(age for one, age in ages.items() if one in TRAINS)


def _mark_of(worker: WorkerReport, step: int, *, printed: bool) -> RankMark:
    return RankMark(
        step,
        worker.phase,
        len(worker.milestones),
        worker.section,
        printed,
        Milestone.RESTORED in worker.milestones,
        worker.progress.data_wait_s,
        worker.progress.snapshot_s,
    )


def _waited_s(known: RankMark | None, mark: RankMark) -> float:
    """Between two marks, for data and snapshots."""
    if known is None:
        return 0.0
    waited_s = mark.data_wait_s - known.data_wait_s + mark.snapshot_s - known.snapshot_s
    return max(0.0, waited_s)
