"""What the node uses of its machine, as its control group counts: processor time, memory, disks.

Of version 2 of control groups, else of version 1, where counters of disks are left out.
"""

from collections.abc import Iterator
from pathlib import Path

from holdfast.agent.health.pressure import groups_of
from holdfast.agent.health.provider import EVERY_S, Missing, fields_of, number_of, text_of
from holdfast.detection.health import Reading

NO_LIMIT = 1 << 60  # version 1 has a number near 2^63 where there is no limit
GIB = 1 << 30


class GroupUse:
    """Of our own control group, or in a container that of the container."""

    name = "use of processors, memory and disks"
    stalled = None
    every_s = EVERY_S

    def __init__(self, groups: list[Path]) -> None:
        self._groups = groups

    def read(self) -> list[Reading]:
        """Each once, of the first group that has it."""
        found: dict[str, Reading] = {}
        for group in self._groups:
            for reading in (*_processors(group), *_memory(group), *_disks(group)):
                found.setdefault(reading.kind, reading)
        return list(found.values())


def _processors(group: Path) -> Iterator[Reading]:
    micros = fields_of(group / "cpu.stat").get("usage_usec")
    nanos = number_of(group / "cpuacct.usage")
    if micros is not None or nanos is not None:
        seconds = micros / 1e6 if micros is not None else (nanos or 0) / 1e9
        yield Reading("cpu-seconds", seconds, text=f"{seconds:,.0f} s of processor time")


def _memory(group: Path) -> Iterator[Reading]:
    used = _either(group, "memory.current", "memory.usage_in_bytes")
    limit = _either(group, "memory.max", "memory.limit_in_bytes")
    if used is not None:
        yield Reading("memory-used", float(used), text=f"{used / GIB:.1f} GiB used")
    if limit is not None and limit < NO_LIMIT:
        yield Reading("memory-limit", float(limit), text=f"{limit / GIB:.1f} GiB at most")


def _either(group: Path, *names: str) -> int | None:
    return next((n for name in names if (n := number_of(group / name)) is not None), None)


def _disks(group: Path) -> Iterator[Reading]:
    """Lines of a device and words like `rbytes=4096`."""
    words = [word.partition("=") for word in text_of(group / "io.stat").split() if "=" in word]
    for kind, name, done in (
        ("disk-read", "rbytes", "read"),
        ("disk-written", "wbytes", "written"),
    ):
        counts = [int(value) for key, _, value in words if key == name and value.isdecimal()]
        if counts:
            yield Reading(kind, float(sum(counts)), text=f"{sum(counts) / GIB:.1f} GiB {done}")


def find(root: Path) -> GroupUse | Missing:
    """Of this node."""
    groups = groups_of(root)
    if not groups:
        return Missing(GroupUse.name, f"there is no control group below {root / 'sys/fs/cgroup'}")
    return GroupUse(groups)
