"""Processes of the job that wait in the kernel without end, or have ended and are not waited for,
and whether somebody has set the clock.

A process that sleeps in the kernel without being woken once in six seconds, uninterruptibly, waits
for storage or a driver that does not answer; no signal reaches it. One that writes to a slow disk
is in the same state at each look, and wakes in between: the kernel counts that.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.agent.health.provider import EVERY_S, text_of
from holdfast.detection.health import Reading

PROCESSES_MAX = 4096
SWITCHES = "ctxt_switches"  # both kinds, of the main thread


class JobProcesses:
    """All below one process, ours unless said."""

    name = "processes of the job"
    stalled = None
    every_s = 2.0

    def __init__(
        self,
        root: Path,
        pid: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._proc = root / "proc"
        self._pid = os.getpid() if pid is None else pid
        self._clock = clock
        self._waiting: dict[int, tuple[float, str]] = {}
        """Pid → since when it was seen in the kernel, and how often it had been switched then."""

    def read(self) -> list[Reading]:
        """How long any of them has waited in the kernel, at each look, and how many are dead."""
        now, states = self._clock(), {pid: self._state(pid) for pid in self._below()}
        stuck = {pid: self._switches(pid) for pid, state in states.items() if state == "D"}
        known = self._waiting
        self._waiting = {
            pid: known[pid] if pid in known and known[pid][1] == often else (now, often)
            for pid, often in stuck.items()
        }
        dead = sum(state == "Z" for state in states.values())
        readings = [Reading("zombies", dead, text=f"{dead} of {len(states)} processes")]
        pid = min(self._waiting, key=self._waiting.__getitem__, default=None)
        if pid is None:
            return [*readings, Reading("process-stuck", 0.0)]
        waited_s = now - self._waiting[pid][0]
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

    def _switches(self, pid: int) -> str:
        """How often it has let go of its processor; empty where the kernel does not say."""
        lines = text_of(self._proc / f"{pid}/status").splitlines()
        return " ".join(line.partition(":")[2].strip() for line in lines if SWITCHES in line)

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
