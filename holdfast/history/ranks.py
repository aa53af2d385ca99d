"""The times of every rank over the life of a job, in a file of bounded size.

A column is one look at all ranks: three quantities of each as floats of two bytes. Level 0 is a
ring of `RING` looks, one of the next level is the mean of `FANOUT` columns of the level below. So
the last minutes are kept look by look and months more coarsely, and 16,384 ranks need 94 MB. Each
column has a checksum: one that was half-written when its writer died is left out. It names the
newest attempt that is in it.

A file is made for so many ranks. When an attempt has more than fit, a new one takes its place.
"""

import math
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from holdfast.files import open_plain

QUANTITIES = ("step_s", "wait", "late")
"""Seconds of the newest step; share of the time in which it waited for data or copied its state;
share of the time in which others waited for it."""
RING, FANOUT, LEVELS = 240, 16, 4
ENOUGH = 60  # columns that are a picture
SMALLEST, GREATEST = 16, 1 << 24  # ranks that a file has room for
WRITTEN_MAX = 1 << 48
MAGIC = b"HFRANKS2"
HEADER = struct.Struct("<8sQ4q")  # magic, room, columns written so far by level
HEADER_BYTES = 64
HEAD = struct.Struct("<qddII")  # number, at, seconds that it covers, attempt, ranks
COLUMN = struct.Struct("<qddIII")  # that and a checksum of it and the values
COLUMN_BYTES = 40
HALF_MAX = 65504.0  # the greatest float of two bytes

Rows = list[list[float]]  # by quantity, by rank


class RankPicture(NamedTuple):
    """Columns of one quantity, the oldest first; `values` has floats of two bytes, column by
    column, each of `ranks` values."""

    ranks: int
    at: list[float]
    span_s: list[float]
    attempt: list[int]
    values: bytes


class RankHistory:
    """Writes it. Raises `OSError` where the disk does not take it."""

    def __init__(self, path: Path, ranks: int) -> None:
        self._path = path
        self._open(ranks)

    def _open(self, ranks: int) -> None:
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            found = _header(self._fd)
            if found is None or found[0] < ranks:
                os.ftruncate(self._fd, 0)
                found = (max(SMALLEST, 1 << (ranks - 1).bit_length()), [0] * LEVELS)
        except OSError:
            self.close()
            raise
        self._room, self._written = found
        self._sums: list[_Sum] = [_Sum() for _ in range(LEVELS)]

    def add(self, at: float, span_s: float, attempt: int, rows: Rows) -> None:
        """One look: for each of `QUANTITIES` a value of each rank; NaN: not known."""
        if len(rows[0]) > self._room:
            self.close()
            self._open(len(rows[0]))
        for level in range(LEVELS):
            self._write(level, at, span_s, attempt, rows)
            if level == LEVELS - 1:
                break
            full = self._sums[level].add(span_s, rows)
            if full is None:
                break
            span_s, rows = full
        os.pwrite(self._fd, HEADER.pack(MAGIC, self._room, *self._written), 0)

    def _write(self, level: int, at: float, span_s: float, attempt: int, rows: Rows) -> None:
        number, ranks = self._written[level], len(rows[0])
        values = [struct.pack(f"<{ranks}e", *map(_half, row)) for row in rows]
        place = _place(self._room, level, number)
        for index, packed in enumerate(values):
            os.pwrite(self._fd, packed, place + COLUMN_BYTES + index * 2 * self._room)
        head = HEAD.pack(number, at, span_s, attempt, ranks)
        checksum = zlib.crc32(head + b"".join(values))
        os.pwrite(self._fd, head + checksum.to_bytes(4, "little"), place)
        self._written[level] += 1

    def close(self) -> None:
        """Give the file back, if it is open."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class _Sum:
    """Columns of one level on their way to one of the next. They may be of several attempts."""

    def __init__(self) -> None:
        self._rows: Rows = []
        self._known: list[list[int]] = []  # of each value, in how many columns there was one
        self._span_s, self._count = 0.0, 0

    def add(self, span_s: float, rows: Rows) -> tuple[float, Rows] | None:
        """The mean of `FANOUT` columns once they are there: of each rank over those in which it is
        known. Another number of ranks begins anew."""
        if not self._count or len(self._rows[0]) != len(rows[0]):
            self._rows = [[0.0] * len(row) for row in rows]
            self._known = [[0] * len(row) for row in rows]
            self._span_s, self._count = 0.0, 0
        for sums, known, row in zip(self._rows, self._known, rows, strict=True):
            for rank, value in enumerate(row):
                if not math.isnan(value):
                    sums[rank] += value
                    known[rank] += 1
        self._span_s, self._count = self._span_s + span_s, self._count + 1
        if self._count < FANOUT:
            return None
        self._count = 0
        return self._span_s, [
            [value / count if count else math.nan for value, count in zip(sums, known, strict=True)]
            for sums, known in zip(self._rows, self._known, strict=True)
        ]


def _half(value: float) -> float:
    return value if math.isnan(value) else max(-HALF_MAX, min(value, HALF_MAX))


def _place(room: int, level: int, number: int) -> int:
    size = COLUMN_BYTES + len(QUANTITIES) * 2 * room
    return HEADER_BYTES + (level * RING + number % RING) * size


def _header(fd: int) -> tuple[int, list[int]] | None:
    data = os.pread(fd, HEADER.size, 0)
    if len(data) < HEADER.size:
        return None
    magic, room, *written = HEADER.unpack(data)
    sound = SMALLEST <= room <= GREATEST and all(0 <= one <= WRITTEN_MAX for one in written)
    return (room, list(written)) if magic == MAGIC and sound else None


# ── reading ───────────────────────────────────────────────────────────────────────────────────


def read_ranks(path: Path, quantity: str, level: int | None = None) -> RankPicture:
    """The newest columns of a level; by default of the finest that reaches back to the beginning,
    or of the coarsest that has something to show.

    Raises `ValueError` for a quantity or level that there is not.
    """
    place = QUANTITIES.index(quantity)
    if level is not None and not 0 <= level < LEVELS:
        raise ValueError(f"level {level}")
    try:
        with open_plain(path) as file:
            return _read(file.fileno(), place, level)
    except OSError:
        return RankPicture(0, [], [], [], b"")


def _read(fd: int, quantity: int, level: int | None) -> RankPicture:
    found = _header(fd)
    if found is None:
        return RankPicture(0, [], [], [], b"")
    room, written = found
    if level is None:
        level = _best(written)
    columns = list(_columns(fd, room, level, written[level], quantity))
    ranks = max((one.ranks for one in columns), default=0)
    nothing = struct.pack("<e", math.nan)
    values = b"".join(one.values + nothing * (ranks - one.ranks) for one in columns)
    return RankPicture(
        ranks,
        [round(one.at, 3) for one in columns],
        [round(one.span_s, 3) for one in columns],
        [one.attempt for one in columns],
        values,
    )


def _best(written: Sequence[int]) -> int:
    whole = (level for level in range(LEVELS) if written[level] <= RING)
    first_whole = next(whole, LEVELS - 1)
    enough = (level for level in range(first_whole, 0, -1) if written[level] >= ENOUGH)
    return next(enough, 0)


class _Column(NamedTuple):
    at: float
    span_s: float
    attempt: int
    ranks: int
    values: bytes


def _columns(fd: int, room: int, level: int, written: int, quantity: int) -> Iterator[_Column]:
    for number in range(max(0, written - RING), written):
        place = _place(room, level, number)
        head = os.pread(fd, COLUMN.size, place)
        if len(head) < COLUMN.size:
            return
        there, at, span_s, attempt, ranks, checksum = COLUMN.unpack(head)
        if there != number or ranks > room:
            continue
        parts = _parts(fd, room, place, ranks)
        if zlib.crc32(head[: HEAD.size] + b"".join(parts)) == checksum:
            yield _Column(at, span_s, attempt, ranks, parts[quantity])


def _parts(fd: int, room: int, place: int, ranks: int) -> Sequence[bytes]:
    starts = (place + COLUMN_BYTES + n * 2 * room for n in range(len(QUANTITIES)))
    return [os.pread(fd, 2 * ranks, start) for start in starts]
