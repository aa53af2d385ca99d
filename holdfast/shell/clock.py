"""The time of a controller: seconds since the epoch that never step back.

Everything is decided by it. The wall clock may be set, and goes on while a machine sleeps: so the
two may differ, and what other programs compare with theirs is told by the wall clock."""

import time

SET_S = 1.0  # by which a clock was set, and not only corrected


class Clock:
    """Wall time once, monotonic from there.

    `not_before` is the last time an earlier process saw: wall time that was set back meanwhile must
    not make waiting longer.
    """

    def __init__(self, not_before: float = 0.0) -> None:
        self._offset = max(time.time(), not_before) - time.monotonic()

    def now(self) -> float:
        """The present."""
        return time.monotonic() + self._offset

    def wall_ahead_s(self) -> float | None:
        """Of the wall clock; None unless it was set or the machine has slept, since this began."""
        ahead_s = time.time() - self.now()
        return round(ahead_s, 3) if abs(ahead_s) >= SET_S else None

    @property
    def ahead_s(self) -> float:
        """Of the clock that all processes of this machine have in common since it was started."""
        return self._offset
