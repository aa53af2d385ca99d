"""The agent's end of the socket on which a warm worker gets its rank; see `rank.py`.

The worker says where in its script it waits, and the agent answers with one line, or hangs up.
"""

import contextlib
import os
import socket

import msgspec

from holdfast.messages import Assignment


class RankSocket:
    """Open until the worker has its rank, or is not needed any more."""

    def __init__(self) -> None:
        """`theirs` is to be given to the worker."""
        ours, theirs = socket.socketpair()  # not a pipe: what is on it can be looked at
        ours.setblocking(False)
        self._fd, self.theirs = ours.detach(), theirs.detach()
        self._waits = ""

    @property
    def open(self) -> bool:
        """Whether nobody has hung up."""
        return self._fd >= 0

    def waits_at(self) -> str:
        """Where in its script the worker waits for its rank, as it says; empty if it does not."""
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            while self.open and (said := os.read(self._fd, 4096)):
                self._waits = said.decode(errors="replace").splitlines()[-1]
        return self._waits

    def tell(self, assignment: Assignment) -> None:
        """Give the worker its rank. One that has just died is nothing to complain of here."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._fd, msgspec.json.encode(assignment) + b"\n")
        self.hang_up()

    def hang_up(self) -> None:
        """A worker that still waits exits."""
        if self.open:
            self.waits_at()  # what is not read would be an error at the other end
            os.close(self._fd)
            self._fd = -1
