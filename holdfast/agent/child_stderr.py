"""What a process of the agent's own says to its standard error: passed on to ours, its end kept.

A process that cannot start says why there, before it can say anything else.
"""

import asyncio
import contextlib
import os
import re

READ_BYTES = 1 << 16
KEPT_BYTES = 8 << 10
LINE_CHARS = 300
_A_PLACE = re.compile(r'\s*File "(.+)", line (\d+)')
_AN_ERROR = re.compile(r"[A-Za-z_][\w.]*: \S")  # as Python ends a traceback with it


class ChildStderr:
    """A pipe that is read in the agent's loop, until nobody has its other end any more."""

    def __init__(self) -> None:
        self._fd, self.theirs = os.pipe()
        os.set_blocking(self._fd, False)
        self._kept = b""

    def read(self) -> None:
        """From now on: the process has its end, and ours of that is closed."""
        os.close(self.theirs)
        asyncio.get_running_loop().add_reader(self._fd, self._pass_on)

    def _pass_on(self) -> None:
        while self._fd >= 0:
            try:
                data = os.read(self._fd, READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._close()
            self._kept = (self._kept + data)[-KEPT_BYTES:]
            with contextlib.suppress(OSError):  # a full disk loses the words and nothing else
                os.write(2, data)

    def last_words(self) -> str:
        """The error that it ended with and where it was raised, or else its last line; empty if it
        said nothing."""
        self._pass_on()
        lines = [line for line in self._kept.decode(errors="replace").splitlines() if line.strip()]
        ended = next((n for n, x in reversed([*enumerate(lines)]) if _AN_ERROR.match(x)), None)
        if ended is None:
            return (lines[-1] if lines else "").strip()[:LINE_CHARS]
        places = filter(None, map(_A_PLACE.match, reversed(lines[:ended])))
        where = next((f" ({place[1]}:{place[2]})" for place in places), "")
        return f"{lines[ended].strip()[:LINE_CHARS]}{where}"

    def _close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)
        self._fd = -1
