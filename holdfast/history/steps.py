"""The curve of a job in a file of bounded size: every step of late, and all of it more coarsely.

The file has levels. A bucket of level 0 is one step, one of the next is `FANOUT` buckets of the
level below, with the least, the greatest and the mean of each column. Each level is a ring of
`RING` buckets, so of 10 million steps the last 65,536 are kept one by one and all of them in
buckets of 512. Whoever draws takes the level that has about as many buckets as the screen has
columns, so what is read does not depend on how long the job has trained.

A bucket has a place of its own in the file, with its number and a checksum: a step that is done
again after a restore takes the place of what it was before, a kill in the middle of a write costs
one bucket, and a newer writer goes on where the last one ended. A bucket of a coarser level is
written when a step outside of it arrives; until then a reader makes it of those below it.
"""

import math
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from holdfast.files import open_plain

COLUMNS = ("loss", "grad_norm", "step_s", "tokens_per_s", "mfu", "lr")
FANOUT, LEVELS, RING = 8, 7, 1 << 16
MAGIC = b"HFCURVE1"
HEADER = struct.Struct("<8sqq")  # magic, newest step, furthest step
HEADER_BYTES = 64
BUCKET = struct.Struct(f"<qdI{3 * len(COLUMNS)}fI")  # number, at, attempt, values, checksum
PLAIN = struct.Struct(f"<qdI{3 * len(COLUMNS)}f")
LEVEL_BYTES = RING * BUCKET.size
FLOAT_MAX = 3.4028234663852886e38  # the greatest float of four bytes
NOTHING = math.nan

Values = tuple[float, ...]
Fold = Callable[[list[float]], float]


class StepPoint(NamedTuple):
    """One step. `values` are in the order of `COLUMNS`; None: not known."""

    step: int
    at: float
    attempt: int
    values: Sequence[float | None]


class _Bucket(NamedTuple):
    number: int
    at: float
    attempt: int
    low: Values
    high: Values
    mean: Values


class _Piece(NamedTuple):
    """A bucket on its way to a picture: the step before which it ends, how many it stands for."""

    end: int
    steps: int
    bucket: _Bucket


class Curve(NamedTuple):
    """What is drawn, point by point; `width` is the most steps that one stands for."""

    first: int
    last: int
    width: int
    step: list[int]
    at: list[float]
    attempt: list[int]
    low: dict[str, list[float | None]]
    high: dict[str, list[float | None]]
    mean: dict[str, list[float | None]]


EMPTY = Curve(0, -1, 1, [], [], [], {}, {}, {})


class CurveFile:
    """Writes a curve. Raises `OSError` where the disk does not take it; then nothing is kept."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._newest, self._furthest = _newest(self._fd)
        except OSError:
            os.close(self._fd)
            raise

    def put(self, points: Sequence[StepPoint]) -> None:
        """Add steps in the order in which they were done."""
        for point in points:
            if point.step >= 0:
                self._put(point)
        if points:
            os.pwrite(self._fd, HEADER.pack(MAGIC, self._newest, self._furthest), 0)

    def _put(self, point: StepPoint) -> None:
        if self._newest >= 0:
            self._close_buckets(self._newest, point.step)
        values = tuple(NOTHING if v is None else _clamped(v) for v in point.values)
        self._write(0, _Bucket(point.step, point.at, point.attempt, values, values, values))
        self._newest, self._furthest = point.step, max(self._furthest, point.step)

    def _close_buckets(self, before: int, now: int) -> None:
        for level in range(1, LEVELS):
            width = FANOUT**level
            if before // width == now // width:
                return
            first = before // width * FANOUT
            if found := list(_buckets(self._fd, level - 1, first, first + FANOUT)):
                weighed = [(1, part) for part in found]
                self._write(level, _summary(before // width, weighed))

    def _write(self, level: int, bucket: _Bucket) -> None:
        plain = PLAIN.pack(*bucket[:3], *bucket.low, *bucket.high, *bucket.mean)
        place = HEADER_BYTES + level * LEVEL_BYTES + bucket.number % RING * BUCKET.size
        os.pwrite(self._fd, plain + zlib.crc32(plain).to_bytes(4, "little"), place)

    def close(self) -> None:
        """Give the file back."""
        os.close(self._fd)


def _clamped(value: float) -> float:
    """What fits into four bytes; what is not finite stays so."""
    if abs(value) <= FLOAT_MAX or not math.isfinite(value):
        return value
    return math.copysign(FLOAT_MAX, value)


def _newest(fd: int) -> tuple[int, int]:
    """The newest step and the furthest; -1 where there is none, or no curve in this format."""
    head = os.pread(fd, HEADER.size, 0)
    if len(head) < HEADER.size:
        return -1, -1
    magic, newest, furthest = HEADER.unpack(head)
    return (newest, furthest) if magic == MAGIC else (-1, -1)


def _summary(number: int, parts: Sequence[tuple[int, _Bucket]]) -> _Bucket:
    """Of parts with their widths, in the order of steps."""
    last = parts[-1][1]
    low = _folded([part.low for _, part in parts], min)
    high = _folded([part.high for _, part in parts], max)
    mean = [_mean(parts, place) for place in range(len(COLUMNS))]
    return _Bucket(number, last.at, last.attempt, low, high, tuple(mean))


def _folded(rows: Sequence[Values], fold: Fold) -> Values:
    known = ([v for v in column if not math.isnan(v)] for column in zip(*rows, strict=True))
    return tuple(fold(values) if values else NOTHING for values in known)


def _mean(parts: Sequence[tuple[int, _Bucket]], place: int) -> float:
    known = [(w, p.mean[place]) for w, p in parts if not math.isnan(p.mean[place])]
    return sum(w * v for w, v in known) / sum(w for w, _ in known) if known else NOTHING


# ── reading ───────────────────────────────────────────────────────────────────────────────────


def read_curve(path: Path, first: int = 0, last: int | None = None, points: int = 1000) -> Curve:
    """About so many points from step `first` to `last`, by default to the end.

    `EMPTY` where there is no curve, or nothing of it in this format can be read.
    """
    try:
        with open_plain(path) as file:
            return _read(file.fileno(), first, last, points)
    except OSError:
        return EMPTY


def last_point(path: Path) -> StepPoint | None:
    """The newest step; None if there is none that can be read."""
    try:
        with open_plain(path) as file:
            newest, _ = _newest(file.fileno())
            found = list(_buckets(file.fileno(), 0, newest, newest + 1)) if newest >= 0 else []
    except OSError:
        return None
    return StepPoint(newest, found[0].at, found[0].attempt, _values(found[0])) if found else None


def _values(bucket: _Bucket) -> list[float | None]:
    return [_told(value) for value in bucket.mean]


def _read(fd: int, first: int, last: int | None, points: int) -> Curve:
    newest, furthest = _newest(fd)
    end = newest if last is None else min(last, newest)
    begin = max(0, first)
    if end < begin:
        return EMPTY
    level = 0
    while level < LEVELS - 1 and (end - begin + 1) / FANOUT**level > points:
        level += 1
    written = _Written(newest, furthest if furthest - newest < RING else newest)
    found = list(_range(fd, level, begin, end + 1, written))
    return _curve(begin, end, FANOUT**level, found)


class _Written(NamedTuple):
    """The newest step, and the one up to which rings have been written over. After a restore that
    is further, unless nobody trains that far in a ring: then it was no step but a wrong number."""

    newest: int
    furthest: int


def _range(fd: int, level: int, begin: int, end: int, written: _Written) -> Iterator[_Piece]:
    """What this level has lost already is from a coarser one, what it does not have yet is made of
    finer ones."""
    width = FANOUT**level
    kept = max(0, (written.furthest // width - RING + 1) * width)
    if begin < kept and level < LEVELS - 1:
        yield from _range(fd, level + 1, begin, min(end, kept), written)
    begin = max(begin, kept)
    if begin >= end:
        return
    closed = written.newest // width * width if level else end
    for bucket in _buckets(fd, level, begin // width, -(-min(end, closed) // width)):
        yield _Piece(min(end, (bucket.number + 1) * width), width, bucket)
    rest = level and end > closed and list(_range(fd, level - 1, max(begin, closed), end, written))
    if rest:
        parts = [(one.steps, one.bucket) for one in rest]
        yield _Piece(end, sum(one.steps for one in rest), _summary(closed // width, parts))


def _buckets(fd: int, level: int, first: int, end: int) -> Iterator[_Bucket]:
    """Those that are there and sound, of numbers from `first` up to before `end`."""
    while first < end:
        count = min(end - first, RING - first % RING)
        place = HEADER_BYTES + level * LEVEL_BYTES + first % RING * BUCKET.size
        data = os.pread(fd, count * BUCKET.size, place)
        whole = data[: len(data) // BUCKET.size * BUCKET.size]
        for offset in range(0, len(whole), BUCKET.size):
            found = _bucket(whole[offset : offset + BUCKET.size], first + offset // BUCKET.size)
            if found is not None:
                yield found
        first += count


def _bucket(data: bytes, number: int) -> _Bucket | None:
    there, at, attempt, *values, checksum = BUCKET.unpack(data)
    if there != number or zlib.crc32(data[: PLAIN.size]) != checksum:
        return None
    n = len(COLUMNS)
    low, high, mean = values[:n], values[n : 2 * n], values[2 * n :]
    return _Bucket(number, at, attempt, tuple(low), tuple(high), tuple(mean))


def _curve(first: int, last: int, width: int, found: Sequence[_Piece]) -> Curve:
    buckets = [one.bucket for one in found]
    return Curve(
        first=first,
        last=last,
        width=width,
        step=[one.end - 1 for one in found],
        at=[round(one.at, 3) for one in buckets],
        attempt=[one.attempt for one in buckets],
        low=_columns([one.low for one in buckets]),
        high=_columns([one.high for one in buckets]),
        mean=_columns([one.mean for one in buckets]),
    )


def _columns(rows: Sequence[Values]) -> dict[str, list[float | None]]:
    return {name: [_told(row[place]) for row in rows] for place, name in enumerate(COLUMNS)}


def _told(value: float) -> float | None:
    """As many digits as it has; what is not finite cannot be drawn."""
    return float(f"{value:.7g}") if math.isfinite(value) else None
