"""What `metrics.jsonl` says of each step, from some byte on; a line is read once it is whole."""

import math
from pathlib import Path
from typing import Any

import msgspec

BATCH_BYTES = 1 << 20


class TrackedStep(msgspec.Struct, frozen=True):
    """One completed step."""

    step: int
    at: float  # seconds since the epoch
    values: dict[str, float]  # finite ones


class _Line(msgspec.Struct, frozen=True):
    step: int
    at: float
    loss: float | None = None
    grad_norm: float | None = None
    tokens: int = 0
    metrics: dict[str, float | None] = {}
    attempt: int = 0


_decoder = msgspec.json.Decoder(_Line)


def read(path: Path, offset: int) -> tuple[list[TrackedStep], int]:
    """The next whole lines and where they end. A line that cannot be read is left out; a file that
    is shorter than `offset` was replaced, and is read from its start. Raises `OSError`."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            offset = offset if offset <= size else 0
            file.seek(offset)
            data = file.read(BATCH_BYTES)
    except FileNotFoundError:
        return [], offset
    end = data.rfind(b"\n") + 1
    points = [point for line in data[:end].splitlines() if (point := _point(line)) is not None]
    return points, offset + end


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
