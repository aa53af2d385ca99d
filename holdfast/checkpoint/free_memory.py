"""How much memory is left for snapshots: of the machine, or of the container that we are in.

Shared memory counts to the control group of whoever touches it first, and a container that takes
more than its limit is killed, however much its machine has. So the tightest limit on the way up
counts, with what the kernel could give back of the page cache. Both versions of control groups are
read, because clusters have both.
"""

from pathlib import Path
from typing import NamedTuple

CGROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
UNLIMITED = 1 << 60  # version 1 has a huge number where nothing was said


class FreeMemory(NamedTuple):
    """Bytes that can still be taken, and what would be used up then."""

    free_bytes: int
    of: str


def free_memory(
    meminfo: Path = Path("/proc/meminfo"),
    own: Path = OWN,
    cgroups: Path = CGROUPS,
) -> FreeMemory:
    """The tightest of all limits on this process."""
    limits = [FreeMemory(_available(meminfo), "the machine's memory")]
    for folder in memory_groups(own, cgroups):
        if (left := _left(folder)) is not None:
            limits.append(FreeMemory(left, "the container's memory limit"))
    return min(limits)


def _available(meminfo: Path) -> int:
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024


def memory_groups(own: Path = OWN, cgroups: Path = CGROUPS) -> list[Path]:
    """Folders of our control group and those above it, the innermost first; in a container often
    only the topmost is there."""
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return []
    found: list[Path] = []
    for _, controllers, path in lines:
        if controllers == "" or "memory" in controllers.split(","):
            root = cgroups / "memory" if controllers else cgroups
            inner = [part for part in path.split("/") if part not in ("", "..")]
            found += [root.joinpath(*inner[:depth]) for depth in range(len(inner), -1, -1)]
    return found


def _left(folder: Path) -> int | None:
    """Bytes below this group's limit; None where it has none."""
    limit = limit_of(folder)
    names = [("memory.current", "inactive_file")]
    names.append(("memory.usage_in_bytes", "total_inactive_file"))
    for used_name, cache_name in names:
        used = _number(folder / used_name)
        if limit is not None and used is not None:
            return max(0, limit - used + _cache(folder, cache_name))
    return None


def limit_of(folder: Path) -> int | None:
    """Bytes that this group may use; None if it has no limit."""
    found = (_number(folder / name) for name in ("memory.max", "memory.limit_in_bytes"))
    return next((limit for limit in found if limit is not None and limit < UNLIMITED), None)


def _cache(folder: Path, name: str) -> int:
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    found = (line.split() for line in lines)
    return next((int(words[1]) for words in found if words[:1] == [name]), 0)


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None  # version 2 says "max" for no limit
