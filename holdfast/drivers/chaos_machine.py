"""A machine that has stopped, as others see it: its processes stand still, and nothing that arrives
there is acknowledged.

To stop the processes of a node is not enough: their kernel is ours, and goes on to acknowledge what
is sent to them. So a socket filter that takes nothing (`SO_ATTACH_FILTER`, socket(7)) is put on
both ends of each of its connections. The sockets are those of other processes, which lend them
(pidfd_getfd(2)) to whoever may trace them.
"""

import contextlib
import ctypes
import os
import signal
import socket
import struct
from collections.abc import Iterable, Iterator

import psutil

ATTACH_FILTER, DETACH_FILTER = 26, 27  # options of SOL_SOCKET
GETFD = 438  # the system call, on every processor
NOTHING = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0))  # return 0: no byte
PROGRAM = struct.pack("@HP", 1, ctypes.addressof(NOTHING))  # of one instruction
Ends = tuple[object, object]

_libc = ctypes.CDLL(None, use_errno=True)


class StoppedMachine:
    """The processes `here` stand still, and nothing passes between them and those `there`. Raises
    `OSError`, and then nothing is changed."""

    def __init__(self, here: Iterable[int], there: Iterable[int]) -> None:
        self._here = list(here)
        self._sockets: list[socket.socket] = []
        ours = dict(_connections(self._here))
        theirs = {(far, near): who for (near, far), who in _connections(there)}
        crossing = ours.keys() & theirs.keys()
        try:
            for ends in crossing:
                self._sockets += [_lent(*ours[ends]), _lent(*theirs[ends])]
            for found in self._sockets:
                found.setsockopt(socket.SOL_SOCKET, ATTACH_FILTER, PROGRAM)
        except OSError:
            self.go_on()
            raise
        self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._here:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def go_on(self) -> str:
        """It does, with what it has been sent."""
        for found in self._sockets:
            with contextlib.suppress(OSError):  # it has none
                found.setsockopt(socket.SOL_SOCKET, DETACH_FILTER, 0)
            found.close()
        self._sockets = []
        self._signal(signal.SIGCONT)
        return "the machine is resumed"


def _connections(pids: Iterable[int]) -> Iterator[tuple[Ends, tuple[int, int]]]:
    """Of these processes: both ends, and who holds it under which number."""
    for pid in pids:
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            for found in psutil.Process(pid).net_connections("tcp"):
                if found.raddr:
                    yield (found.laddr, found.raddr), (pid, found.fd)


def _lent(pid: int, number: int) -> socket.socket:
    """A socket of that process. Raises `OSError`."""
    process = os.pidfd_open(pid)
    try:
        found = _libc.syscall(GETFD, process, number, 0)
    finally:
        os.close(process)
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return socket.socket(fileno=found)
