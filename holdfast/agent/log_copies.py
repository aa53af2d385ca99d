"""All output of the workers in the job's shared folder, where it outlives the pod.

Every so often, and at the end, what is new in each log is appended to a file of the same name below
`logs/POD` there. A log that was rotated is read on under its old inode, so its parts come in order
into one file. A folder that does not answer holds up a thread and nothing else.
"""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from holdfast.agent.notes import note

EVERY_S = 15.0
LAST_S = 5.0  # at the end; the pod's grace time has room for it
CHUNK_BYTES = 1 << 20
OLDER = ".1"


class LogCopies:
    """Copies of the logs below one folder in another."""

    def __init__(self, logs: Path, target: Path) -> None:
        self._logs, self._target = logs, target
        self._read: dict[int, tuple[str, int]] = {}  # inode → name when last seen, bytes copied
        self._thread = ThreadPoolExecutor(1, "log-copies")
        self._broken = ""

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self._once()

    async def finish(self) -> None:
        """What is still missing, if it can be had in time."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._once(), LAST_S)

    async def _once(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self.copy)
        except OSError as error:
            if str(error) != self._broken:
                self._broken = str(error)
                note(f"agent: the logs cannot be copied to {self._target}: {error}")

    def copy(self) -> None:
        """Append what is new. Raises `OSError`."""
        found: dict[int, tuple[str, int]] = {}
        paths = sorted(self._logs.glob("attempt-*/rank-*.log*"), key=lambda p: _order(p.name))
        for path in paths:
            with suppress(FileNotFoundError), path.open("rb") as file:
                inode = path.stat().st_ino
                found[inode] = (path.name, self._append(file.fileno(), path, inode))
        self._read = found

    def _append(self, fd: int, path: Path, inode: int) -> int:
        """How much of it has been copied now."""
        name, done = self._read.get(inode, (path.name, 0))
        reused = name.endswith(OLDER) and not path.name.endswith(OLDER)
        if reused or os.fstat(fd).st_size < done:
            done = 0  # another file in the place of one that is gone
        target = self._target / path.parent.name / path.name.removesuffix(OLDER)
        while data := os.pread(fd, CHUNK_BYTES, done):
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("ab") as copy:
                copy.write(data)
            done += len(data)
            self._read[inode] = (path.name, done)  # also if the next one fails
        return done


def _order(name: str) -> tuple[str, bool]:
    """Of each rank the older part first."""
    return name.removesuffix(OLDER), not name.endswith(OLDER)
