"""The agent's end of the socket on which a worker is kept from one attempt to the next.

A worker that can be kept says so when its training loop begins. When the attempt is broken it is
ordered to park instead of being ended, and says when it does nothing of that attempt any more. From
then on it is what a warm worker is: a process that waits for a rank, its own, in the next attempt.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable

import msgspec

from holdfast.messages import Assignment, WorkerParking

ORDER = b"park\n"
READ_BYTES = 1 << 16

_news = msgspec.json.Decoder(WorkerParking)


class Parking:
    """Of one worker. `why` it cannot be kept, if it has said that."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._read = b""
        self.able = False
        self.moves = False  # also with another rank
        self.why = ""
        self.ordered = self.parked = False
        self.program: object = None  # what it runs
        self.on_parked: Callable[[], None] = lambda: None
        asyncio.get_running_loop().add_reader(sock, self._readable)

    @classmethod
    def pair(cls) -> "tuple[Parking, socket.socket]":
        """Our end, and the worker's."""
        ours, theirs = socket.socketpair()
        return cls(ours), theirs

    def order(self, on_parked: Callable[[], None]) -> None:
        """It is to park; `on_parked` is called once it has."""
        self.on_parked, self.ordered = on_parked, True
        with contextlib.suppress(OSError):  # it has just died: the news is on its way
            self._sock.send(ORDER)

    def assign(self, assignment: Assignment) -> None:
        """It has a rank again."""
        self.ordered = self.parked = self.able = False
        with contextlib.suppress(OSError):
            self._sock.send(msgspec.json.encode(assignment) + b"\n")

    def close(self) -> None:
        """It has died, or is to end if it is parked."""
        if self._sock.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._sock)
            self._sock.close()

    def _readable(self) -> None:
        try:
            data = self._sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._sock)
            return
        *lines, self._read = (self._read + data).split(b"\n")
        for line in lines:
            self._heard(_news.decode(line))

    def _heard(self, news: WorkerParking) -> None:
        match news.state:
            case "able":
                self.able, self.moves, self.why = True, news.moves, ""
            case "unable":
                self.able, self.why = False, news.why
            case "parked":
                self.parked = True
                self.on_parked()
