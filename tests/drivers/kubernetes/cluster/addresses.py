"""Addresses of pods and Services, all on the loopback device, which owns 127.0.0.0/8.

Clusters of tests run at the same time. Each has a network of its own: who holds the socket at its
last address has it. Where in it the addresses begin is drawn, so that what an earlier cluster has
left is not met; and not by the seed of a test, which may be that of another process.
"""

import secrets
import socket

CLAIM = 29_999  # the port whose socket is the claim


class Network:
    """Hands out addresses; the one of a Service depends on its name, so it is known before it."""

    def __init__(self) -> None:
        self._number, self._claim = _free()
        self._next = secrets.choice(range(128 * 256, 250 * 256))
        self._services: dict[tuple[str, str], str] = {}

    def leave(self) -> None:
        """Another cluster may have the network."""
        self._claim.close()

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
        return f"127.{self._number}.{high}.{low}"


def _free() -> tuple[int, socket.socket]:
    """A network that no other cluster of this machine has, and the claim to it."""
    numbers = list(range(2, 250))
    while numbers:
        number = numbers.pop(secrets.randbelow(len(numbers)))
        claim = socket.socket()
        try:
            claim.bind((f"127.{number}.255.254", CLAIM))
        except OSError:
            claim.close()
        else:
            return number, claim
    raise OSError("all loopback networks are claimed by clusters of other tests")
