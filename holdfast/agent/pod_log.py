"""What a pod says on its standard output: the lines of its workers, each with its rank.

`kubectl logs` and whatever collects logs reads there, and may stop reading at any time. So nothing
here ever waits: what cannot be written now is held, up to a limit, and what is beyond that is
dropped and counted. The files of the ranks have all of it. For the same reason the agent's own
words, on standard error, go to an open file of its own that does not block.

Of a line that is written over the newest state is said now and then, and the last at its end.
"""

import asyncio
import os
import time

from holdfast.overwritten import STATE_S, on_top

HELD_BYTES = 1024 * 1024
WRITE_BYTES = 64 * 1024
LINE_BYTES = 16 * 1024  # longer lines are cut; container runtimes cut there, too


def unblock(fd: int) -> None:
    """Put our own, non-blocking open file of the same thing in the place of this descriptor.

    Only ours: whoever started us may share the old one and rely on its blocking.
    """
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
        own = os.open(f"/proc/self/fd/{fd}", flags)
    except OSError:  # a socket, or a pipe that belongs to another user
        os.set_blocking(fd, False)
        return
    os.dup2(own, fd)
    os.close(own)


class PodLog:
    """A descriptor that does not block, and what waits for it in `_held`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._held = bytearray()
        self._lost = 0
        self._gone = False

    def write(self, lines: bytes) -> None:
        """Whole lines: now, soon, or never."""
        if self._gone or len(self._held) + len(lines) > HELD_BYTES:
            self._lost += len(lines)
            return
        if self._lost:
            self._held += f"[holdfast: {self._lost} bytes are not shown here]\n".encode()
            self._lost = 0
        self._held += lines
        self._flush()

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be written."""
        return not self._held

    def _flush(self) -> None:
        try:
            while self._held:
                del self._held[: os.write(self._fd, self._held[:WRITE_BYTES])]
        except BlockingIOError:
            asyncio.get_running_loop().add_writer(self._fd, self._flush)
            return
        except OSError:  # nobody will ever read it
            self._gone = True
            self._held.clear()
        asyncio.get_running_loop().remove_writer(self._fd)


class RankedLines:
    """Output of one rank on its way to the standard output, line by line."""

    def __init__(self, pod_log: PodLog, rank: int) -> None:
        self._pod_log = pod_log
        self._prefix = f"[rank {rank}] ".encode()
        self._rest = b""  # of a line that has not ended
        self._told_at = time.monotonic()

    def write(self, data: bytes) -> None:
        """More output."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = on_top(rest)
        while len(self._rest) > LINE_BYTES:
            lines.append(self._rest[:LINE_BYTES])
            self._rest = self._rest[LINE_BYTES:]
        now = time.monotonic()
        if not lines and b"\r" in self._rest and now - self._told_at >= STATE_S:
            lines.append(self._rest)
        if lines:
            self._told_at = now
            self._pod_log.write(b"".join(map(self._line, lines)))

    def _line(self, line: bytes) -> bytes:
        return self._prefix + on_top(line).strip(b"\r") + b"\n"

    def close(self) -> None:
        """No more output will come."""
        if self._rest:
            self.write(b"\n")
