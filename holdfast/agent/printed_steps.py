"""The step and the loss that a script prints, found by the patterns of the job.

A sink of the worker's output, beside its log file. Only the newest lines of what arrives at once
are looked at, of each only the beginning, and a pattern that takes too long is given up: the agent
has one thread, and output without end, or a pattern that backtracks without end, must not keep it
from its heartbeats. CPU time is what counts, so that a busy machine is not taken for a bad pattern.
"""

import contextlib
import re
import signal
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple

from holdfast.agent.notes import note
from holdfast.page import Page
from holdfast.spec.progress import ProgressPatterns, group_of

LINE_BYTES = 1000
LINES_AT_ONCE = 50
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
        for line in reversed(lines):
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
        loss = self._loss.newest(lines) if self._loss is not None else None
        step = self._step.newest(lines) if self._step is not None else None
        if loss is not None:
            self._page.loss_printed(loss)
        if step is not None and 0 <= step < 1 << 53:
            self._page.step_printed(int(step))


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
