"""What the wall clock showed at a time of the controller's clock, by which everything is decided.

They differ once the wall clock was set, or the machine has slept, until the next controller begins;
each line of the journal says by how much. Only what a person compares with other clocks is told so:
lengths of time, and what is drawn beside them, are the controller's. Pure.
"""

from bisect import bisect_right

from holdfast.actions import Entry
from holdfast.shell.clock import SET_S


class WallMarks:
    """As far as the journal was heard."""

    def __init__(self) -> None:
        self._since: list[float] = []
        self._ahead_s: list[float] = []

    def hear(self, entry: Entry) -> None:
        """The next line."""
        last_s, ahead_s = self._ahead_s[-1] if self._ahead_s else 0.0, entry.ahead_s or 0.0
        if abs(ahead_s - last_s) >= SET_S:
            self._since.append(entry.at)
            self._ahead_s.append(ahead_s)

    def ahead_s(self, at: float) -> float:
        """How far the wall clock was ahead then."""
        place = bisect_right(self._since, at)
        return self._ahead_s[place - 1] if place else 0.0

    def moment(self, at: float) -> float:
        """What it showed."""
        return at + self.ahead_s(at)
