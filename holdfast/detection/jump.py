"""A loss that is far above the usual in the first steps of an attempt, by what earlier ones knew.

What a worker knows of its numbers ends with it, so its first steps after a restart or an update
with other code or data are compared with nothing. Here the loss of one rank is kept as its reports
come, over attempts, and the first steps of an attempt are measured against the steps before the one
it goes on from: steps that are done again do not count, nor does anything if it begins anew.
"""

from collections import deque
from collections.abc import Iterator

from holdfast.detection.numerics import LEARNED_COUNT, WINDOW_COUNT, RankSpike, Usual
from holdfast.detection.reported_loss import reported_loss
from holdfast.events import Quantity, Spike
from holdfast.messages import Report, WorkerReport


class JumpWatch:
    """The loss of the lowest rank that tells one."""

    def __init__(self) -> None:
        self._attempt, self._rank = 0, -1
        self._first, self._step = -1, -1  # of this attempt; -1: none yet
        self._known: deque[tuple[int, float]] = deque(maxlen=WINDOW_COUNT)  # step and loss
        self._usual: Usual | None = None  # of the steps before this attempt

    def observe(self, report: Report) -> list[RankSpike]:
        """Take in one node's report of the newest attempt: step and rank of a jump, and what it
        is."""
        if report.attempt > self._attempt:
            self._attempt, self._first, self._step = report.attempt, -1, -1
        return [told for worker in report.workers for told in self._take_in(worker)]

    def _take_in(self, worker: WorkerReport) -> Iterator[RankSpike]:
        if worker.rank > self._rank >= 0:
            return
        told = reported_loss(worker)
        if told is None:
            return
        step, loss = told
        if worker.rank != self._rank:
            self._rank, self._first, self._step = worker.rank, -1, -1
            self._known.clear()
        if step <= self._step:
            return
        if self._first < 0:
            self._begin(step)
        self._step = step
        self._known.append((step, loss))
        if self._usual is None or step >= self._first + LEARNED_COUNT:
            return
        usual = self._usual.spike(loss)
        if usual is not None:
            self._usual = None  # told once
            yield step, worker.rank, Spike(step=step, what=Quantity.LOSS, value=loss, usual=usual)

    def _begin(self, step: int) -> None:
        self._first, self._usual = step, Usual()
        before = [(at, loss) for at, loss in self._known if at < step]
        self._known = deque(before, maxlen=WINDOW_COUNT)
        for _, loss in before:
            self._usual.spike(loss)
