"""Numbers of steps reduced to facts: the loss is no number any more, or far above the usual.

A rank watches its own numbers, each step as it becomes known (`NumberWatch`, in the worker), so
that no look at its page five times a second can miss one. What it noticed comes with its reports,
and `NumbersReducer` makes one fact of what thousands of ranks say.

The loss decides. A gradient norm alone is now and then infinite where gradients are scaled (AMP
skips such a step and lowers the scale), so only a long row of them counts, or one that ends with a
loss that is not finite: then the first step of the row is where it began. A spike is measured
against the median of the steps before, and against how far these lie apart, both on a logarithmic
scale: so neither noise nor a loss near zero is one, and below zero nothing is. Where the numbers
fall by decades, as in the first steps of a training, they lie apart because of that: there it is
measured against the largest of the newest steps, and how far each of them is from the one before.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import NamedTuple

from holdfast.events import Broken, NumbersBroke, NumbersSpiked, Quantity, Spike, WorkerExited
from holdfast.messages import Report

LASTING_COUNT = 20  # gradient norms in a row: a scale of 65536 halves to a sixteenth meanwhile
WINDOW_COUNT = 64  # steps whose median is the usual
LEARNED_COUNT = 32  # of which there have to be so many
SPIKE_TIMES = 5.0  # the usual
SPREAD_TIMES = 8.0  # the spread of the usual, on a logarithmic scale
NEWEST_COUNT = 8  # steps that a fall hardly changes
MAD_TO_SIGMA = 1.4826  # of a normal distribution
QUIET_STEPS = 100  # after a spike, until another one is told
RankSpike = tuple[int, int, Spike]  # step and rank, for their order


class FirstBad(NamedTuple):
    """The step that broke the numbers of this rank, and when it was over."""

    step: int
    at: float
    what: Quantity
    value: float


class Usual:
    """The newest values of one quantity, in a ring and in order."""

    def __init__(self) -> None:
        self._ring: deque[float] = deque()
        self._sorted: list[float] = []

    def spike(self, value: float) -> float | None:
        """Take in a finite value; the median of those before it, if it is far above that."""
        usual = self._far_below(value)
        self._ring.append(value)
        insort(self._sorted, value)
        if len(self._ring) > WINDOW_COUNT:
            del self._sorted[bisect_left(self._sorted, self._ring.popleft())]
        return usual

    def _far_below(self, value: float) -> float | None:
        known, ring = self._sorted, self._ring
        if len(known) < LEARNED_COUNT or known[0] <= 0.0:
            return None
        newest = [ring[-1 - back] for back in range(NEWEST_COUNT)]
        usual, recent = known[len(known) // 2], max(newest)
        if not value > SPIKE_TIMES * min(usual, recent):
            return None
        if _is_far(value, usual, (one / usual for one in known)):
            return usual
        steps = (after / before for before, after in pairwise(ring))
        return sorted(newest)[NEWEST_COUNT // 2] if _is_far(value, recent, steps) else None


def _is_far(value: float, usual: float, ratios: Iterable[float]) -> bool:
    """Above the usual, by more than these usually are apart from 1."""
    distances = sorted(abs(math.log(ratio)) for ratio in ratios)
    spread = MAD_TO_SIGMA * distances[len(distances) // 2]
    return value > SPIKE_TIMES * usual and math.log(value / usual) > SPREAD_TIMES * spread


class NumberWatch:
    """The numbers of one rank, step by step."""

    def __init__(self) -> None:
        self._usual = {quantity: Usual() for quantity in Quantity}
        self._row: FirstBad | None = None  # where the gradient norms that are not finite began
        self._row_count = 0
        self._high = False  # the spike that was told last is not over
        self.unsound = False
        """Whether the newest step of which a number is known had one that is not finite."""

    def step(
        self, step: int, at: float, loss: float | None, grad_norm: float | None
    ) -> FirstBad | Spike | None:
        """What this step's numbers say; None for a number that was not logged. Steps ascend."""
        if loss is None and grad_norm is None:
            return None
        loss_bad = loss is not None and not math.isfinite(loss)
        norm_bad = self._take_in_norm(step, at, grad_norm)
        self.unsound = loss_bad or norm_bad
        if loss_bad:
            assert loss is not None
            here = FirstBad(step, at, Quantity.LOSS, loss)
            return self._row if self._row is not None and self._row.step < step else here
        if norm_bad:
            return self._row if self._row_count >= LASTING_COUNT else None
        return self._spike(step, loss, grad_norm)

    def _take_in_norm(self, step: int, at: float, norm: float | None) -> bool:
        """Go on with the row, or end it; whether this one is not finite."""
        if norm is None:
            return False
        if math.isfinite(norm):
            self._row, self._row_count = None, 0
            return False
        self._row = self._row or FirstBad(step, at, Quantity.GRAD_NORM, norm)
        self._row_count += 1
        return True

    def _spike(self, step: int, loss: float | None, grad_norm: float | None) -> Spike | None:
        """Told once, until the numbers are usual again."""
        found: Spike | None = None
        for what, value in ((Quantity.LOSS, loss), (Quantity.GRAD_NORM, grad_norm)):
            if value is None:
                continue
            usual = self._usual[what].spike(value)
            if usual is not None and found is None:
                found = Spike(step=step, what=what, value=value, usual=usual)
        was_high, self._high = self._high, found is not None
        return None if was_high else found


class NumbersReducer:
    """What all ranks of the newest attempt have noticed, as facts that are told once."""

    def __init__(self, jumps: Callable[[Report], list[RankSpike]] = lambda _: []) -> None:
        """`jumps` tells spikes that no worker could know of (`detection.jump`)."""
        self._jumps = jumps
        self._attempt = 0
        self._broke = False  # told
        self._spike_step: int | None = None  # newest told

    def observe(self, report: Report) -> list[NumbersBroke | NumbersSpiked]:
        """Take in one node's report; reports of other attempts than the newest are ignored."""
        if not self._is_newest(report.attempt):
            return []
        broke = [(w.broke.step, w.rank, w.broke) for w in report.workers if w.broke is not None]
        spikes = [(w.spike.step, w.rank, w.spike) for w in report.workers if w.spike is not None]
        spikes += self._jumps(report)
        return [*self._tell_spike(spikes), *self._tell(broke)]

    def exited(self, exited: WorkerExited) -> list[NumbersBroke | NumbersSpiked]:
        """A worker has ended: what it had noticed goes ahead of that."""
        if exited.broke is None or not self._is_newest(exited.attempt):
            return []
        return [*self._tell([(exited.broke.step, exited.rank, exited.broke)])]

    def _is_newest(self, attempt: int) -> bool:
        if attempt > self._attempt:
            self._attempt, self._broke, self._spike_step = attempt, False, None
        return attempt == self._attempt

    def _tell(self, found: Iterable[tuple[int, int, Broken]]) -> list[NumbersBroke]:
        first = min(found, key=_step_and_rank, default=None)
        if first is None or self._broke:
            return []
        self._broke = True
        return [NumbersBroke(attempt=self._attempt, rank=first[1], broke=first[2])]

    def _tell_spike(self, found: Iterable[RankSpike]) -> list[NumbersSpiked]:
        told = self._spike_step
        new = (one for one in found if told is None or one[0] > told + QUIET_STEPS)
        first = min(new, key=_step_and_rank, default=None)
        if first is None:
            return []
        self._spike_step = first[0]
        return [NumbersSpiked(attempt=self._attempt, rank=first[1], spike=first[2])]


def _step_and_rank(found: tuple[int, int, object]) -> tuple[int, int]:
    return found[0], found[1]
