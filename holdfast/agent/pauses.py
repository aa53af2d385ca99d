"""Stretches in which nothing of this node ran: all of it was stopped, or the machine slept.

A laptop that sleeps, a virtual machine that is moved, a container that is frozen: whoever looks
often finds that it has not looked for long. That alone may be a busy machine, or our own stop while
the workers trained on, so it counts only where a worker has not done the steps it would have.
CLOCK_MONOTONIC stands still while a machine sleeps, and CLOCK_BOOTTIME does not
(clock_gettime(2)): what they differ by is how long it slept.
"""

import time
from collections.abc import Collection

from holdfast.agent.workers import Worker

LEAST_S = 5.0  # less is a busy machine
CLEARLY = 0.5  # of the steps that it would have done


class Pauses:
    """What each worker had done at the last look."""

    def __init__(self, slept_s: float | None = None) -> None:
        self._looked_at = 0.0
        self._slept_s = asleep_s() if slept_s is None else slept_s  # since the machine started
        self._paces: dict[int, tuple[int, float]] = {}  # by worker: steps, and what one takes

    def look(self, workers: Collection[Worker], now: float, slept_s: float | None = None) -> None:
        """Tell the pages of workers that were stopped since the last look, all of the node with
        them. Costs microseconds."""
        slept_until = asleep_s() if slept_s is None else slept_s
        slept_s, self._slept_s = max(0.0, slept_until - self._slept_s), slept_until
        late_s = now - self._looked_at if self._looked_at else 0.0
        self._looked_at, before = now, self._paces
        self._paces = {worker.id: worker.page.pace for worker in workers}
        if late_s < LEAST_S and slept_s < LEAST_S:
            return
        for worker in workers:
            if worker.id in before:
                stood_s = _stood_s(before[worker.id], worker.page.pace, late_s)
                worker.page.paused(stood_s + slept_s)


def asleep_s() -> float:
    """How long this machine has slept since it started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


def _stood_s(before: tuple[int, float], now: tuple[int, float], late_s: float) -> float:
    """For how long a worker did nothing, if it has done far fewer steps than in such a time. One of
    them may be the step in which it was stopped."""
    done, step_s = max(0, now[0] - before[0] - 1), before[1]
    stood = 0.0 < step_s < CLEARLY * late_s and done * step_s < CLEARLY * late_s
    return late_s - done * step_s if stood and late_s >= LEAST_S else 0.0
