"""The output of one worker: from its pipe into its log file, whatever happens to the disk.

The agent reads the pipe a bounded amount at a time, so that a worker that prints without end slows
down itself and nobody else. The file is rotated at a size, one older part is kept. When the disk is
full, output is dropped and counted, and the log says so once there is room again. Until a warm
worker has a rank its newest output waits in memory.
"""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from holdfast.files import part_before
from holdfast.log_times import LogTimes

CHUNK_BYTES = 64 * 1024
CHUNKS_AT_ONCE = 4
DRAIN_BYTES = 4 * 1024 * 1024
TAIL_BYTES = 64 * 1024
HELD_BYTES = 1024 * 1024
RETRY_S = 0.25


class Sink(Protocol):
    """Where output goes. Never raises and never waits."""

    def write(self, data: bytes) -> None:
        """More of it."""

    def close(self) -> None:
        """That was all."""


class LogFile:
    """An append-only file that rotates at `max_bytes` and survives a full disk."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._times = LogTimes(path)
        self._max_bytes = max_bytes
        self._fd = -1
        self._size = 0
        self._lost = 0
        self._why = ""
        self._retry_at = 0.0

    def write(self, data: bytes) -> None:
        """Append, or count as lost; never raises because of the disk."""
        while data:
            if self._lost and time.monotonic() < self._retry_at:
                self._lost += len(data)
                return
            try:
                data = data[self._write_some(data) :]
            except OSError as error:
                self._lose(len(data), error)
                return

    def close(self) -> None:
        """Say what was lost, if there is room now, and close."""
        try:
            self._open()
            self._own_up()
        except OSError as error:
            self._lose(0, error)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write_some(self, data: bytes) -> int:
        self._open()
        self._own_up()
        room = self._max_bytes - self._size
        if len(data) > room:
            end = data.rfind(b"\n", 0, max(room, 0)) + 1
            if end == 0 and self._size > 0:
                self._rotate()
                return 0
            data = data[: end or self._max_bytes]
        self._times.note(time.time(), self._size)
        written = os.write(self._fd, data)
        self._size += written
        return written

    def _open(self) -> None:
        if self._fd >= 0:
            return
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(self._path, flags, 0o600)
        self._size = os.fstat(self._fd).st_size

    def _rotate(self) -> None:
        older = part_before(self._path)
        os.replace(self._path, older)
        self._times.rotate(older)
        os.close(self._fd)
        self._fd = -1

    def _own_up(self) -> None:
        if self._lost:
            text = f"[holdfast: {self._lost} bytes of output were lost here: {self._why}]\n"
            self._size += os.write(self._fd, text.encode())
            self._lost = 0

    def _lose(self, count: int, error: OSError) -> None:
        self._lost += count
        self._why = error.strerror or str(error)
        self._retry_at = time.monotonic() + RETRY_S


class Output:
    """The reading end of a worker's pipe, and where it goes."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._sinks: tuple[Sink, ...] = ()
        self._held = bytearray()
        self.on_first: Callable[[], None] | None = None  # output that goes somewhere
        self.tail, self.count = b"", 0  # the newest bytes, and how many there were
        asyncio.get_running_loop().add_reader(fd, self._readable)

    def send_to(self, *sinks: Sink) -> None:
        """From now on to these; what was held in memory goes first."""
        self._sinks = sinks
        held = bytes(self._held)
        self._held.clear()
        for sink in sinks:
            sink.write(held)

    def begin_again(self) -> None:
        """The worker has said nothing since it was parked: what is in the pipe is of before."""
        self.catch_up()
        self.close_sinks()
        self._sinks, self.tail = (), b""

    def catch_up(self) -> None:
        """Take what is in the pipe now."""
        self._readable()

    def finish(self) -> None:
        """Take what is still in the pipe, then close; whoever holds the other end is not waited
        for."""
        left = DRAIN_BYTES
        while left > 0 and self._fd >= 0 and (got := self._read()):
            left -= got
        self._close()

    def close_sinks(self) -> None:
        """No more output will come."""
        for sink in self._sinks:
            sink.close()

    def _readable(self) -> None:
        for _ in range(CHUNKS_AT_ONCE):
            if self._fd < 0 or not self._read():
                return

    def _read(self) -> int:
        try:
            data = os.read(self._fd, CHUNK_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            self._close()
        self.add(data)
        return len(data)

    def add(self, data: bytes) -> None:
        """More output, from the pipe or of our own."""
        self.tail, self.count = (self.tail + data)[-TAIL_BYTES:], self.count + len(data)
        for sink in self._sinks:
            sink.write(data)
        if data and self._sinks and self.on_first is not None:
            told, self.on_first = self.on_first, None
            told()
        if not self._sinks:
            self._held += data
            del self._held[:-HELD_BYTES]

    def _close(self) -> None:
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
