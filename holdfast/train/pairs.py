"""The connections of a gloo group: how to find them, and how to close them from outside.

gloo cannot be told to give up what waits for a peer: `abort()` of its process group does nothing,
and a rank whose own peer lives waits on although the collective can never end. A connection that
is shut down fails everything that waits on it, on both sides, at once. gloo connects while a group
is made, so its connections are the sockets that have come since. Those that listen stay: gloo ends
the process if one of them fails.
"""

import contextlib
import os
import socket
from collections.abc import Mapping

OPEN_FILES = "/proc/self/fd"

Connections = Mapping[int, str]  # descriptor → what it is, which tells it from a later one


def sockets() -> Connections:
    """All sockets of this process."""
    found = {}
    for name in os.listdir(OPEN_FILES):
        with contextlib.suppress(OSError):  # it was closed meanwhile
            what = os.readlink(f"{OPEN_FILES}/{name}")
            if what.startswith("socket:"):
                found[int(name)] = what
    return found


def since(before: Connections) -> Connections:
    """The connected sockets that have come since then."""
    now = sockets()
    fresh = {fd: what for fd, what in now.items() if before.get(fd) != what}
    return {fd: what for fd, what in fresh.items() if _is_connected(fd)}


def are_open(connections: Connections) -> bool:
    """Whether gloo has not closed all of them yet."""
    now = sockets()
    return any(now.get(fd) == what for fd, what in connections.items())


def close(connections: Connections) -> None:
    """Shut them down, as far as they are still the same; gloo then closes them by itself."""
    now = sockets()
    for fd in (fd for fd, what in connections.items() if now.get(fd) == what):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as sock:
            sock.shutdown(socket.SHUT_RDWR)


def _is_connected(fd: int) -> bool:
    try:
        with socket.socket(fileno=os.dup(fd)) as sock:
            sock.getpeername()
            return sock.family in (socket.AF_INET, socket.AF_INET6)
    except OSError:
        return False
