"""Standard error of a process that must not wait for a terminal: a thread writes it.

A terminal that was stopped (Ctrl-S, the copy mode of tmux) or a pager that shows its first page
takes nothing any more, and whoever writes to it waits. A controller that waited there would repair
nothing. So while it runs in the foreground, what anybody in its process prints to standard error
goes into a queue of bounded length; what finds no room there is counted, and the count is told.
"""

import contextlib
import io
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import TextIO

TEXTS_MAX = 10_000


class Aside(io.TextIOBase):
    """A text stream that never waits and never fails, in front of one that may."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._texts: deque[str] = deque(maxlen=TEXTS_MAX)
        self._left_out = 0
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._write_all, daemon=True)
        self._thread.start()

    # ── what a stream has ──

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._stream.errors

    def fileno(self) -> int:
        """That of the stream behind it."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Whether a person may look at it."""
        return self._stream.isatty()

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, text: str) -> int:
        """Have this written soon."""
        with self._changed:
            self._left_out += len(self._texts) == TEXTS_MAX
            self._texts.append(text)
            self._changed.notify()
        return len(text)

    def finish(self) -> None:
        """Wait until all of it is written, or cannot be."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    # ── the thread ──

    def _write_all(self) -> None:
        while text := self._next():
            with contextlib.suppress(OSError, ValueError):  # it has gone, or is full
                write_through(self._stream, text)

    def _next(self) -> str:
        """What has been written since; empty: that was all."""
        with self._changed:
            while not (self._texts or self._closing):
                self._changed.wait()
            lost = f"holdfast: {self._left_out} messages were dropped here\n"
            found = (lost if self._left_out else "") + "".join(self._texts)
            self._left_out = 0
            self._texts.clear()
            return found


def write_through(stream: TextIO, text: str) -> None:
    """Write this past the buffer of the stream: Python ends badly while a thread waits with its
    lock. Raises `OSError`, `ValueError`."""
    try:
        number = stream.fileno()
    except OSError:  # it has none
        stream.write(text)
        return
    stream.flush()
    left = memoryview(text.encode(stream.encoding, stream.errors or "backslashreplace"))
    while left:
        try:
            left = left[os.write(number, left) :]
        except BlockingIOError:  # another program has told this terminal not to wait
            select.select([], [number], [])


@contextlib.contextmanager
def standard_error_aside() -> Iterator[None]:
    """Nobody in this process waits for standard error, until the end of the block."""
    if sys.stderr is None:  # it was closed before this process began
        yield
        return
    before, sys.stderr = sys.stderr, Aside(sys.stderr)
    try:
        yield
    finally:
        aside, sys.stderr = sys.stderr, before
        aside.finish()
