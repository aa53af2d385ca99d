"""Looking at the progress pages: reports to the controller, steps to `metrics.jsonl`.

Each look costs microseconds: it compares a few bytes per worker. A report goes out when something
has changed, as often as the controller wants it, and at once when a worker has reached a milestone,
because the controller measures the stages of a recovery by them. What does not change is repeated
now and then, for whoever has not heard it.
"""

import os
import time
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.agent.controller_connection import ControllerConnection
from holdfast.agent.counters import NodeCounters
from holdfast.agent.idleness import Idleness
from holdfast.agent.metrics_file import MetricsFile
from holdfast.agent.node_attempt import NodeAttempt
from holdfast.agent.pauses import Pauses
from holdfast.agent.workers import Worker
from holdfast.events import Milestone
from holdfast.messages import SAVES, Report, WorkerReport

REPEAT_S = 5.0  # at least, where nothing changes
LOOK_SOON_S = 0.02  # while an attempt comes up
LOOK_LATER_S = 0.05


class ProgressWatch:
    """What was last seen of the attempt's pages."""

    def __init__(
        self,
        node: str,
        metrics: MetricsFile,
        controller: ControllerConnection,
        arenas: Sequence[int],
    ) -> None:
        """`arenas`: of each local rank, where its snapshots are."""
        self._node = node
        self._metrics, self._arenas = metrics, arenas
        self._controller = controller
        self._reported_at = float("-inf")
        self._reported: list[object] = []  # what the last report said, ages apart
        self._welcomes = 0  # of the link, at the last report
        self._records_seen: tuple[int, int] = (0, 0)  # attempt, how many
        self.pause_s = LOOK_LATER_S
        self._pauses = Pauses()
        self.counters = NodeCounters()
        self.idleness = Idleness()

    def look(self, attempt: NodeAttempt | None, now: float) -> None:
        """One look at every page; sends what is due."""
        changed = attempt is not None and self._has_news(attempt)
        if attempt is not None:
            self._take_records(attempt)
        self._pauses.look(attempt.workers.values() if attempt is not None else (), now)
        coming_up = attempt is not None and not attempt.trains and attempt.stop_at is None
        self.pause_s = LOOK_SOON_S if coming_up else LOOK_LATER_S
        if changed or now >= self._reported_at + self._controller.report_s:
            self.report(attempt, now, anyway=changed)

    def report(self, attempt: NodeAttempt | None, now: float, *, anyway: bool = True) -> None:
        """Send what the pages say now, if that is not what they said last."""
        reports = () if attempt is None else tuple(self._reports(attempt, now))
        number = 0 if attempt is None else attempt.order.attempt
        if attempt is not None:
            self.counters.looked(number, reports)
            reports = tuple(map(self.counters.with_logged, reports))
        said = [number, *map(_without_ages, reports)]
        anyway |= self._controller.welcomes != self._welcomes  # a new controller knows nothing yet
        if anyway or said != self._reported or now >= self._reported_at + REPEAT_S:
            self._reported_at, self._reported = now, said
            self._welcomes = self._controller.welcomes
            self._controller.report(Report(node=self._node, attempt=number, workers=reports))

    def _reports(self, attempt: NodeAttempt, now: float) -> Iterator[WorkerReport]:
        for worker in attempt.workers.values():
            if worker.assignment is not None:
                told = worker.page.report(worker.assignment.rank, worker.pid, now)
                kept = _memory_of(self._arenas[worker.local_rank])
                saves = worker.death is not None and worker.death.exit_code == 0
                phase = SAVES if saves else told.phase
                told = msgspec.structs.replace(told, snapshot_bytes=kept, phase=phase)
                idle = self.idleness.of(worker.id)
                yield msgspec.structs.replace(told, **idle._asdict()) if idle else told

    @property
    def records_count(self) -> int:
        """Steps of rank 0 that were seen in the newest attempt, if it was here."""
        return self._records_seen[1]

    def last_look(self, attempt: NodeAttempt) -> None:
        """A worker has died: what it did last must be known before its death is."""
        self._take_records(attempt)
        self.report(attempt, time.monotonic())

    def _has_news(self, attempt: NodeAttempt) -> bool:
        changed = [worker for worker in attempt.workers.values() if _milestones_changed(worker)]
        if changed:
            attempt.trains = all(_trains(worker) for worker in attempt.workers.values())
        return bool(changed)

    def _take_records(self, attempt: NodeAttempt) -> None:
        first = attempt.workers.get(0)
        if first is None or first.assignment is None or first.assignment.rank != 0:
            return
        number = attempt.order.attempt
        seen = self._records_seen[1] if self._records_seen[0] == number else 0
        records, count = first.page.records(seen)
        self._records_seen = (number, count)
        self.counters.stepped(number, records)
        self._metrics.append(number, records)


def _milestones_changed(worker: Worker) -> bool:
    before, worker.milestones = worker.milestones, worker.page.milestone_words()
    return before != worker.milestones


def _trains(worker: Worker) -> bool:
    page = worker.page
    return page.reached(Milestone.FIRST_STEP) or page.reached(Milestone.STEPPED)


def _without_ages(report: WorkerReport) -> WorkerReport:
    """Ages grow by themselves."""
    return msgspec.structs.replace(
        report,
        progress=msgspec.structs.replace(report.progress, step_ago_s=0.0),
        milestones=dict.fromkeys(report.milestones, 0.0),
        optimizer_step_ago_s=0.0,
        snapshot_ago_s=None,
        printed_step_ago_s=0.0,
        idle_s=None if report.idle_s is None else 0.0,
        asleep_s=0.0,
    )


def _memory_of(arena: int) -> int:
    """What a sparse file really has, in bytes."""
    return os.fstat(arena).st_blocks * 512
