"""Processes of the job that wait in the kernel without end, or have ended and are not waited for,
and whether somebody has set the clock.

A process in uninterruptible sleep for half a minute waits for storage or a driver that does not
answer; no signal reaches it.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.agent.health.provider import EVERY_S, text_of
from holdfast.detection.health import Reading

PROCESSES_MAX = 4096


class JobProcesses:
    """All below one process, ours unless said."""

    name = "processes of the job"
    stalled = None
    every_s = EVERY_S

    def __init__(
        self,
        root: Path,
        pid: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._proc = root / "proc"
        self._pid = os.getpid() if pid is None else pid
        self._clock = clock
        self._waiting: dict[int, float] = {}  # pid → since when it was seen in the kernel

    def read(self) -> list[Reading]:
        """How long any of them has waited in the kernel, at each look, and how many are dead."""
        now, states = self._clock(), {pid: self._state(pid) for pid in self._below()}
        stuck = {pid for pid, state in states.items() if state == "D"}
        self._waiting = {pid: self._waiting.get(pid, now) for pid in stuck}
        dead = sum(state == "Z" for state in states.values())
        readings = [Reading("zombies", dead, text=f"{dead} of {len(states)} processes")]
        pid = min(self._waiting, key=self._waiting.__getitem__, default=None)
        if pid is None:
            return [*readings, Reading("process-stuck", 0.0)]
        waited_s = now - self._waiting[pid]
        where = text_of(self._proc / f"{pid}/wchan") or "unknown"
        text = f"pid {pid}, for {waited_s:.0f} s ({where})"
        return [*readings, Reading("process-stuck", waited_s, "a process of the job", text)]

    def _below(self) -> list[int]:
        found: list[int] = []
        new = [self._pid]
        while new and len(found) < PROCESSES_MAX:
            pid = new.pop()
            children = text_of(self._proc / f"{pid}/task/{pid}/children").split()
            new += map(int, children)
            found += map(int, children)
        return found

    def _state(self, pid: int) -> str:
        """The letter after the name, which may contain anything."""
        return text_of(self._proc / f"{pid}/stat").rpartition(")")[2].strip()[:1]


class ClockSteps:
    """Whether the time of day jumped, against a clock that nobody sets."""

    name = "clock"
    stalled = None
    every_s = EVERY_S

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._wall, self._steady = wall, steady
        self._offset = wall() - steady()

    def read(self) -> list[Reading]:
        """By how many seconds since the last look."""
        before, self._offset = self._offset, self._wall() - self._steady()
        jump_s = self._offset - before
        text = f"{jump_s:+.3f} s" if abs(jump_s) >= 0.0005 else ""
        return [Reading("clock-jump", abs(jump_s), text=text)]
