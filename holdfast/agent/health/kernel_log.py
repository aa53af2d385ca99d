"""What the kernel has said since the last look, from `/dev/kmsg`.

The device gives one record at each read and none twice; what was said before we looked is not ours
to judge, so reading begins at its end. Records of programs, which may write there too, are left
out. A plain file in the same format (Documentation/ABI/testing/dev-kmsg) does as well.
"""

import contextlib
import itertools
import os
from pathlib import Path

from holdfast.agent.health.provider import Missing
from holdfast.agent.kernel_log import opened, records
from holdfast.detection.health import KERNEL, Reading

RECORDS_MAX = 2000  # at one look
KERNEL_FACILITY = 0
FACILITY_SHIFT = 3


class KernelLog:
    """The log from now on, or from its beginning. Raises `OSError` where it may not be read."""

    name = "kernel log"
    stalled = None
    every_s = 1.0  # it costs two microseconds, and is the first to know

    def __init__(self, path: Path, *, from_start: bool = False) -> None:
        self._path = path
        self._fd = opened(path)
        self._rest = b""
        if not from_start:
            os.lseek(self._fd, 0, os.SEEK_END)

    def from_the_start(self) -> "KernelLog":
        """The same log with what was said before. Raises `OSError`."""
        return KernelLog(self._path, from_start=True)

    def close(self) -> None:
        """Read no more."""
        os.close(self._fd)

    def read(self) -> list[Reading]:
        """One reading for each line of the kernel."""
        found: list[Reading] = []
        for data in itertools.islice(records(self._fd), RECORDS_MAX):
            *lines, self._rest = (self._rest + data).split(b"\n")
            found += [Reading(KERNEL, text=text) for line in lines if (text := _said(line))]
        return found


def _said(record: bytes) -> str:
    """The message of a record; empty for those of programs, and for their further lines."""
    head, _, message = record.partition(b";")
    with contextlib.suppress(ValueError):
        if int(head.split(b",")[0]) >> FACILITY_SHIFT == KERNEL_FACILITY:
            return message.decode(errors="replace")
    return ""


def find(root: Path) -> KernelLog | Missing:
    """The log of this machine, if we may read it."""
    path = root / "dev/kmsg"
    try:
        return KernelLog(path)
    except OSError as error:
        return Missing(KernelLog.name, f"{path}: {error.strerror}")
