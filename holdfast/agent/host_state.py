"""How the node's machine is at this moment, in a few lines: memory, load, pressure, disks.

From /proc and the control groups, both versions. A disk that does not answer is the finding, so
each is asked by a thread of its own that nobody waits for longer than `DISK_S`.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

from holdfast.agent.oom_kills import FILES as COUNTERS
from holdfast.checkpoint.free_memory import limit_of, memory_groups
from holdfast.counts import count

PROC = Path("/proc")
DISK_S = 1.0
GIB = 1 << 30
Result = TypeVar("Result")


def host_state(places: Iterable[Path], proc: Path = PROC) -> tuple[str, ...]:
    """Lines for people. Never raises."""
    return (*_memory(proc), *_groups(), *_load(proc), *_pressure(proc), *_disks(places))


def _memory(proc: Path) -> Iterator[str]:
    with contextlib.suppress(OSError, ValueError, KeyError):
        lines = (proc / "meminfo").read_text().splitlines()
        fields = {name: int(rest.split()[0]) for name, rest in (line.split(":") for line in lines)}
        free, total = fields["MemAvailable"] / (1 << 20), fields["MemTotal"] / (1 << 20)
        yield f"memory: {free:.1f} of {total:.1f} GiB available"


def _groups() -> Iterator[str]:
    """The innermost control group that has a limit, or has counted something."""
    for folder in memory_groups():
        limit, counted = limit_of(folder), _counted(folder)
        if limit is not None or counted:
            used = _used(folder)
            of = f" of {limit / GIB:.2f}" if limit is not None else ""
            told = f"{used / GIB:.2f}{of} GiB" if used is not None else f"limit{of} GiB"
            yield f"control group: {', '.join((told, *counted))}"
            return


def _counted(folder: Path) -> list[str]:
    """The counters of its events that are not zero."""
    for name in COUNTERS:
        with contextlib.suppress(OSError):
            pairs = [line.split() for line in (folder / name).read_text().splitlines()]
            events = [pair for pair in pairs if len(pair) == 2 and pair[0] != "oom_kill_disable"]
            return [f"{what} {count}" for what, count in events if count != "0"]
    return []


def _used(folder: Path) -> int | None:
    for name in ("memory.current", "memory.usage_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            return int((folder / name).read_text())
    return None


def _load(proc: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):
        minutes = " ".join((proc / "loadavg").read_text().split()[:3])
        yield f"load: {minutes} (1, 5, 15 min) on {count(os.cpu_count() or 1, 'core')}"


def _pressure(proc: Path) -> Iterator[str]:
    """Share of the last ten seconds in which some process waited for each resource."""
    shares = []
    for what in ("cpu", "memory", "io"):
        with contextlib.suppress(OSError, IndexError):
            some = (proc / "pressure" / what).read_text().split()
            shares.append(f"{what} {some[1].removeprefix('avg10=')} %")
    if shares:
        yield f"pressure (10 s): {', '.join(shares)}"


def _disks(places: Iterable[Path]) -> list[str]:
    asked = [(place, in_thread(partial(_room, place))) for place in dict.fromkeys(places)]
    end = time.monotonic() + DISK_S
    silent = f"does not answer within {DISK_S:g} s"
    return [f"disk {place}: {wait(end - time.monotonic()) or silent}" for place, wait in asked]


def _room(place: Path) -> str:
    try:
        room = os.statvfs(place)
    except OSError as error:
        return str(error.strerror)
    free, size = room.f_bavail * room.f_frsize / GIB, room.f_blocks * room.f_frsize / GIB
    nodes = f", no inode of {room.f_files} is free" if room.f_files and not room.f_favail else ""
    only = ", mounted read-only" if room.f_flag & os.ST_RDONLY else ""
    return f"{free:.2f} of {size:.2f} GiB free{nodes}{only}"


def in_thread(work: Callable[[], Result]) -> Callable[[float], Result | None]:
    """Have it done beside; what comes back waits so many seconds for the result, or gives None."""
    found: list[Result] = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()

    def wait(seconds: float) -> Result | None:
        thread.join(max(0.0, seconds))
        return found[0] if found else None

    return wait
