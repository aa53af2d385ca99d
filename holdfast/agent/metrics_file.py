"""`metrics.jsonl`: one line a step, written by the agent that has rank 0, and the job's curve.

Records come from the ring in rank 0's progress page, so the worker itself never touches the disk. A
line is written whole or not at all; what a full disk refuses is dropped and counted. A file that
has become too large goes on as a new one, and the part before is kept beside it, as with logs.

JSON has no numbers that are not finite. Such a value is null, as is one that was not logged, and
`not_finite` of the line has its name and what it is: `"nan"`, `"inf"` or `"-inf"`.

The curve (`holdfast/history`) has the same steps in a file of bounded size, for whoever draws them.
"""

import math
import os
import time
from pathlib import Path
from typing import Any

import msgspec

from holdfast.agent.counters import MFU, RATE_NAMES
from holdfast.agent.notes import note
from holdfast.counts import count
from holdfast.files import part_before
from holdfast.history import CURVE, CurveFile, StepPoint
from holdfast.page import StepRecord, spelled

LIMIT_BYTES = 128 << 20  # 850,000 steps of seven numbers; twice that is kept
BLOCK = 4096  # of the end of the file that is looked at together


class MetricsFile:
    """The file, opened when the first step is done."""

    def __init__(self, path: Path, *, draws: bool = True, limit_bytes: int = LIMIT_BYTES) -> None:
        self._path, self._draws, self._limit_bytes = path, draws, limit_bytes
        self._fd = -1
        self._attempt = 0
        self._lost_count = 0
        self._curve: CurveFile | None = None
        self._before: tuple[int, StepRecord] | None = None  # attempt, and its newest step
        self._undrawn = False  # said that a step could not be drawn

    def append(self, attempt: int, records: list[StepRecord]) -> None:
        """Write these steps of an attempt; never raises because of the disk."""
        if not records:
            return
        if attempt != self._attempt:
            self._attempt = attempt
            self._close()  # another agent may have gone on meanwhile, with a new file
        ahead_s = time.time() - time.monotonic()
        if self._draws:
            self._draw(attempt, records, ahead_s)
        lines = b"".join(_line(attempt, record, ahead_s) for record in records)
        try:
            self._append_whole(lines)
        except OSError as error:
            if not self._lost_count:
                note(f"agent: metrics.jsonl: {error.strerror}; steps are dropped")
            self._lost_count += len(records)
            return
        if self._lost_count:
            lost = count(self._lost_count, "step was", "steps were")
            note(f"agent: metrics.jsonl: {lost} dropped")
            self._lost_count = 0

    def _draw(self, attempt: int, records: list[StepRecord], ahead_s: float) -> None:
        try:
            self._put(attempt, records, ahead_s)
        except OSError:
            pass  # a gap; a full disk is told of by the lines
        except Exception as error:  # whatever it is, no node is lost for a picture
            if not self._undrawn:
                note(f"agent: {CURVE}: {error!r}; the curve has gaps")
            self._undrawn = True

    def _put(self, attempt: int, records: list[StepRecord], ahead_s: float) -> None:
        points = []
        for record in records:
            points.append(_point(attempt, record, self._before, ahead_s))
            self._before = (attempt, record)
        if self._curve is None:
            self._curve = CurveFile(self._path.with_name(CURVE))
        self._curve.put(points)

    def _append_whole(self, lines: bytes) -> None:
        if self._fd < 0:
            self._fd = _open_at_line_start(self._path)
        size = os.fstat(self._fd).st_size
        if size and size + len(lines) > self._limit_bytes:
            self._begin_anew(size)
            size = 0
        written = os.write(self._fd, lines)
        if written < len(lines):
            os.ftruncate(self._fd, size)
            raise OSError(28, "No space left on device")

    def _begin_anew(self, size: int) -> None:
        before = part_before(self._path)
        drops = "; steps of the one before that are dropped" if before.exists() else ""
        os.replace(self._path, before)
        note(f"agent: metrics.jsonl: {size} bytes are kept as {before.name}{drops}")
        self._close()
        self._fd = _open_at_line_start(self._path)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _point(
    attempt: int, record: StepRecord, before: tuple[int, StepRecord] | None, ahead_s: float
) -> StepPoint:
    """In the order of the curve's columns. A step's time is known if the one before it is."""
    logged, step_s = record.metrics, None
    if before is not None and (before[0], before[1].step) == (attempt, record.step - 1):
        step_s = max(0.0, record.at - before[1].at)
    rate = record.tokens / step_s if step_s and record.tokens else None
    lr = next((logged[name] for name in RATE_NAMES if name in logged), None)
    values = (record.loss, record.grad_norm, step_s, rate, logged.get(MFU), lr)
    return StepPoint(record.step, record.at + ahead_s, attempt, values)


def _line(attempt: int, record: StepRecord, ahead_s: float) -> bytes:
    values: dict[str, Any] = {
        "attempt": attempt,
        "step": record.step,
        "at": record.at + ahead_s,
        "loss": record.loss,  # what is not finite becomes null, here and below
        "grad_norm": record.grad_norm,
        "tokens": record.tokens,
    }
    if record.metrics:
        values["metrics"] = dict(record.metrics)
    named = {"loss": record.loss, "grad_norm": record.grad_norm, **record.metrics}
    if bad := {n: spelled(v) for n, v in named.items() if v is not None and not math.isfinite(v)}:
        values["not_finite"] = bad
    return msgspec.json.encode(values) + b"\n"


def words_of(loss: object, grad_norm: object) -> str:
    """What a step has logged, so that it can be compared."""
    values = (("loss", loss), ("grad_norm", grad_norm))
    return ", ".join(f"{name} {_spelled(value)}" for name, value in values if value is not None)


def _spelled(value: object) -> object:
    bad = isinstance(value, float) and not math.isfinite(value)
    return spelled(value) if bad and isinstance(value, float) else value


def logged_steps(file: Path, after: int, through: int) -> dict[int, str]:
    """What rank 0 logged in these steps, the first time it did them; nothing where it is gone."""
    found: dict[int, str] = {}
    for line in _lines(part_before(file)) + _lines(file):
        try:
            told = msgspec.json.decode(line)
            step, bad = told["step"], told.get("not_finite") or {}
        except (msgspec.MsgspecError, KeyError, TypeError, AttributeError):
            continue
        words = words_of(*(bad.get(name, told.get(name)) for name in ("loss", "grad_norm")))
        if after < step <= through and words:
            found.setdefault(step, words)
    return found


def _lines(file: Path) -> list[bytes]:
    try:
        return file.read_bytes().splitlines()
    except OSError:
        return []


def _open_at_line_start(path: Path) -> int:
    """Open for appending; a line that another agent could not finish is cut off."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    size = end = os.fstat(fd).st_size
    while end > 0:
        first = max(0, end - BLOCK)
        found = os.pread(fd, end - first, first).rfind(b"\n")
        end = first if found < 0 else first + found + 1
        if found >= 0:
            break
    if end < size:
        note(
            f"agent: metrics.jsonl: its last line was not complete: {size - end} bytes are cut off"
        )
        os.ftruncate(fd, end)
    return fd
