"""The step and the loss that a program writes into a file.

A sink of the worker's output like `PrintedSteps`, which its output only tells when to stop. A
thread reads the file, because one on a network file system may not answer, and the agent has one
thread for its heartbeats. What lay there before the worker began is of an earlier attempt.
"""

import json
import math
import os
import stat
import threading
import time
from pathlib import Path
from typing import NamedTuple

from holdfast.agent.printed_steps import STEPS_MAX, told
from holdfast.page import Page

READ_S = 0.2
LAST_S = 0.2  # for the last look, once the worker has ended
TAIL_BYTES = 4096


class WrittenProgress(NamedTuple):
    """What a file says."""

    step: int | None
    loss: float | None


def read(text: str) -> WrittenProgress:
    """The newest record of a file: one JSON object, else its last line: an object or a number.

    Anything else tells nothing: the program may be writing it. So it may the last of several lines:
    half a number is one, too, so that it counts only with the end of its line.
    """
    lines = [line for line in text.splitlines(keepends=True) if line.strip()]
    if len(lines) > 1 and not lines[-1].endswith(("\n", "}")):
        lines.pop()
    for words in (text, *lines[-1:]):
        try:
            found = json.loads(words)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return WrittenProgress(_step(found.get("step")), _number(found.get("loss")))
        return WrittenProgress(_step(found), None)
    return WrittenProgress(None, None)


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        return None


def _step(value: object) -> int | None:
    number = _number(value)
    sound = number is not None and math.isfinite(number) and 0 <= number < STEPS_MAX
    return int(number) if sound and number is not None else None


class ProgressFile:
    """Follows the file of one worker until it ends."""

    def __init__(self, path: Path, page: Page) -> None:
        self._path, self._page = path, page
        self._begun_ns = time.time_ns()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def write(self, _output: bytes) -> None:
        """Not what is looked at."""

    def close(self) -> None:
        """That was all, but for what was written last."""
        self._over.set()
        self._thread.join(LAST_S)

    def _follow(self) -> None:
        seen = self._mark()
        if seen is not None and seen[2] >= self._begun_ns:
            seen = None  # the worker has been faster
        over = False
        while not over:
            over = self._over.wait(READ_S)
            mark = self._mark()
            if mark is not None and mark != seen:
                seen = mark
                self._take()

    def _mark(self) -> tuple[int, int, int] | None:
        """Changes whenever the file does."""
        try:
            found = os.stat(self._path)
        except (OSError, ValueError):
            return None
        if not stat.S_ISREG(found.st_mode):  # to open a FIFO may take for ever, and its data
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _take(self) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
                newest = read(file.read(TAIL_BYTES).decode(errors="replace"))
        except OSError:
            return
        if newest.loss is not None:
            told(self._page, newest.loss, newest.step)
        if newest.step is not None:
            self._page.step_printed(newest.step)
