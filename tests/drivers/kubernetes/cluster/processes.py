"""The processes of a container: real ones, with an end of all that they have started.

A container's first process is like its PID 1: when it ends, everything that it left behind is
killed. What belongs to a container is told by a variable in the environment, which children inherit
and cannot change for themselves.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.drivers.kubernetes.cluster.confinement import confine
from tests.warm import Warm

MARK = "FAKE_CONTAINER"
SHELL = 128


class Program(Warm):
    """`holdfast` in a pod: what takes the command line half a second takes this nothing."""

    module = "tests.drivers.kubernetes.cluster.pod_program"


class Container:
    """One life of a container. Created by `start`."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", mark: str, others: frozenset[str]
    ) -> None:
        self._process, self._mark = process, mark
        self._others = others  # that were there before it
        self._gone = asyncio.Event()
        self._empty = False  # nothing of it is left, so nothing can come of it any more
        self._watched = os.pidfd_open(process.pid)
        asyncio.get_running_loop().add_reader(self._watched, self._reap)

    @property
    def pid(self) -> int:
        """Of its first process."""
        return self._process.pid

    async def wait(self) -> int:
        """Its exit status once nothing of it is left; 128 + N if signal N ended it."""
        await self._gone.wait()
        code = self._process.wait()
        self.kill()
        return SHELL - code if code < 0 else code

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._watched)
        os.close(self._watched)
        self._process.wait()
        self._gone.set()

    def terminate(self) -> None:
        """SIGTERM for the first process."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL for all of it, until nothing is left."""
        if self._empty:
            return
        self._send(signal.SIGKILL)
        for _ in range(10):
            found = list(self._marked())
            if not found:
                self._empty = True
                return
            for pid in found:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def signal(self, number: int) -> None:
        """A signal for every process of it."""
        for pid in self._marked():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def _send(self, number: int) -> None:
        self._process.send_signal(number)

    def _marked(self) -> Iterator[int]:
        wanted = f"\0{MARK}={self._mark}\0".encode()
        for name in _processes() - self._others:
            with contextlib.suppress(OSError):
                with open(f"/proc/{name}/environ", "rb", buffering=0) as file:
                    environment = b"\0" + file.readall()
                if wanted in environment and _runs(Path(f"/proc/{name}")):
                    yield int(name)


def start(command: Sequence[str], env: Mapping[str, str], folder: Path, log: Path) -> Container:
    """Start a container whose output goes to `log`. Raises OSError if it cannot be started."""
    mark = uuid.uuid4().hex
    how: dict[str, Any] = {"env": {**env, MARK: mark}, "cwd": folder, "stdin": subprocess.DEVNULL}
    how["start_new_session"] = True
    others = _processes()
    with log.open("ab") as output:
        how |= {"stdout": output, "stderr": subprocess.STDOUT}
        if Path(command[0]).name == "holdfast":
            return Container(Program(command[1:], **how), mark, others)
        return Container(subprocess.Popen(command, preexec_fn=confine, **how), mark, others)


def _processes() -> frozenset[str]:
    return frozenset(name for name in os.listdir("/proc") if name.isdecimal())


def _runs(folder: Path) -> bool:
    state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
    return state not in ("Z", "X")
