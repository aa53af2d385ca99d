"""Whether the kernel has killed processes of this node because memory was used up.

A process that the out-of-memory killer ends looks like any other that was killed by SIGKILL; but
the control group counts it, before the process is gone. Both versions of control groups do:
`memory.events` (2) and `memory.oom_control` (1), each with a line `oom_kill N`.
"""

from collections.abc import Sequence
from pathlib import Path

from holdfast.checkpoint.free_memory import limit_of, memory_groups

FILES = ("memory.events", "memory.oom_control")
MIB = 1 << 20


class OomKills:
    """What was counted since the last look."""

    def __init__(self, groups: Sequence[Path] | None = None) -> None:
        self._groups = memory_groups() if groups is None else groups
        self._seen = self._count()

    def new(self) -> str:
        """What the memory of the node is limited to, if the kernel has killed since the last call;
        else empty."""
        before, self._seen = self._seen, self._count()
        return self._limit() if self._seen > before else ""

    def _count(self) -> int:
        """In the innermost group that counts; 0 where none does."""
        for folder in self._groups:
            for name in FILES:
                try:
                    lines = (folder / name).read_text().splitlines()
                except OSError:
                    continue
                found = [line.removeprefix("oom_kill ") for line in lines]
                counts = [int(count) for count in found if count.isdecimal()]
                if counts:
                    return counts[0]
        return 0

    def _limit(self) -> str:
        limits = [limit for folder in self._groups if (limit := limit_of(folder)) is not None]
        if not limits:
            return "the machine is out of memory"
        return f"memory limit {min(limits) // MIB:,} MiB"
