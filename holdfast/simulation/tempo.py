"""How fast the steps of a simulated attempt come: arithmetic, though its speed may change.

A synchronous training is as fast as its slowest rank, so an attempt has one pace. Another pace
begins with the next step; a pause makes the step under way longer. Between two changes the end of
any step is a formula, so hours of training cost nothing.
"""

from typing import NamedTuple

ROUNDING = 1e-6  # of a step


class Stretch(NamedTuple):
    """From the end of step `step`, at `at`, on each step takes `step_s`."""

    step: int
    at: float
    step_s: float


class Tempo:
    """Of one attempt, from the end of its first step on."""

    def __init__(self, step: int, at: float, step_s: float) -> None:
        self._stretches = [Stretch(step, at, step_s)]
        self.longest_s = step_s  # step, with what it paused
        self.slowest_s = step_s
        self.changes = 0

    def step_at(self, now: float) -> int:
        """The newest step that is over. `now` is not before the last change."""
        last = self._stretches[-1]
        if now >= last.at or len(self._stretches) == 1:
            return last.step + int((now - last.at) / last.step_s + ROUNDING)
        before = self._stretches[-2]
        done = before.step + int((now - before.at) / before.step_s + ROUNDING)
        return min(done, last.step - 1)

    def end_of(self, step: int) -> float:
        """When a step ends; the first known one for those before it."""
        stretch = self._stretches[-1]
        if step < stretch.step and len(self._stretches) > 1:
            stretch = next(
                (one for one in reversed(self._stretches) if one.step <= step), self._stretches[0]
            )
        return stretch.at + max(0, step - stretch.step) * stretch.step_s

    def change(self, now: float, step_s: float) -> None:
        """From the end of the step under way on, steps take so long."""
        self._turn(now, 0.0, step_s)

    def pause(self, now: float, for_s: float) -> None:
        """Nothing moves for so long: the step under way ends later."""
        self._turn(now, for_s, self._stretches[-1].step_s)

    def _turn(self, now: float, later_s: float, step_s: float) -> None:
        self.changes += 1
        last = self._stretches[-1]
        if now < last.at:  # the step under way is the one before the newest stretch
            turn = Stretch(last.step, last.at + later_s, step_s)
            self._stretches[-1] = turn
        else:
            step = self.step_at(now) + 1
            turn = Stretch(step, self.end_of(step) + later_s, step_s)
            self._stretches.append(turn)
        took_s = turn.at - self.end_of(turn.step - 1)
        self.longest_s = max(self.longest_s, step_s, took_s)
        self.slowest_s = max(self.slowest_s, step_s)

    def longer_s(self, after: int, until: int, usual_s: float) -> float:
        """How much longer the steps after one and up to another took than is usual. The first step
        of the attempt is none of them."""
        first = max(after, self._stretches[0].step)
        if until <= first or (len(self._stretches) == 1 and self._stretches[0].step_s == usual_s):
            return 0.0
        return self.end_of(until) - self.end_of(first) - (until - first) * usual_s
