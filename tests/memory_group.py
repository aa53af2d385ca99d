"""A control group of its own with a limit of memory, for what the kernel does when that is used up.

Needs the right to make one; whoever has it not gets a skipped test that says so.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import until

ROOTS = (  # of version 1 and 2, and the file with the limit
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max"),
)


def limited(limit_bytes: int) -> Iterator[Path]:
    """The folder of the group; a process joins it by writing its pid to `cgroup.procs`."""
    why: OSError | None = None
    for root, limit in ROOTS:
        group = root / f"holdfast-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError as error:
            why = error
            continue
        try:
            (group / limit).write_text(str(limit_bytes))
        except OSError as error:
            group.rmdir()
            why = error
            continue
        yield group
        _remove(group)
        return
    pytest.skip(f"no memory control group can be made here: {why}")


def _remove(group: Path) -> None:
    until(lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()
