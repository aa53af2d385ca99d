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
from holdfast.messages import Assignment, WorkerParking

VARIABLE = "HOLDFAST_PARKING_FD"
PATIENCE = "HOLDFAST_PARKING_PATIENCE_S"
IF_DECLARED = "HOLDFAST_PARKING_IF_DECLARED"
MOVES = "HOLDFAST_PARKING_MOVES"
ORDER = b"park\n"


def keeps_workers(environ: Mapping[str, str], *, declared: bool) -> bool:
    """Whether the job keeps workers of a script that has, or has not, `declared` that all which its
    steps change is put back."""
    return PATIENCE in environ and (declared or IF_DECLARED not in environ)


def declaration(environ: Mapping[str, str], *, declared: bool) -> bool | None:
    """What a script has `declared`, where its worker is kept because of that; None elsewhere."""
    return bool(declared) if PATIENCE in environ and IF_DECLARED in environ else None


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
    def of(cls, environ: MutableMapping[str, str], *, declared: bool) -> "ParkingPlace | None":
        """That of this process; None where workers are replaced. `declared`: by the script."""
        fd = environ.pop(VARIABLE, None)  # children of the script must not answer
        if fd is None or not keeps_workers(environ, declared=declared):
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
            if self._sock.recv(len(ORDER), socket.MSG_WAITALL) == ORDER:
                self.on_order()
                self._ordered.set()

    def await_order(self) -> bool:
        """Whether it was ordered to park, waiting for that for a while."""
        return self._ordered.wait(self._patience_s)

    def park(self, meanwhile: Callable[[], None]) -> None:
        """Return with the next attempt in the environment; without one the process ends.
        `meanwhile` is what can be done while others are waited for."""
        sys.stdout.flush()
        sys.stderr.flush()
        self._say(WorkerParking(state="parked"))
        meanwhile()
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
