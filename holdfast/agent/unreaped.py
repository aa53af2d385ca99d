"""Workers that have ended, and that their forkserver does not reap.

A forkserver reaps its children within milliseconds. One that is stopped, or stuck, never does: its
workers would be dead and the attempt go on for ever. What counts is how often they were found, not
how long they have been there: the whole node may have been stopped meanwhile.
"""

from collections.abc import Iterable

from holdfast.agent import processes

LOOK_S = 1.0  # between two looks
LOOKS = 5  # in a row that find some


class Unreaped:
    """What was found at one look after the other."""

    def __init__(self) -> None:
        self._looked_at = 0.0
        self._found_count = 0

    def too_long(self, pids: Iterable[int], now: float) -> bool:
        """Whether some of these children of a forkserver have not been reaped in time."""
        if now - self._looked_at < LOOK_S:
            return False
        self._looked_at = now
        found = any(map(processes.waits_to_be_reaped, pids))
        self._found_count = self._found_count + 1 if found else 0
        return self._found_count >= LOOKS
