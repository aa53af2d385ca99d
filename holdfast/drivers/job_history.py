"""Looks at the ranks of a job now and then and keeps what they took: the picture of who is slow.

From telemetry, on the loop of the controller's host, and not heard by the controller. A disk that
does not take it costs the picture, never the job. Where nodes have no folder in common with the
controller, it also keeps the curve, from what rank 0 reports; and wherever a script reports no
steps, from those that its output or its file tells.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from holdfast.controller import State
from holdfast.detection.progress import ProgressReducer
from holdfast.history import CURVE, RANKS, CurveFile, RankHistory, StepPoint
from holdfast.messages import WorkerReport

EVERY_S = 3.0  # between two looks at the ranks of a small job
RANKS_A_SECOND = 1600
CURVE_S = 0.5  # between two looks at rank 0


class _Told(NamedTuple):
    """A step in the curve that the script does not report itself."""

    attempt: int
    step: int
    at: float
    loss: float | None  # newest that was told, maybe after the step
    step_s: float | None


class JobHistory:
    """Of one job. `lateness`: of each rank, where that is known; `clock`: the controller's."""

    def __init__(
        self,
        folder: Path,
        state: State,
        progress: ProgressReducer,
        lateness: Callable[[], Mapping[int, float]],
        clock: Callable[[], float],
        *,
        curve: bool,
    ) -> None:
        self._folder, self._state, self._progress = folder, state, progress
        self._lateness, self._clock = lateness, clock
        self._ranks: RankHistory | None = None
        self._curve: CurveFile | None = None
        self._draws = curve
        self._waits: dict[int, float] = {}  # by rank, since the attempt began
        self._of = (0, 0.0)  # the attempt of the last look, and when that was
        self._step: tuple[int, int] = (0, -1)  # newest in the curve: attempt, step
        self._tokens = 0
        self._told: _Told | None = None

    async def run(self, say: Callable[[str], None]) -> None:
        """For ever, whatever becomes of the figures; the first trouble is said."""
        said = False
        while True:
            await asyncio.sleep(CURVE_S)
            try:
                self.look(self._clock())
            except Exception as error:
                self._let_go()
                if not said:
                    say(f"metrics are not recorded: {error!r}; training continues")
                said = True

    def _let_go(self) -> None:
        """Other files, once the disk takes them."""
        for file in (self._ranks, self._curve):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()
        self._ranks = self._curve = None

    def look(self, now: float) -> None:
        """What is due. Raises `OSError`."""
        workers = self._progress.newest()
        if (first := workers.get(0)) is not None:
            if self._draws:
                self._draw(first, now)
            reports = first.progress.step is not None or self._state.max_step is not None
            if not reports and first.printed_step is not None:
                self._draw_told(first, first.printed_step, now)
        every_s = max(EVERY_S, self._state.world_size / RANKS_A_SECOND)
        if workers and now - self._of[1] >= every_s:
            self._add(workers, now)

    def _add(self, workers: Mapping[int, WorkerReport], now: float) -> None:
        attempt, before = self._state.attempt, self._of
        waits = {
            rank: one.progress.data_wait_s + one.progress.snapshot_s
            for rank, one in workers.items()
        }
        span_s = now - before[1]
        known, self._waits, self._of = self._waits, waits, (attempt, now)
        if before[0] != attempt or span_s <= 0:
            return  # what the next look is compared with
        late, ranks = self._lateness(), range(self._state.world_size)
        rows = [
            [_step_s(workers.get(rank)) for rank in ranks],
            [_share(waits.get(rank), known.get(rank), span_s) for rank in ranks],
            [late.get(rank, math.nan) for rank in ranks],
        ]
        if self._ranks is None:
            self._ranks = RankHistory(self._folder / RANKS, len(ranks))
        self._ranks.add(now, span_s, attempt, rows)

    def _draw(self, first: WorkerReport, now: float) -> None:
        """What the newest report says, if that is another step."""
        step, attempt = first.progress.step, self._state.attempt
        if step is None or (attempt, step) == self._step:
            return
        same, done = self._step[0] == attempt, step - self._step[1]
        tokens, step_s = first.tokens - self._tokens if same else 0, first.step_time_s
        self._step, self._tokens = (attempt, step), first.tokens
        rate = tokens / done / step_s if tokens > 0 and done > 0 and step_s else None
        values = (first.loss, first.grad_norm, step_s, rate, first.mfu, first.lr)
        self._put(StepPoint(step, now - first.progress.step_ago_s, attempt, values))

    def _draw_told(self, first: WorkerReport, step: int, now: float) -> None:
        """Likewise of a script that only prints them, and again if the loss comes later. One that
        has ever reported a step does so again: what it prints meanwhile may count other things, and
        the curve is written by its agent."""
        attempt, before, loss = self._state.attempt, self._told, first.printed_loss
        if loss is not None and math.isnan(loss):
            loss = None
        if before is None or (before.attempt, before.step) != (attempt, step):
            at = now - first.printed_step_ago_s
            self._told = _Told(attempt, step, at, loss, _step_s_since(before, attempt, step, at))
        elif before.loss != loss:
            self._told = before._replace(loss=loss)
        else:
            return
        values = (loss, None, self._told.step_s, None, None, None)
        self._put(StepPoint(step, self._told.at, attempt, values))

    def _put(self, point: StepPoint) -> None:
        if self._curve is None:
            self._curve = CurveFile(self._folder / CURVE)
        self._curve.put([point])


def _step_s_since(before: _Told | None, attempt: int, step: int, at: float) -> float | None:
    """What one of the steps since then took; not every step is told or looked at."""
    if before is None or before.attempt != attempt or before.step >= step:
        return None
    return max(0.0, at - before.at) / (step - before.step)


def _step_s(worker: WorkerReport | None) -> float:
    step_s = None if worker is None else worker.step_time_s or worker.optimizer_step_time_s
    return math.nan if step_s is None else step_s


def _share(after: float | None, before: float | None, span_s: float) -> float:
    if after is None or before is None:
        return math.nan
    return min(1.0, max(0.0, after - before) / span_s)
