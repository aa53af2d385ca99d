"""Reports of single workers reduced to facts about the whole attempt.

A milestone is reached when every rank has reached it (OUTPUT, STEPPED: when one has); an attempt is
as far as its slowest rank.
Counters hold how many ranks are where, so that a report costs what it contains and not what the
job is large. The controller hears a few facts a minute, however often its nodes report.
"""

import heapq
from array import array
from collections.abc import Container, Mapping
from dataclasses import dataclass, field

import msgspec

from holdfast.events import Milestone, MilestoneReached, Progress, Progressed
from holdfast.messages import SAVES, Report, WorkerReport

EVERY_S = 5.0  # between two tellings of progress, at first
LAST_EVERY_S = 60.0  # and at last: the journal of a job that trains for months has to stay small
SLOWER = 1 / 120  # of the attempt's age
ORDER = {milestone: place for place, milestone in enumerate(Milestone)}
BY_ONE = (Milestone.OUTPUT, Milestone.STEPPED)  # one rank is enough for these
LEFT = "finished", "ending", SAVES  # what a worker says it does once it has left its loop
FRESH_S = 12.0  # for what a rank says that it does; it is repeated in less than half of that
COMES_WITH_PROGRESS = (Milestone.CAUGHT_UP, Milestone.FINISHED)

Told = MilestoneReached | Progressed


@dataclass(slots=True)
class Crowd:
    """Ranks that stand at the same step, and when the last of them got there."""

    count: int = 0
    latest: float = 0.0


@dataclass(slots=True)
class Steps:
    """How many ranks have completed which step; ranks only move forward."""

    crowds: dict[int, Crowd] = field(default_factory=dict)
    queue: list[int] = field(default_factory=list)  # heap; may hold steps that all have left

    def move(self, old: int | None, new: int, at: float) -> None:
        """One rank is now at `new`, since `at`."""
        if new not in self.crowds:
            self.crowds[new] = Crowd(latest=at)
            heapq.heappush(self.queue, new)
        crowd = self.crowds[new]
        crowd.count += 1
        crowd.latest = max(crowd.latest, at)
        if old is not None:
            self.crowds[old].count -= 1
            if not self.crowds[old].count:
                del self.crowds[old]

    def lowest(self) -> tuple[int, float] | None:
        """The step of the slowest rank, and when the last rank there had completed it."""
        while self.queue and self.queue[0] not in self.crowds:
            heapq.heappop(self.queue)
        if not self.queue:
            return None
        return self.queue[0], self.crowds[self.queue[0]].latest


class ProgressReducer:
    """What the ranks of one attempt have reported. Times are of one clock that never steps back."""

    def __init__(self) -> None:
        self.stepped_at: float | None = None  # when a rank last completed a step, of any attempt
        self.begin(0, 0, 0.0)

    def begin(self, attempt: int, world_size: int, now: float) -> None:
        """Forget everything and listen to this attempt of `world_size` ranks."""
        self._attempt = attempt
        self._world_size = world_size
        self._newest: dict[int, WorkerReport] = {}
        self._heard: dict[int, float] = {}  # when that was
        self._steps = Steps()
        self._reporting = 0  # ranks that report steps
        self._seen = array("H", bytes(2 * world_size))  # a bit for each milestone of a rank
        self._reached: dict[Milestone, Crowd] = {m: Crowd() for m in Milestone}
        self._restored: tuple[int, int] | None = None  # lowest of all ranks, and batches left out
        self._sums = Progress()  # those of waits, the largest of all ranks
        self._told: Progressed | None = None
        self._told_at = self._began = now

    def newest(self) -> Mapping[int, WorkerReport]:
        """The newest report of each rank heard in this attempt."""
        return self._newest

    def training(self, gone: Container[int], now: float) -> int:
        """How many ranks say that they are in their steps, of those that are not `gone`."""
        fresh = {rank for rank, at in self._heard.items() if at >= now - FRESH_S}
        pages = [self._newest[rank] for rank in fresh if rank not in gone]
        return sum(
            page.progress.step is not None and not page.progress.finished and page.phase not in LEFT
            for page in pages
        )

    def watched_s(self, now: float) -> float:
        """How long this controller has watched the attempt."""
        return now - self._began

    def still_s(self, now: float) -> float:
        """How long no rank has completed a step; 0 if none has told of one."""
        return max(
            0.0, now - max((crowd.latest for crowd in self._steps.crowds.values()), default=now)
        )

    def observe(self, report: Report, now: float) -> list[Told]:
        """Take in one node's report; returns the facts it completes, oldest first.

        Each milestone is told once. Reports of other attempts and of ranks that do not exist are
        ignored. Costs O(workers in the report).
        """
        if report.attempt != self._attempt:
            return []
        complete: list[Milestone] = []
        for worker in report.workers:
            if 0 <= worker.rank < self._world_size:
                complete += self._take_in(worker, now)
        events = [e for m in sorted(complete, key=ORDER.__getitem__) for e in self._tell(m, now)]
        if now - self._told_at >= min(max(EVERY_S, (now - self._began) * SLOWER), LAST_EVERY_S):
            events += self._news(now)
        return events

    def flush(self, now: float) -> Progressed | None:
        """Progress that has not been told yet, for just before news of a fault."""
        news = self._news(now)
        return news[0] if news else None

    def _take_in(self, worker: WorkerReport, now: float) -> list[Milestone]:
        """Store a report; returns the milestones that every rank has now reached."""
        old = self._newest.get(worker.rank)
        if old is not None and _is_older(worker.progress, old.progress):
            return []
        self._newest[worker.rank], self._heard[worker.rank] = worker, now
        self._move(old.progress.step if old else None, worker.progress, now)
        if (ago_s := _stepped_ago_s(worker)) is not None:
            self.stepped_at = max(self.stepped_at or 0.0, now - ago_s)
        self._sums = _larger(self._sums, worker.progress)
        if len(worker.milestones) == self._seen[worker.rank].bit_count():
            return []  # they only grow
        ages = worker.milestones.items()
        return [m for m, age_s in ages if self._count(worker, m, now - age_s)]

    def _move(self, before: int | None, progress: Progress, now: float) -> None:
        if progress.step is None or progress.step == before:
            return
        if before is None:
            self._reporting += 1
        self._steps.move(before, progress.step, now - progress.step_ago_s)

    def _count(self, worker: WorkerReport, milestone: Milestone, at: float) -> bool:
        """Whether the last rank that was missing has reached the milestone."""
        bit = 1 << ORDER[milestone]
        if self._seen[worker.rank] & bit:
            return False
        self._seen[worker.rank] |= bit
        if milestone is Milestone.RESTORED:
            mine = worker.restored_step, worker.skipped
            self._restored = min(self._restored or mine, mine)
        crowd = self._reached[milestone]
        crowd.count += 1
        crowd.latest = at if crowd.count == 1 else max(crowd.latest, at)
        return crowd.count == (1 if milestone in BY_ONE else self._world_size)

    def _tell(self, milestone: Milestone, now: float) -> list[Told]:
        """A milestone; ahead of some the progress, so that what came before can be told apart."""
        step: int | None = None
        skipped = 0
        match milestone:
            case Milestone.RESTORED:
                assert self._restored is not None, "all have told"
                step, skipped = self._restored
            case Milestone.FIRST_STEP | Milestone.CAUGHT_UP | Milestone.FINISHED:
                step = self._lowest_step()
            case _:
                pass
        ago_s = max(0.0, now - self._reached[milestone].latest)
        reached = MilestoneReached(
            attempt=self._attempt, milestone=milestone, ago_s=ago_s, step=step, skipped=skipped
        )
        return [*(self._news(now) if milestone in COMES_WITH_PROGRESS else []), reached]

    def _lowest_step(self) -> int | None:
        lowest = self._steps.lowest()
        return lowest[0] if lowest and self._reporting == self._world_size else None

    def _news(self, now: float) -> list[Progressed]:
        """The progress of the whole attempt if every rank reports and something is new, or for how
        long nothing of it ran if none does."""
        lowest = self._steps.lowest()
        if lowest is None and not self._sums.paused_s:
            return []
        if lowest is not None and self._reporting < self._world_size:
            return []
        step, at = lowest or (None, now)
        finished = self._reached[Milestone.FINISHED].count == self._world_size
        progress = msgspec.structs.replace(self._sums, step=step, finished=finished)
        news = Progressed(attempt=self._attempt, progress=progress)
        if news == self._told:
            return []
        self._told, self._told_at = news, now
        return [_aged(news, max(0.0, now - at))]


def _stepped_ago_s(worker: WorkerReport) -> float | None:
    """Of its newest step in this attempt, however that is known; None: there is none."""
    if worker.progress.step is not None:
        return worker.progress.step_ago_s if worker.progress.step > worker.restored_step else None
    if worker.optimizer_steps:
        return worker.optimizer_step_ago_s
    return worker.printed_step_ago_s if worker.printed_step is not None else None


def _aged(news: Progressed, step_ago_s: float) -> Progressed:
    progress = msgspec.structs.replace(news.progress, step_ago_s=step_ago_s)
    return Progressed(attempt=news.attempt, progress=progress)


def _larger(known: Progress, told: Progress) -> Progress:
    """Of each sum the larger; costs nothing where none has grown."""
    new = (
        max(known.data_wait_s, told.data_wait_s),
        max(known.snapshot_s, told.snapshot_s),
        max(known.paused_s, told.paused_s),
    )
    if new == (known.data_wait_s, known.snapshot_s, known.paused_s):
        return known
    return Progress(data_wait_s=new[0], snapshot_s=new[1], paused_s=new[2])


def _is_older(new: Progress, known: Progress) -> bool:
    """Within an attempt steps only grow, so fewer of them is old news."""
    return known.step is not None and (new.step is None or new.step < known.step)
