"""When which part of a log was written: what `holdfast logs --since` goes by.

Workers print what they like, mostly without a time. So beside each log stands a small file,
`times-NAME`, with one entry for each second in which something was written: the time (seconds since
the epoch, a double) and where in the log that began (bytes, 64 bits), little-endian. It is rotated
with its log. A half-written entry at the end is left out; where there is no such file, or the disk
was full, more is shown rather than less.
"""

import os
import struct
from contextlib import suppress
from pathlib import Path

EVERY_S = 1.0
_ENTRY = struct.Struct("<dq")


def beside(log: Path) -> Path:
    """The times of a log."""
    return log.with_name(f"times-{log.name}")


class LogTimes:
    """Written along with one log. Never raises: a log is worth more than its times."""

    def __init__(self, log: Path) -> None:
        self._path = beside(log)
        self._noted_at = 0.0

    def note(self, now: float, offset: int) -> None:
        """What is written at `now` (since the epoch) begins at `offset` of the log."""
        if abs(now - self._noted_at) < EVERY_S and offset > 0:
            return
        self._noted_at = now
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with suppress(OSError):
            fd = os.open(self._path, flags, 0o600)
            try:
                os.write(fd, _ENTRY.pack(now, offset))
            finally:
                os.close(fd)

    def rotate(self, older: Path) -> None:
        """The log is called `older` from now on; what was there is replaced."""
        with suppress(OSError):
            os.replace(self._path, beside(older))


def begins(log: Path, since: float) -> int | None:
    """Where in a log begins what was written at `since` or later; None if that is not known.

    Up to a second (`EVERY_S`) more is shown. The first entry late enough counts, even if the clock
    was set back after it.
    """
    try:
        content, now = beside(log).read_bytes(), log.stat()
    except OSError:
        return None
    entries = list(_ENTRY.iter_unpack(content[: len(content) - len(content) % _ENTRY.size]))
    if not entries:
        return None
    missing = entries[-1][1] if now.st_mtime >= since else now.st_size  # an entry may be
    return next((offset for at, offset in entries if at > since - EVERY_S), missing)
