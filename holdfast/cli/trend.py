"""What a live view has seen of a number, as a line of small bars; and how far something is.

A trend spans all that was seen since the view began, in bounded memory: when it is full, neighbours
are averaged, and from then on as many values make one point. Pure text.
"""

import math
import sys
from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"
POINTS = 60  # at most; half of them after neighbours were averaged


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

    def drawn(self) -> str:
        """Bars between the lowest and the highest point; empty as long as there is no course."""
        return bars(self._points) if len(self._points) > 1 else ""


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
