"""The socket on which a worker whose attempt is broken waits for the next one, in its process.

The worker says whether it can be kept. The agent orders it to park, which a thread hears while the
script trains. It says that it is parked once it does nothing of the attempt any more, and then
waits for a line with its rank, as a warm worker does; end of file: it is not needed.
"""

import _thread
import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping, MutableMapping

import msgspec

from holdfast import rank
from holdfast.checkpoint.arena import Arena
from holdfast.messages import Assignment, WorkerParking

VARIABLE = "HOLDFAST_PARKING_FD"
PATIENCE = "HOLDFAST_PARKING_PATIENCE_S"
MOVES = "HOLDFAST_PARKING_MOVES"
ORDER = b"park\n"
LOOK = b"look "  # and how many workers share the node


def warm_start(arena: Arena | None, environ: Mapping[str, str]) -> rank.Meanwhile | None:
    """What a warm worker does while it waits for its rank: once the worker before it is dead, the
    checksums of what that one has left are taken. Most of a restart's reading is done then."""
    fd = environ.get(VARIABLE)
    if fd is None or arena is None:
        return None

    def look() -> None:
        with socket.socket(fileno=os.dup(int(fd))) as sock:
            line = _line_on(sock)
        if line.startswith(LOOK):
            arena.look_ahead(max(1, len(os.sched_getaffinity(0)) // int(line[len(LOOK) :])))

    return rank.Meanwhile(int(fd), look)


def _line_on(sock: socket.socket) -> bytes:
    """One line and nothing of the next; empty where nobody is there any more."""
    line = b""
    while not line.endswith(b"\n"):
        more = sock.recv(1)
        if not more:
            return b""
        line += more
    return line


class ParkingPlace:
    """Our end of the socket."""

    def __init__(self, sock: socket.socket, patience_s: float) -> None:
        """`patience_s` is how long a worker whose peers are gone waits to be told so."""
        self._sock = sock
        self._patience_s = patience_s
        self._ordered = threading.Event()
        self.on_order: Callable[[], None] = lambda: None
        """Called in a thread of its own."""

    @classmethod
    def of(cls, environ: MutableMapping[str, str]) -> "ParkingPlace | None":
        """That of this process; None where workers are replaced."""
        fd = environ.pop(VARIABLE, None)  # children of the script must not answer
        if fd is None or PATIENCE not in environ:  # the job does not keep workers
            return None
        sock = socket.socket(fileno=int(fd))
        sock.setblocking(True)
        return cls(sock, float(environ[PATIENCE]))

    def able(self, *, moves: bool) -> None:
        """From now on it can be ordered to park. `moves`: also to take another rank."""
        self._ordered.clear()
        self._say(WorkerParking(state="able", moves=moves))
        _thread.start_new_thread(self._listen, ())

    def unable(self, why: str = "") -> None:
        """It cannot; `why`, if that is not only because its loop is over."""
        self._say(WorkerParking(state="unable", why=why))

    def _listen(self) -> None:
        with contextlib.suppress(OSError):  # the agent has gone, and takes this process along
            while line := _line_on(self._sock):
                if line == ORDER:  # what came while it waited for its rank is over
                    self.on_order()
                    self._ordered.set()
                    return

    def await_order(self) -> bool:
        """Whether it was ordered to park, waiting for that for a while."""
        return self._ordered.wait(self._patience_s)

    def park(self) -> None:
        """Return with the next attempt in the environment; without one the process ends."""
        sys.stdout.flush()
        sys.stderr.flush()
        self._say(WorkerParking(state="parked"))
        line = b""
        while not line.endswith(b"\n"):
            more = self._sock.recv(rank.LINE_BYTES)
            if not more:
                os._exit(0)
            line += more
        env = msgspec.json.decode(line, type=Assignment).env
        for name in rank.VARIABLES - env.keys():
            os.environ.pop(name, None)
        os.environ.update(env)

    def _say(self, news: WorkerParking) -> None:
        with contextlib.suppress(OSError):
            self._sock.sendall(msgspec.json.encode(news) + b"\n")
