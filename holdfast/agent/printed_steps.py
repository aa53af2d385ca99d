"""The step and the loss that a script prints, found by the patterns of the job.

A sink of the worker's output, beside its log file. Only the newest lines of what arrives at once
are looked at, of each only the beginning, and a pattern that takes too long is given up: the agent
has one thread, and output without end, or a pattern that backtracks without end, must not keep it
from its heartbeats. CPU time is what counts, so that a busy machine is not taken for a bad pattern.

A loss that is NaN or infinite is the fault that it is in a script that reports its steps.
"""

import contextlib
import math
import re
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple

from holdfast.agent.notes import note
from holdfast.events import Quantity
from holdfast.page import Page
from holdfast.spec.progress import ProgressPatterns, group_of

LINE_BYTES = 1000
LINES_AT_ONCE = 50
STEPS_MAX = 1 << 53
BUDGET_S = 0.1  # of CPU, for what arrives at once
_ENDS = re.compile(rb"[\r\n]+")


class _TooLongError(Exception):
    """The budget is used up."""


class Number(NamedTuple):
    """A pattern and its group."""

    pattern: re.Pattern[bytes]
    group: str | int

    @staticmethod
    def of(pattern: str | None, name: str) -> "Number | None":
        """None where the job has no such pattern."""
        if pattern is None:
            return None
        return Number(re.compile(pattern.encode()), group_of(pattern, name))

    def newest(self, lines: list[bytes]) -> float | None:
        """The number in the last line that has one."""
        return next((n for line in reversed(lines) if (n := self.found_in(line)) is not None), None)

    def found_in(self, line: bytes) -> float | None:
        """The number in this line."""
        found = self.pattern.search(line)
        if found is not None and found[self.group] is not None:
            with contextlib.suppress(ValueError):
                return float(found[self.group].replace(b",", b""))
        return None


class PrintedSteps:
    """What is looked for; nothing any more once that takes too long."""

    def __init__(self, patterns: ProgressPatterns, page: Page) -> None:
        self._step = Number.of(patterns.step_pattern, "step")
        self._loss = Number.of(patterns.loss_pattern, "loss")
        self._page = page
        self._losses = 0  # that were seen
        self._begun = b""  # a line without an end so far

    def write(self, data: bytes) -> None:
        """More output."""
        if self._step is None and self._loss is None:
            return
        *lines, begun = _ENDS.split(self._begun + data)
        self._begun = begun[:LINE_BYTES]
        newest = [line[:LINE_BYTES] for line in lines[-LINES_AT_ONCE:] if line]
        try:
            _within(BUDGET_S, lambda: self._look(newest))
        except _TooLongError:
            self._step = self._loss = None
            note("agent: the patterns under progress take too long and are not used any more")

    def close(self) -> None:
        """That was all: the last line may have no end."""
        if self._begun:
            self.write(b"\n")

    def _look(self, lines: list[bytes]) -> None:
        if self._loss is not None:
            self._look_for_losses(self._loss, lines)
        step = self._step.newest(lines) if self._step is not None else None
        if step is not None and 0 <= step < STEPS_MAX:
            self._page.step_printed(int(step))

    def _look_for_losses(self, wanted: Number, lines: list[bytes]) -> None:
        """The newest is shown; the first that is not finite breaks the attempt."""
        for at, line in enumerate(lines):
            if (loss := wanted.found_in(line)) is None:
                continue
            self._losses += 1
            step = self._step_of(lines[: at + 1]) if not math.isfinite(loss) else None
            told(self._page, loss, step)

    def _step_of(self, lines: list[bytes]) -> int:
        """Where this is, by the same measure in each attempt: the step that is printed, else how
        many losses have been."""
        step = self._step.newest(lines) if self._step is not None else None
        known = step if step is not None and 0 <= step < STEPS_MAX else self._page.printed_step
        return max(1, self._losses if known is None else int(known))


def told(page: Page, loss: float, step: int | None) -> None:
    """The script tells this loss, which breaks the attempt at this step if it is not finite."""
    page.loss_printed(loss)
    if not math.isfinite(loss):
        known = page.printed_step if step is None else step
        page.broke(max(1, known or 1), time.monotonic(), Quantity.LOSS, loss)


def _within(seconds: float, work: Callable[[], None]) -> None:
    """Raises `_TooLongError` where that takes more CPU time. Matching is interrupted by signals."""
    before = signal.signal(signal.SIGVTALRM, _too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        work()
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def _too_long(_signal: int, _frame: FrameType | None) -> None:
    raise _TooLongError
