"""What the workers of a node have done, added up over attempts: counters that only grow.

A worker counts from zero in each attempt, on a page that dies with it or is cleared. The agent
outlives its workers and does not end with a controller, so what it adds up here goes on over the
restarts of both; nothing is counted twice, because only what is new since the last look is added.
Step times and what the script logs come from the records of rank 0, of which none is missed.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from holdfast.messages import WorkerReport
from holdfast.monitoring.table import METRICS
from holdfast.page import StepRecord
from holdfast.scrape import DurationTally

RATE_NAMES = ("lr", "learning_rate")
SAMPLES, MFU, UPDATE_RATIO = "samples", "mfu", "update_ratio"
NO_METRIC = (*RATE_NAMES, SAMPLES, MFU, UPDATE_RATIO)  # they have series of their own


class WorkDone(NamedTuple):
    """Of one worker in one attempt, or of all together."""

    steps: float = 0.0
    tokens: float = 0.0
    data_wait_s: float = 0.0
    stall_s: float = 0.0

    # both are called for each worker twenty times a second: written out, they take half as long

    def or_more(self, other: "WorkDone") -> "WorkDone":
        """Of each number the larger one."""
        return WorkDone(
            max(self.steps, other.steps),
            max(self.tokens, other.tokens),
            max(self.data_wait_s, other.data_wait_s),
            max(self.stall_s, other.stall_s),
        )

    def with_new(self, now: "WorkDone", before: "WorkDone") -> "WorkDone":
        """With what somebody has done between the two."""
        return WorkDone(
            self.steps + now.steps - before.steps,
            self.tokens + now.tokens - before.tokens,
            self.data_wait_s + now.data_wait_s - before.data_wait_s,
            self.stall_s + now.stall_s - before.stall_s,
        )


NOTHING_DONE = WorkDone()


class NodeCounters:
    """Of one node; `looked` and `stepped` are told of everything once, and perhaps again."""

    def __init__(self) -> None:
        self.total = NOTHING_DONE
        self.samples = 0.0
        self.step_s = DurationTally(METRICS["holdfast_step_duration_seconds"].bounds)
        self.logged: dict[str, float] = {}  # newest of what rank 0 logs; empty where it is not
        self._attempt = 0
        self._known: dict[int, WorkDone] = {}  # of this attempt, by rank
        self._step: tuple[int, float] | None = None  # newest of rank 0, and when it ended

    def looked(self, attempt: int, workers: Sequence[WorkerReport]) -> None:
        """What the pages of an attempt say now."""
        self._begin(attempt)
        first = min((worker.rank for worker in workers), default=0)
        for worker in workers:
            done = _done(worker, counts_steps=worker.rank == first)
            known = self._known.get(worker.rank, NOTHING_DONE)
            if done != known:
                self._known[worker.rank] = most = known.or_more(done)
                self.total = self.total.with_new(most, known)

    def stepped(self, attempt: int, records: Sequence[StepRecord]) -> None:
        """Steps of rank 0, which is here, each once."""
        self._begin(attempt)
        for record in records:
            if self._step is not None and record.step == self._step[0] + 1:
                self.step_s.add(max(0.0, record.at - self._step[1]))
            self._step = record.step, record.at
            self.samples += max(0.0, record.metrics.get(SAMPLES, 0.0))
            self.logged.update(record.metrics)

    def with_logged(self, worker: WorkerReport) -> WorkerReport:
        """Rank 0's report with what else it logs and everybody draws; others as they are."""
        if worker.rank != 0 or not self.logged:
            return worker
        lr = next((self.logged[name] for name in RATE_NAMES if name in self.logged), None)
        return msgspec.structs.replace(worker, mfu=self.logged.get(MFU), lr=lr)

    def _begin(self, attempt: int) -> None:
        if attempt != self._attempt:
            self._attempt, self._known, self._step = attempt, {}, None
            self.logged = {}  # rank 0 may be elsewhere now


def _done(worker: WorkerReport, *, counts_steps: bool) -> WorkDone:
    step, progress = worker.progress.step, worker.progress
    steps = worker.optimizer_steps if step is None else max(0, step - worker.restored_step)
    return WorkDone(
        float(steps if counts_steps else 0),
        float(worker.tokens),
        progress.data_wait_s,
        progress.snapshot_s,
    )
