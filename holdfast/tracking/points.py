"""What `metrics.jsonl` says of each step, from some byte on; a line is read once it is whole."""

import contextlib
import math
import os
import zlib
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from holdfast.files import part_before

BATCH_BYTES = 1 << 20
HEAD_BYTES = 64  # less than a line, and with the time in it


class TrackedStep(msgspec.Struct, frozen=True):
    """One completed step."""

    step: int
    at: float  # seconds since the epoch
    values: dict[str, float]  # finite ones


class ReadPlace(NamedTuple):
    """Up to where was read. The file is known by how it begins, because another one takes its name
    when it has become too large, and its inode may then be given away. 0: whichever has the name.
    """

    offset: int = 0
    file: int = 0


class _Line(msgspec.Struct, frozen=True):
    step: int
    at: float
    loss: float | None = None
    grad_norm: float | None = None
    tokens: int = 0
    metrics: dict[str, float | None] = {}
    attempt: int = 0


_decoder = msgspec.json.Decoder(_Line)


def read(path: Path, place: ReadPlace) -> tuple[list[TrackedStep], ReadPlace]:
    """The next whole lines and where they end: of the part before, then of the file itself. A line
    that cannot be read is left out; a file that is shorter than it was has been replaced, and is
    read from its start, as is the oldest one where that of `place` is gone. Raises `OSError`."""
    with contextlib.ExitStack() as opened:
        parts = _parts(path, opened)
        if parts and place.offset and not place.file:
            place = ReadPlace(place.offset, parts[-1][0])
        known = next((n for n, (number, _) in enumerate(parts) if number == place.file), 0)
        for number, file in parts[known:]:
            size, last = file.seek(0, os.SEEK_END), place.offset if number == place.file else 0
            offset = file.seek(last if last <= size else 0)
            data = file.read(BATCH_BYTES)
            if end := data.rfind(b"\n") + 1:
                lines = data[:end].splitlines()
                points = [point for line in lines if (point := _point(line)) is not None]
                return points, ReadPlace(offset + end, number)
    return [], place


def _parts(path: Path, opened: contextlib.ExitStack) -> list[tuple[int, BinaryIO]]:
    """What there is, the oldest first, by `ReadPlace.file`. The newest is opened first: if it
    becomes the part before meanwhile, it is there twice, not nowhere."""
    found: dict[int, BinaryIO] = {}
    for one in (path, part_before(path)):
        with contextlib.suppress(FileNotFoundError):
            file = opened.enter_context(one.open("rb"))
            found.setdefault(zlib.crc32(file.read(HEAD_BYTES)), file)
    return list(reversed(found.items()))


def _point(line: bytes) -> TrackedStep | None:
    try:
        found = _decoder.decode(line)
    except msgspec.MsgspecError:
        return None
    named: dict[str, Any] = {"loss": found.loss, "grad_norm": found.grad_norm, **found.metrics}
    if found.tokens:
        named["tokens"] = found.tokens
    named["attempt"] = found.attempt
    values = {k: float(v) for k, v in named.items() if v is not None and math.isfinite(v)}
    return TrackedStep(found.step, found.at, values)
