"""Addresses of pods and Services, all on the loopback device, which owns 127.0.0.0/8.

Clusters of tests that run at the same time pick their networks at random.
"""

import random


class Network:
    """Hands out addresses; the one of a Service depends on its name, so it is known before it."""

    def __init__(self) -> None:
        self._network = random.randrange(2, 250)
        self._next = random.randrange(128 * 256, 250 * 256)
        self._services: dict[tuple[str, str], str] = {}

    def pod(self) -> str:
        """An address that no other pod has had."""
        return self._take()

    def service(self, namespace: str, name: str) -> str:
        """The address of a Service."""
        key = (namespace, name)
        if key not in self._services:
            self._services[key] = self._take()
        return self._services[key]

    def _take(self) -> str:
        self._next += 1
        if self._next % 256 in (0, 255):
            self._next += 2
        high, low = divmod(self._next % 65536, 256)
        return f"127.{self._network}.{high}.{low}"
