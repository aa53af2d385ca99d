"""The course of a number as a line of small bars; and how far something is.

A course spans the whole job, where its curve is kept. Where it is not, a trend spans all that a
live view has seen since it began, in bounded memory: when it is full, neighbours are averaged, and
from then on as many values make one point. Pure text.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

BARS = "▁▂▃▄▅▆▇█"
POINTS = 60  # at most; half of them after neighbours were averaged
CURVE_POINTS = 8 * POINTS  # to ask a curve for: it has an eighth of them at least


class KeptCourse(NamedTuple):
    """What is kept of a job since it began: loss, and steps a second."""

    loss: Sequence[float] = ()
    speed: Sequence[float] = ()

    @staticmethod
    def of(mean: Mapping[str, Sequence[float | None]]) -> "KeptCourse":
        """From the columns of a curve."""
        times = (value for value in mean.get("step_s", ()) if value)
        return KeptCourse(
            averaged([value for value in mean.get("loss", ()) if value is not None]),
            averaged([1 / value for value in times]),
        )


def averaged(values: Sequence[float]) -> list[float]:
    """At most `POINTS` of them, each the mean of as many neighbours."""
    each = -(-len(values) // POINTS)
    groups = (values[at : at + each] for at in range(0, len(values), each or 1))
    return [sum(group) / len(group) for group in groups]


class Trend:
    """The course of one number."""

    def __init__(self) -> None:
        self.newest: float | None = None
        self._points: list[float] = []
        self._each = 1  # values in a point
        self._sum, self._count = 0.0, 0

    def add(self, value: float | None) -> None:
        """One more value; None and what is not finite are no part of it."""
        if value is None or not math.isfinite(value):
            return
        self.newest = value
        self._sum, self._count = self._sum + value, self._count + 1
        if self._count < self._each:
            return
        self._points.append(self._sum / self._count)
        self._sum, self._count = 0.0, 0
        if len(self._points) == POINTS:
            pairs = zip(self._points[::2], self._points[1::2], strict=True)
            self._points, self._each = [(a + b) / 2 for a, b in pairs], self._each * 2

    def drawn(self, kept: Sequence[float] = ()) -> str:
        """Bars between the lowest and the highest point; empty as long as there is no course.
        `kept` is what is known from before and until now, if anything is."""
        points = kept if len(kept) > 1 else self._points
        return bars(points) if len(points) > 1 else ""


def bars(values: Sequence[float]) -> str:
    """One bar for each value; a level course is drawn at half height."""
    low, high = min(values), max(values)
    if high == low:
        return BARS[len(BARS) // 2] * len(values)
    top = len(BARS) - 1
    return "".join(BARS[round((value - low) / (high - low) * top)] for value in values)


def filled(share: float, width: int) -> str:
    """A bar of `width` characters, `share` (0 to 1) of it done."""
    done = int(min(1.0, max(0.0, share)) * width)
    return "█" * done + "░" * (width - done)


def can_draw() -> bool:
    """Whether standard output can show these characters."""
    try:
        (BARS + "░").encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
