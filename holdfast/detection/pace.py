"""Steps that take longer than they used to: told once in an attempt.

What a token costs in seconds is what model FLOPS utilisation (MFU) falls with, as long as a token
takes the same FLOPs; it is also known where nobody logs `flops`. Where no tokens are logged it is
what a step costs. Rank 0 is looked at, as in a step all wait for each other. Samples are put into
blocks of a minute or more; what is usual is the best median of a block so far, and two blocks in a
row have to be slower than it by the share that was asked for. So neither a slow start nor a pause
is taken for a decline.
"""

from dataclasses import dataclass, field
from statistics import median

from holdfast.messages import Report, WorkerReport
from holdfast.profiles import StepsSlowed

BLOCK_S = 60.0
SAMPLES_MIN = 20  # of a block, which then takes longer
SLOW_BLOCKS = 2  # in a row


@dataclass(slots=True)
class _Pace:
    """What one rank has told of its steps in this attempt."""

    step: int
    tokens: int
    began: float = 0.0
    costs: list[float] = field(default_factory=list)  # of this block, seconds of a token or step
    took: list[float] = field(default_factory=list)  # seconds of a step
    best: tuple[float, float] | None = None  # median cost and step of the best block
    slow: int = 0  # blocks in a row


class PaceWatch:
    """Rank 0 of the newest attempt. `share` by which steps have to be slower; 0 for not to look."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._attempt = 0
        self._pace: _Pace | None = None
        self._told = False

    def observe(self, report: Report, now: float) -> list[StepsSlowed]:
        """Take in one node's report; reports of older attempts are ignored."""
        if not self._share or report.attempt < self._attempt:
            return []
        if report.attempt > self._attempt:
            self._attempt, self._pace, self._told = report.attempt, None, False
        found = (self._take_in(worker, now) for worker in report.workers if worker.rank == 0)
        return [told for told in found if told is not None]

    def _take_in(self, worker: WorkerReport, now: float) -> StepsSlowed | None:
        step = worker.progress.step or worker.optimizer_steps
        took_s = worker.step_time_s or worker.optimizer_step_time_s
        pace = self._pace
        if self._told or not step or not took_s or worker.section:
            return None
        if pace is None:
            self._pace = _Pace(step, worker.tokens, now)
            return None
        if step <= pace.step:
            return None
        tokens = (worker.tokens - pace.tokens) / (step - pace.step)
        pace.step, pace.tokens = step, worker.tokens
        pace.costs.append(took_s / tokens if tokens > 0 else took_s)
        pace.took.append(took_s)
        if now - pace.began < BLOCK_S or len(pace.costs) < SAMPLES_MIN:
            return None
        return self._judge(pace, now)

    def _judge(self, pace: _Pace, now: float) -> StepsSlowed | None:
        """A block is whole."""
        cost, took_s = median(pace.costs), median(pace.took)
        pace.costs, pace.took, pace.began = [], [], now
        if pace.best is None or cost <= pace.best[0]:
            pace.best, pace.slow = (cost, took_s), 0
            return None
        slower = cost / pace.best[0] - 1
        pace.slow = pace.slow + 1 if slower >= self._share else 0
        if pace.slow < SLOW_BLOCKS:
            return None
        self._told = True
        return StepsSlowed(
            attempt=self._attempt,
            step=pace.step,
            slower=slower,
            step_s=took_s,
            usual_s=pace.best[1],
        )
