"""Keys that are due, each at most once and never two at a time; failures wait longer and longer.

A key that is added while it is being worked on is due again afterwards: news that came in the
middle may have come too late to be seen. The clock is the event loop's.
"""

import asyncio
from typing import Generic, TypeVar

K = TypeVar("K")

FIRST_S = 0.5
LAST_S = 60.0
PACE_S = 1.0  # between two looks at one key, however much news there is


class Queue(Generic[K]):
    """When each key is due."""

    def __init__(self) -> None:
        self._due: dict[K, float] = {}
        self._working: set[K] = set()
        self._failures: dict[K, int] = {}
        self._last: dict[K, float] = {}
        self._news = asyncio.Event()

    def add(self, key: K, after_s: float = 0.0) -> None:
        """Let the key be due so soon, or sooner if it is already."""
        now = asyncio.get_running_loop().time()
        at = max(now + after_s, self._last.get(key, now - PACE_S) + PACE_S)
        self._due[key] = min(at, self._due.get(key, at))
        self._news.set()

    async def take(self) -> K:
        """The key that has been due for longest, once there is one; it is worked on from now."""
        while True:
            now = asyncio.get_running_loop().time()
            free = {k: at for k, at in self._due.items() if k not in self._working}
            key = min(free, key=free.__getitem__, default=None)
            if key is not None and free[key] <= now:
                del self._due[key]
                self._working.add(key)
                self._last[key] = now
                return key
            self._news.clear()
            left = None if key is None else free[key] - now
            try:
                await asyncio.wait_for(self._news.wait(), left)
            except TimeoutError:
                continue

    def done(self, key: K, after_s: float | None) -> None:
        """Worked on; due again in so long, None: when it is added."""
        self._failures.pop(key, None)
        self._end(key, after_s)

    def failed(self, key: K) -> float:
        """It did not work; how long it waits until the next try."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        wait_s = min(LAST_S, FIRST_S * 2.0 ** min(count, 20))
        self._end(key, wait_s)
        return wait_s

    def forget(self, key: K) -> None:
        """Nothing is kept of a key that is gone."""
        for table in (self._due, self._failures, self._last):
            table.pop(key, None)

    def _end(self, key: K, after_s: float | None) -> None:
        self._working.discard(key)
        self._news.set()
        if after_s is not None:
            self.add(key, after_s)
