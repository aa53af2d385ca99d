"""A limit on the bandwidth that saving may take from training.

A bucket that fills with so many bytes each second and holds half a second's worth. Who takes more
than is in it waits until the debt is paid. All ranks of a node share one.
"""

import threading
import time
from collections.abc import Callable

HOLDS_S = 0.5
LOOK_S = 0.1


class BandwidthLimit:
    """At most so many bytes per second; None for no limit."""

    def __init__(
        self,
        bytes_per_s: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = bytes_per_s
        self._clock = clock
        self._wait = wait
        self._lock = threading.Lock()
        self._level = 0.0
        self._at = clock()

    def take(self, count: int, cancelled: Callable[[], bool]) -> None:
        """Wait until so many bytes may be written, or `cancelled`."""
        if self._rate is None:
            return
        until = self._clock() + self._debt(count, self._rate)
        while (left := until - self._clock()) > 0 and not cancelled():
            self._wait(min(left, LOOK_S))

    def _debt(self, count: int, rate: float) -> float:
        """Take the bytes; the seconds until they have come in."""
        with self._lock:
            now = self._clock()
            self._level = min(self._level + (now - self._at) * rate, HOLDS_S * rate) - count
            self._at = now
            return max(0.0, -self._level / rate)
