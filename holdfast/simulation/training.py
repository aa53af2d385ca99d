"""How far an attempt is at a given time, and which copies of its state exist: arithmetic.

Steps take the same time each, and after every so many of them training waits for a copy. So the end
of any step is a formula, and weeks of training cost nothing to simulate. Steps are counted
from the start of the job; saves fall on multiples, whichever attempt does them.
"""

from dataclasses import dataclass
from typing import NamedTuple

from holdfast.simulation.plan import CopySchedule


class Reached(NamedTuple):
    """Where an attempt stands: steps completed, the age of the last one, time spent on saves."""

    step: int
    step_ago_s: float
    save_s: float


@dataclass(frozen=True, slots=True)
class Training:
    """Steps from `after` on, of which the first begins at `begin` and takes `first_s` longer."""

    begin: float
    after: int  # steps that were done when it began
    step_s: float
    first_s: float
    often: CopySchedule
    seldom: CopySchedule

    def end_of(self, count: int) -> float:
        """When the attempt's step number `count` (from 1) ends, the saves before it included."""
        return self.begin + self.first_s + count * self.step_s + self._saves_s(count)

    def _saves_s(self, count: int) -> float:
        """Time that saves take before the end of step number `count`."""
        last, often, seldom = self.after + count - 1, self.often, self.seldom
        return (last // often.steps - self.after // often.steps) * often.block_s + (
            last // seldom.steps - self.after // seldom.steps
        ) * seldom.block_s

    def steps_by(self, at: float) -> int:
        """Steps of this attempt that have ended by then."""
        pace = self.step_s + self.often.block_s / self.often.steps
        pace += self.seldom.block_s / self.seldom.steps
        count = max(0, int((at - self.begin - self.first_s) / pace))
        while self.end_of(count + 1) <= at:
            count += 1
        while count and self.end_of(count) > at:
            count -= 1
        return count

    def reached(self, at: float) -> Reached:
        """How far it is; before its first step it is where it began."""
        count = self.steps_by(at)
        if count == 0:
            return Reached(self.after, 0.0, 0.0)
        return Reached(self.after + count, at - self.end_of(count), self._saves_s(count))

    def newest(self, tier: CopySchedule, lag_s: float, at: float) -> int | None:
        """The newest step saved in this tier that was safe by then, `lag_s` after its end."""
        step = (self.after + self.steps_by(at - lag_s)) // tier.steps * tier.steps
        return step if step > self.after else None
