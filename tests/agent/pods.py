"""A pod as its agent sees it: environment, files, standard output; started as the kubelet does.

All pods run on this machine, so each has a loopback address of its own, like those of a cluster.
"""

import contextlib
import os
import random
import secrets
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from holdfast.spec import Job
from holdfast.spec.load import to_yaml
from tests.agent.controller_stub import StubController, until
from tests.patience import PATIENCE_S
from tests.warm import Warm

PORT = 7070
AGENT = (sys.executable, "-m", "holdfast.cli", "agent")
PY_SPY = Path(sys.executable).with_name("py-spy")
UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc")
_dice = random.SystemRandom()  # suites that run at the same time share nothing


class Pod:
    """One pod; its container may be started again and again."""

    def __init__(self, folder: Path, controller: StubController, job: Job) -> None:
        self.folder = folder
        # A node kills what carries its name; all processes of the suite share what is imported.
        self.node = f"7b1c6c1e-0000-4000-8000-{secrets.token_hex(6)}"
        self.address = (
            f"127.{_dice.randrange(1, 255)}.{_dice.randrange(256)}.{_dice.randrange(2, 255)}"
        )
        self.home = folder / "pod"
        self.home.mkdir()
        (folder / "job.yaml").write_text(to_yaml(job))
        self.told = {
            "HOLDFAST_JOB": job.name,
            "HOLDFAST_ENGINE": "job",
            "HOLDFAST_ROLE": "node",
            "HOLDFAST_CONTROLLER": f"localhost:{controller.port}",
            "HOLDFAST_TOKEN_FILE": str(folder / "token"),
            "HOLDFAST_NODE": self.node,
            "HOLDFAST_POD": "test-0",
            "HOLDFAST_MACHINE": "m",
            "HOLDFAST_ADDRESS": self.address,
            "HOLDFAST_JOB_FILE": str(folder / "job.yaml"),
            "HOLDFAST_HOME": str(self.home),
        }
        self.first_process = False  # with a process namespace of its own
        self.fresh = False  # an interpreter of its own
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str, **told: str | None) -> None:
        """Start the container. What is None in `told` is not told."""
        given = {**os.environ, **self.told, **told}
        how: dict[str, Any] = {
            "cwd": self.folder,
            "env": {name: value for name, value in given.items() if value is not None},
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "start_new_session": True,
        }
        self.process = (
            subprocess.Popen([*(UNSHARE if self.first_process else ()), *AGENT, *options], **how)
            if self.first_process or self.fresh
            else Warm(["agent", *options], **how)
        )

    def can_unshare(self) -> bool:
        """Whether a process namespace can be made here."""
        return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0

    @property
    def pid(self) -> int:
        """Of the agent."""
        assert self.process is not None
        (pid,) = children(self.process.pid) if self.first_process else (self.process.pid,)
        return pid

    def children(self) -> list[int]:
        """Of the agent, dead ones that nobody has reaped included."""
        return children(self.pid)

    def signal(self, number: signal.Signals) -> None:
        """Send it to the agent."""
        os.kill(self.pid, number)

    def ended(self) -> int:
        """Wait for the end without reading anything; the exit status. Who does not end is shown
        with where it stands."""
        assert self.process is not None
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            for one in [psutil.Process(self.pid), *psutil.Process(self.pid).children(True)]:
                subprocess.run([PY_SPY, "dump", "--pid", str(one.pid)], check=False)
            raise

    def read(self) -> tuple[str, str]:
        """Standard output and error up to the end."""
        assert self.process is not None
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return out.decode(), err.decode()

    def output(self) -> Iterator[bytes]:
        """Standard output, as it comes."""
        assert self.process is not None and self.process.stdout is not None
        fd = self.process.stdout.fileno()
        return iter(lambda: os.read(fd, 1 << 16), b"")

    def get(self, path: str) -> tuple[int, str]:
        """What the agent answers to a probe; status 0 if nobody listens."""
        url = f"http://{self.address}:{PORT}{path}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def answers(self, path: str, status: int) -> None:
        """Wait until a probe has this status."""
        until(lambda: self.get(path)[0] == status, f"{path} answers {status}")

    def log(self, rank: int = 0, attempt: int = 1) -> str:
        """The file of a rank."""
        logs = self.home / "jobs" / "test" / "logs"
        path = logs / f"attempt-{attempt}" / f"rank-{rank}.log"
        return path.read_text() if path.exists() else ""

    def end(self) -> None:
        """Kill it, if it still runs."""
        if self.process is not None:
            if self.process.poll() is None:
                with contextlib.suppress(OSError, ValueError):
                    os.kill(self.pid, signal.SIGKILL)
                self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired, ValueError):
                print(
                    self.process.communicate(timeout=PATIENCE_S)[1].decode()
                )  # for who looks into it


def children(pid: int) -> list[int]:
    """Children of a process, zombies included."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextlib.contextmanager
def pod(folder: Path, source: str, **job: Any) -> Iterator[tuple[StubController, Pod]]:
    """A stub controller and a pod that is not started yet, for a job that runs `source`."""
    (folder / "script.py").write_text(source)
    plain: dict[str, Any] = {"name": "test", "script": "script.py", "workers_per_node": 1}
    plain |= {"framework": "command", "image": {"name": "i"}}
    controller = StubController(folder)
    controller.open()
    found = Pod(folder, controller, Job.model_validate({**plain, **job}))
    try:
        yield controller, found
    finally:
        found.end()
        controller.close()
