"""What is asked about the figures of a job, and the answers as bytes: over HTTP, wherever they lie.

    /curve/FIRST/LAST/POINTS          JSON: see `Curve`; LAST may be `end`
    /ranks/QUANTITY/LEVEL             a line of JSON, then the values; LEVEL may be `best`

A controller in a cluster answers them beside its metrics, the page answers them of folders here.
"""

import re
from pathlib import Path
from typing import Annotated, get_type_hints

import msgspec
from msgspec import Meta

from holdfast.history.ranks import read_ranks
from holdfast.history.steps import Curve, read_curve

CURVE = "curve.bin"
RANKS = "ranks.bin"
POINTS_MAX = 4000
STEP_MAX = 1 << 52
JSON_BYTES = 8 << 20  # a curve of all points has two; numbers take sixteen times that to be read
VALUE_BYTES = 2  # of a rank at one time
QUESTION = re.compile("(curve|ranks)/[a-z0-9_]+/[a-z0-9]+(/[0-9]+)?")
JSON, BINARY = "application/json", "application/octet-stream"


def kind_of_answer(path: str) -> str | None:
    """The type of the answer to such a question; None if it is none."""
    found = QUESTION.fullmatch(path.strip("/"))
    return {None: None, "curve": JSON, "ranks": BINARY}[found[1] if found else None]


_CurveAnswer = msgspec.defstruct("_CurveAnswer", [*get_type_hints(Curve).items()])


class _RanksHead(msgspec.Struct):
    """As `RankPicture` is told, before the values."""

    ranks: Annotated[int, Meta(ge=0)]
    at: list[float]
    span_s: list[float]
    attempt: list[int]


def require_answer(path: str, content: bytes) -> None:
    """That this can be the answer to such a question, whole. Raises `ValueError`."""
    is_curve = kind_of_answer(path) == JSON
    first, _, values = (content, b"", b"") if is_curve else content.partition(b"\n")
    if len(first) > JSON_BYTES:
        raise ValueError(f"more than {JSON_BYTES >> 20} MiB of JSON")
    if is_curve:
        msgspec.json.decode(first, type=_CurveAnswer)
        return
    head = msgspec.json.decode(first, type=_RanksHead)
    if len(values) != VALUE_BYTES * head.ranks * len(head.at):
        raise ValueError(f"{len(values)} bytes are not the values of {head.ranks} ranks")


def told(folder: Path, path: str) -> tuple[bytes, str] | None:
    """The answer and its type; None if that is no question."""
    try:
        match path.strip("/").split("/"):
            case ["curve", first, last, points]:
                return _curve(folder, first, last, points), JSON
            case ["ranks", quantity, level]:
                return _ranks(folder, quantity, level), BINARY
            case _:
                return None
    except ValueError:  # no number, or none that there is
        return None


def _curve(folder: Path, first: str, last: str, points: str) -> bytes:
    until = None if last == "end" else _number(last, STEP_MAX)
    count = max(1, _number(points, POINTS_MAX))
    found = read_curve(folder / CURVE, _number(first, STEP_MAX), until, count)
    return msgspec.json.encode(found._asdict())


def _ranks(folder: Path, quantity: str, level: str) -> bytes:
    found = read_ranks(folder / RANKS, quantity, None if level == "best" else _number(level, 99))
    head = {"ranks": found.ranks, "at": found.at, "span_s": found.span_s, "attempt": found.attempt}
    return msgspec.json.encode(head) + b"\n" + found.values


def _number(text: str, most: int) -> int:
    if not text.isascii() or not text.isdecimal():
        raise ValueError(text)
    return min(int(text[:18]), most)
