"""What a worker did between several looks at it: whether it moved, computed, read or wrote.

A worker that waits in a collective, a lock or a sleep stands at one place and uses no processor;
one that compiles, evaluates or loads a file does. The kernel's counters tell them apart where
stacks alone do not, and are there where stacks cannot be read. A thread that is ready to run and
gets no processor does not wait for anybody: on an overloaded machine nothing else would tell. But
there, and below a limit of a container's processors, a thread that only wakes up now and then is
ready for most of the time, too. So what counts is the share of a processor that a thread takes
while it gets one or does not want it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from holdfast.agent.processes import content
from holdfast.stacks import Activity, StackGroup

BUSY_SHARE = 0.2  # of one processor; a wait that wakes up now and then takes less
BUSY_BYTES_S = 1 << 20  # read or written
TURN_S = 5e-4  # who computes runs for milliseconds at a time, who wakes up to look for less
RUNNABLE = "running"
NANOSECOND = 1e-9


class Scheduled(NamedTuple):
    """What the kernel's scheduler counts of a thread, in seconds."""

    ran_s: float
    starved_s: float  # ready to run, and without a processor
    turns: int = 0  # how often it has got one


class Usage(NamedTuple):
    """Counters since the start of the process: seconds of processors, and bytes."""

    main_s: float  # the main thread, and processes of its own
    others_s: float  # the other threads
    scheduled: dict[int, Scheduled]  # its threads and processes of its own; empty: not counted
    bytes: int

    @property
    def starved_s(self) -> float:
        """Of all of them."""
        return sum(one.starved_s for one in self.scheduled.values())


def usage_of(process: psutil.Process) -> Usage:
    """Of a worker now. Raises `psutil.Error`."""
    times = process.cpu_times()
    threads = {thread.id: thread.user_time + thread.system_time for thread in process.threads()}
    scheduled = {thread: scheduled_of(process.pid, thread) for thread in threads}
    main_s = threads.pop(process.pid, 0.0)
    children_s = _of_ended(times)
    for child in process.children(recursive=True):
        try:
            of_child = child.cpu_times()
        except psutil.Error:
            continue
        scheduled[child.pid] = scheduled_of(child.pid, child.pid)
        children_s += of_child.user + of_child.system + _of_ended(of_child)
    counted = {pid: one for pid, one in scheduled.items() if one is not None}
    return Usage(main_s + children_s, sum(threads.values()), counted, _bytes(process.pid))


def _of_ended(times: Any) -> float:
    """What processes took that this one has waited for: they are no children any more."""
    return float(times.children_user + times.children_system)


def _bytes(pid: int) -> int:
    """Read and written; 0 where the kernel does not count that, or does not say."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return 0
    counts = (line.partition(":") for line in lines)
    return sum(int(count) for name, _, count in counts if name in ("rchar", "wchar"))


def scheduled_of(pid: int, thread: int) -> Scheduled | None:
    """From `schedstat` (Documentation/scheduler/sched-stats.rst); None where the kernel does not
    count it."""
    try:
        counted = content(f"/proc/{pid}/task/{thread}/schedstat")
        ran, starved, turns = map(int, counted.split())
        counts = ran > 0  # of a kernel without CONFIG_SCHED_INFO all are 0
        return Scheduled(ran * NANOSECOND, starved * NANOSECOND, turns) if counts else None
    except (OSError, ValueError):
        return None


def starves(before: Scheduled | None, after: Scheduled, took_s: float) -> bool:
    """Whether this thread would have taken `BUSY_SHARE` of a processor, had it got one."""
    had = before or Scheduled(0.0, 0.0)
    starved_s = after.starved_s - had.starved_s
    could_s = max(took_s - starved_s, 0.0)
    return starved_s > BUSY_SHARE * took_s and after.ran_s - had.ran_s >= BUSY_SHARE * could_s


def activity(looks: Sequence[StackGroup], before: Usage, after: Usage, took_s: float) -> Activity:
    """From looks at a worker, and the counters around them. A look may have no stacks."""
    read = [look.threads for look in looks if look.threads]
    if len({threads[0].frames for threads in read}) > 1:
        return Activity.MOVES
    least_s = BUSY_SHARE * took_s
    computes = after.main_s - before.main_s > least_s
    many_bytes = after.bytes - before.bytes > BUSY_BYTES_S * took_s
    if after.scheduled:
        had = before.scheduled.get
        wants = any(starves(had(pid), one, took_s) for pid, one in after.scheduled.items())
    else:
        wants = any(look.state == RUNNABLE for look in looks)
    if after.scheduled == before.scheduled:  # a wait is counted when it ends
        wants = wants or all(look.state == RUNNABLE for look in looks)
    if computes or many_bytes or wants:
        return Activity.BUSY
    others = {tuple(sorted((t.pid, t.frames) for t in threads[1:])) for threads in read}
    if len(others) > 1 or after.others_s - before.others_s > least_s:
        return Activity.BACKGROUND
    return Activity.STILL
