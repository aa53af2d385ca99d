"""New lines of the workers' logs, a little at a time.

Every `tick` looks for logs below `logs/attempt-A/rank-R.log`, reads at most `FILE_BYTES` of each
and `TICK_BYTES` of all, and gives back whole lines. A log that was rotated is read to its end under
its old inode before the new file is opened, so rotation loses nothing that was still there.

A worker can write faster than a terminal can show. With `skip_bytes` a log that is further behind
than that is not caught up with: its middle is left out, and a line says so.

Of a line that is written over the newest state is given back now and then, and the last at its end.
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast.files import open_plain, part_before
from holdfast.log_times import begins
from holdfast.overwritten import STATE_S, on_top

TICK_S = 0.1
FILE_BYTES = 64 * 1024
TICK_BYTES = 1024 * 1024
LINE_BYTES = 16 * 1024  # a longer line without an end is shown in pieces
STATE_TICKS = round(STATE_S / TICK_S)
_LOG = re.compile(r"attempt-(\d+)/rank-(\d+)\.log$")


class Line(NamedTuple):
    """One line of output; from a pod's log the attempt is not known, and from the log of a pod
    without an agent not the rank either, but the pod."""

    attempt: int | None
    rank: int | None
    text: str
    pod: str = ""


class Log:
    """One log that is being read: an open file, how far it was read, and an unfinished line."""

    def __init__(
        self, path: Path, attempt: int, rank: int, *, at_end: bool, since: float | None = None
    ) -> None:
        """Raises `OSError`."""
        self.path, self.attempt, self.rank = path, attempt, rank
        self._rest = b""
        self._state, self._state_ticks = b"", 0  # shown last, how long ago
        part, offset = _first_part(path, since)
        self._file = open_plain(path if at_end else part)
        self._file.seek(0 if at_end else offset, os.SEEK_END if at_end else os.SEEK_SET)

    def close(self) -> None:
        """Give the file back."""
        self._file.close()

    def read(self, limit: int, skip_bytes: int | None) -> tuple[list[Line], int]:
        """New whole lines, from at most `limit` bytes, and how many bytes were read."""
        skipped = self._skip(skip_bytes) if skip_bytes is not None else []
        data = self._file.read(limit)
        if not data and self._rotated():
            self._reopen()
            data = self._file.read(limit)
        *whole, self._rest = (self._rest + data).split(b"\n")
        self._rest = on_top(self._rest)
        if whole:
            self._state = b""
        if len(self._rest) > LINE_BYTES:
            whole, self._rest = [*whole, self._rest], b""
        if len(data) < limit:
            whole += self._newest_state()
        return [*skipped, *map(self._line, whole)], len(data)

    def _newest_state(self) -> list[bytes]:
        """Of the unfinished line, if it is one that is written over, and it is time."""
        self._state_ticks += 1
        due = self._state_ticks >= STATE_TICKS and b"\r" in self._rest
        if not due or self._rest == self._state:
            return []
        self._state, self._state_ticks = self._rest, 0
        return [self._rest]

    def unfinished(self) -> list[Line]:
        """What stands after the last line end, once nothing more will come."""
        rest, self._rest = self._rest, b""
        return [self._line(rest)] if rest and rest != self._state else []

    def behind(self) -> int:
        """Bytes that were written and not read yet."""
        written = os.fstat(self._file.fileno()).st_size
        return max(0, written - self._file.tell()) + self._newer_bytes()

    def _newer_bytes(self) -> int:
        return self.path.stat().st_size if self._rotated() else 0

    def _skip(self, skip_bytes: int) -> list[Line]:
        behind = self.behind()
        if behind <= skip_bytes:
            return []
        self._file.seek(-FILE_BYTES, os.SEEK_END)
        self._file.readline()
        self._rest = b""
        return [self._line(f"... {behind} bytes of output not shown: {self.path}".encode())]

    def _line(self, data: bytes) -> Line:
        text = on_top(data).decode(errors="replace")
        return Line(self.attempt, self.rank, text.strip("\r"))

    def _rotated(self) -> bool:
        try:
            return self.path.stat().st_ino != os.fstat(self._file.fileno()).st_ino
        except FileNotFoundError:
            return False

    def _reopen(self) -> None:
        try:
            fresh = open_plain(self.path)
        except OSError:
            return
        self._file.close()
        self._file = fresh


class Tail:
    """The logs of a job, or of some of its ranks and attempts. Read them with `tick`."""

    def __init__(
        self,
        folder: Path,
        *,
        rank: int | None = None,
        attempt: int | None = None,
        skip_bytes: int | None = None,
        since: float | None = None,
    ) -> None:
        """`since`: leave out what was written before (seconds since the epoch), where known."""
        self._folder = folder / "logs"
        self._since = since
        self._rank, self._attempt, self._skip_bytes = rank, attempt, skip_bytes
        self._open: dict[tuple[int, int], Log] = {}
        self._closed: set[tuple[int, int]] = set()
        self._read_bytes = 0
        self._unread: list[Line] = []  # what is to be said of logs that cannot be opened

    def seek_end(self) -> None:
        """Leave out what has been written so far."""
        self._find(at_end=True)

    def tick(self) -> list[Line]:
        """New lines; bounded work, so that endless output starves nobody."""
        self._find(at_end=False)
        return self._more()

    def _more(self) -> list[Line]:
        """Of the logs that are known."""
        budget = TICK_BYTES
        lines, self._unread = self._unread, []
        for log in self._in_turn():
            found, size = log.read(min(FILE_BYTES, max(budget, 1)), self._skip_bytes)
            lines += found
            budget -= size
            self._read_bytes += size
            if budget <= 0:
                break
        return lines

    def drain(self) -> Iterator[Line]:
        """Everything that has been written when this is called, unfinished lines included."""
        self._find(at_end=False)
        end = self._read_bytes + sum(log.behind() for log in self._open.values())
        while self._read_bytes < end:
            before = self._read_bytes
            yield from self._more()
            if self._read_bytes == before:
                break
        yield from self._unread
        for log in self._open.values():
            yield from log.unfinished()

    def close(self) -> None:
        """Close every file."""
        for log in self._open.values():
            log.close()
        self._open.clear()

    def _in_turn(self) -> list[Log]:
        """Every log, the one that was read last at the end, so that none waits for ever."""
        first = next(iter(self._open), None)
        if first is not None:
            self._open[first] = self._open.pop(first)
        return list(self._open.values())

    def _find(self, *, at_end: bool) -> None:
        found = {(a, r): path for a, r, path in self._below() if self._wanted(a, r)}
        newest = max((a for a, _ in found), default=0)
        for key, path in sorted(found.items()):
            if key not in self._open and key not in self._closed:
                self._begin(key, path, at_end)
        for key in [key for key in self._open if key[0] < newest - 1]:
            self._retire(key)

    def _begin(self, key: tuple[int, int], path: Path, at_end: bool) -> None:
        try:
            if self._since is not None and path.stat().st_mtime < self._since:
                return  # nothing of it is wanted yet, and open files are few
            self._open[key] = Log(path, *key, at_end=at_end, since=self._since)
        except OSError as error:
            self._closed.add(key)
            self._unread.append(Line(*key, f"... {path} cannot be read: {error.strerror}"))

    def _retire(self, key: tuple[int, int]) -> None:
        """Nobody writes to the log of an old attempt: close it once it has been read."""
        if self._open[key].behind() == 0:
            self._open.pop(key).close()
            self._closed.add(key)

    def _below(self) -> Iterator[tuple[int, int, Path]]:
        return logs_below(self._folder, "*" if self._attempt is None else str(self._attempt))

    def _wanted(self, attempt: int, rank: int) -> bool:
        return self._attempt in (None, attempt) and self._rank in (None, rank)


def _first_part(path: Path, since: float | None) -> tuple[Path, int]:
    """Where to begin: the part that was rotated away, if there is one and its end is wanted, and
    the offset in it; reading goes on to the newer by itself."""
    older = part_before(path)
    if older.exists():
        offset = 0 if since is None else begins(older, since) or 0
        if since is None or offset < older.stat().st_size:
            return older, offset
    return path, 0 if since is None else begins(path, since) or 0


def logs_below(folder: Path, attempt: str = "*") -> Iterator[tuple[int, int, Path]]:
    """Attempt, rank and path of every log, or of those of one attempt."""
    for path in folder.glob(f"attempt-{attempt}/rank-*.log"):
        match = _LOG.search(path.as_posix())
        if match:
            yield int(match[1]), int(match[2]), path


def prefixed(lines: Iterable[Line]) -> str:
    """Lines with the rank in front, or the pod, as one text."""
    return "".join(f"[{line.pod or line.rank}] {line.text}\n" for line in lines)
