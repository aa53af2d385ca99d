"""For how long workers of which no steps are seen have done nothing.

A worker does something while it, or a process below it, prints, takes a processor, reads, writes,
or starts or ends another process: the kernel counts all of that, whatever program it is. Where
other work leaves it next to no processor, one that is ready to take it does something, too. One
that waits in a loop wakes up now and then and does next to nothing, so it is counted apart for how
long not even a main thread has woken up: a wait that has lasted for all of that time is a single
one. Looks at stacks wake up whom they look at, and that counts for nothing. Neither does time in
which nobody counted: all of this node may have been stopped.
"""

import asyncio
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from holdfast.agent.activity import Scheduled, scheduled_of, starves
from holdfast.agent.processes import content, processor_s, tree
from holdfast.agent.workers import Worker
from holdfast.events import Milestone
from holdfast.page import Page

SAMPLE_S = 2.5
LATE_S = 10.0  # between two samples: nobody knows what was meanwhile
IDLE_SHARE = 0.02  # of one processor
TURN_S = 5e-4  # who computes runs for milliseconds in one go, who only looks for news does not
SWITCHES = b"ctxt_switches:"  # both kinds
MOVED = (b"rchar:", b"wchar:")


class Counts(NamedTuple):
    """Of a worker and all processes below it."""

    pids: frozenset[int]
    processor_s: float
    moved_bytes: int  # read and written, by any system call that the kernel counts
    switches: int  # of the main threads
    scheduled: Mapping[int, Scheduled] = {}  # of all threads, where it was asked for


class Idle(NamedTuple):
    """For how long it has done nothing, and no main thread has woken up."""

    idle_s: float
    asleep_s: float


class IdleClock:
    """What was counted of one worker."""

    def __init__(self) -> None:
        self._known: tuple[Counts, int, float] | None = None  # the output too, and when
        self._acted = self._woke = 0.0

    def take(self, counts: Counts, printed: int, now: float, *, disturbed: bool) -> None:
        """A sample. `disturbed`: somebody has looked at it since the last one."""
        known, self._known = self._known, (counts, printed, now)
        if known is None or now - known[2] > LATE_S:
            self._acted = self._woke = now
            return
        before, had_printed, since = known
        took = counts.processor_s - before.processor_s > IDLE_SHARE * (now - since)
        moved = counts.moved_bytes != before.moved_bytes and not disturbed
        wants = _wants_processor(before.scheduled, counts.scheduled, now - since)
        if took or moved or wants or counts.pids != before.pids or printed != had_printed:
            self._acted = self._woke = now
        if counts.switches != before.switches and not disturbed:
            self._woke = now

    @property
    def idle(self) -> Idle | None:
        """Up to the last sample; None before the second."""
        if self._known is None:
            return None
        return Idle(self._known[2] - self._acted, self._known[2] - self._woke)

    @property
    def is_doubted(self) -> bool:
        """Whether it may be starved: only then its threads, which may be many, are asked."""
        return self.idle is not None and self.idle.idle_s > 0


class Idleness:
    """The clocks of a node's workers."""

    def __init__(self) -> None:
        self._clocks: dict[int, IdleClock] = {}  # by worker
        self._looks = 0  # under way
        self._disturbed = False

    def of(self, worker: int) -> Idle | None:
        """Of the worker with this id; None where steps are seen."""
        clock = self._clocks.get(worker)
        return clock.idle if clock is not None else None

    @contextmanager
    def disturbed(self) -> Iterator[None]:
        """Somebody looks at the workers."""
        self._looks += 1
        try:
            yield
        finally:
            self._looks -= 1
            self._disturbed = True

    async def run(self, workers: Callable[[], Collection[Worker]]) -> None:
        """Count until cancelled."""
        while True:
            await self.sample(workers(), time.monotonic())
            await asyncio.sleep(SAMPLE_S)

    async def sample(self, workers: Collection[Worker], now: float) -> None:
        """Count once. Never raises."""
        wanted = {one.id: one for one in workers if _is_wanted(one)}
        disturbed, self._disturbed = self._disturbed or self._looks > 0, False
        pids = {one: worker.pid for one, worker in wanted.items()}
        doubted = {one for one, clock in self._clocks.items() if clock.is_doubted}
        counted = await asyncio.to_thread(_counts, pids, doubted) if pids else {}
        self._clocks = {one: self._clocks.get(one) or IdleClock() for one in counted}
        for one, counts in counted.items():
            printed = wanted[one].output.count
            self._clocks[one].take(counts, printed, now, disturbed=disturbed)


def _is_wanted(worker: Worker) -> bool:
    """Whether it lives, and nothing is known of its steps."""
    lives = bool(worker.pid) and worker.death is None and not worker.is_parked
    return lives and no_steps_are_seen(worker.page)


def no_steps_are_seen(page: Page) -> bool:
    """Neither has its script called `join()`, nor is a step known in any other way."""
    joined = page.reached(Milestone.ARRIVED) or page.reached(Milestone.STEPPED)
    return not joined and page.printed_step is None


def _counts(pids: dict[int, int], doubted: Collection[int]) -> dict[int, Counts]:
    """By worker, of those that live."""
    found = {one: counts_of(pid, threads=one in doubted) for one, pid in pids.items()}
    return {one: counts for one, counts in found.items() if counts.pids}


def counts_of(pid: int, *, threads: bool = False) -> Counts:
    """Of this process and all below it, now; without any where it is gone. `threads`: also how
    long each thread had a processor, and wanted one."""
    taken = {one: taken_s for one in tree(pid) if (taken_s := processor_s(one)) is not None}
    moved = sum(_numbers(f"/proc/{one}/io", MOVED) for one in taken)
    switches = sum(_numbers(f"/proc/{one}/status", (SWITCHES,)) for one in taken)
    scheduled = _scheduled(taken) if threads else {}
    return Counts(frozenset(taken), sum(taken.values()), moved, switches, scheduled)


def _scheduled(pids: Collection[int]) -> dict[int, Scheduled]:
    found = {thread: scheduled_of(one, thread) for one in pids for thread in _threads(one)}
    return {thread: one for thread, one in found.items() if one is not None}


def _threads(pid: int) -> list[int]:
    try:
        return list(map(int, os.listdir(f"/proc/{pid}/task")))
    except OSError:
        return []


def _wants_processor(
    before: Mapping[int, Scheduled], after: Mapping[int, Scheduled], took_s: float
) -> bool:
    """Whether a thread would have computed, had it got a processor. On a machine that is far too
    busy one that only looks for news may be ready to run for all of the time, too."""
    known = ((before[thread], one) for thread, one in after.items() if thread in before)
    return any(
        starves(had, has, took_s) and has.ran_s - had.ran_s >= TURN_S * (has.turns - had.turns)
        for had, has in known
    )


def _numbers(path: str, names: tuple[bytes, ...]) -> int:
    """The sum of what stands behind these names; 0 where the kernel does not say."""
    try:
        lines = content(path).splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[-1]) for line in lines if line.split()[0].endswith(names))
