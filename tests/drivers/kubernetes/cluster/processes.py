"""The processes of a container: real ones, with an end of all that they have started.

A container's first process is like its PID 1: when it ends, everything that it left behind is
killed. What belongs to a container is told by a variable in the environment, which children inherit
and cannot change for themselves.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

MARK = "FAKE_CONTAINER"
PR_SET_PDEATHSIG = 1
PR_CAPBSET_DROP = 24
OVERRIDES = (1, 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
SHELL = 128
_libc = ctypes.CDLL(None)


class Container:
    """One life of a container. Created by `start`."""

    def __init__(self, process: asyncio.subprocess.Process, mark: str) -> None:
        self._process, self._mark = process, mark

    @property
    def pid(self) -> int:
        """Of its first process."""
        return self._process.pid

    async def wait(self) -> int:
        """Its exit status once nothing of it is left; 128 + N if signal N ended it."""
        code = await self._process.wait()
        self.kill()
        return SHELL - code if code < 0 else code

    def terminate(self) -> None:
        """SIGTERM for the first process."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL for all of it, until nothing is left."""
        self._send(signal.SIGKILL)
        for _ in range(10):
            found = list(_marked(self._mark))
            if not found:
                return
            for pid in found:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def signal(self, number: int) -> None:
        """A signal for every process of it."""
        for pid in _marked(self._mark):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def _send(self, number: int) -> None:
        """Not by `send_signal`, which may reap the process behind the back of asyncio."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)


async def start(
    command: Sequence[str], env: Mapping[str, str], folder: Path, log: Path
) -> Container:
    """Start a container whose output goes to `log`. Raises OSError if it cannot be started."""
    mark = uuid.uuid4().hex
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *command,
            env={**env, MARK: mark},
            cwd=folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    return Container(process, mark)


def _die_with_parent() -> None:
    """And without root's right to read every file: modes count as they do in a container."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for capability in OVERRIDES:
        _libc.prctl(PR_CAPBSET_DROP, capability)


def _marked(mark: str) -> Iterator[int]:
    wanted = f"{MARK}={mark}".encode()
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                environment = Path(entry.path, "environ").read_bytes()
                if wanted in environment.split(b"\0") and _runs(Path(entry.path)):
                    yield int(entry.name)


def _runs(folder: Path) -> bool:
    state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
    return state not in ("Z", "X")
