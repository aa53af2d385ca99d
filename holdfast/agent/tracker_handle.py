"""The process that sends this job's metrics to experiment trackers (`holdfast.tracking`).

There is one where rank 0 has completed a step, and nowhere else. When rank 0 goes, the process
hears the end of its standard input, sends what is left and ends; so it does if the agent dies, for
which it is nothing that is killed with a lost node.
Whatever becomes of it, the workers do not notice.
"""

import asyncio
import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.agent.notes import note
from holdfast.agent.storage.protocol import DurablePlace
from holdfast.checkpoint.tiers import Tier
from holdfast.spec import Job

if TYPE_CHECKING:
    from holdfast.agent.node_attempt import NodeAttempt

NODE = "HOLDFAST_NODE"
LOOK_S = 0.05
AGAIN_S = 30.0  # before one that died is followed by another
FINISH_S = 25.0  # for the last one to send what is left; a little more than it takes itself


class TrackerHandle:
    """At most one such process."""

    def __init__(
        self,
        job: Job,
        folder: Path,
        places: tuple[DurablePlace, ...],
        environment: Mapping[str, str],
    ) -> None:
        self._job, self._folder, self._environment = job, folder, environment
        shared = [place.where for place in places if place.tier is Tier.SHARED]
        self._files = shared[0] if shared else str(folder)
        self._process: subprocess.Popen[bytes] | None = None
        self._begin_at = 0.0
        self._ending: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> set[int]:
        """Of those that live."""
        living = [*self._ending, *([self._process] if self._process is not None else [])]
        return {one.pid for one in living if one.poll() is None}

    def look(self, attempt: "NodeAttempt | None", records_count: int) -> None:
        """Start it once rank 0 has told of a step here, end it once rank 0 is elsewhere."""
        first = attempt is not None and attempt.order.node_rank == 0  # has rank 0
        if self._process is not None and self._process.poll() is not None:
            note(f"agent: tracking exited with status {self._process.returncode}; retrying later")
            self._process, self._begin_at = None, time.monotonic() + AGAIN_S
        due = self._process is None and time.monotonic() >= self._begin_at
        if first and records_count and due:
            self._start()
        elif attempt is not None and not first:
            self._let_end()

    async def finish(self) -> None:
        """Let it send what is left, within a bound."""
        self._let_end()
        deadline = time.monotonic() + FINISH_S
        while self.pids and time.monotonic() < deadline:
            await asyncio.sleep(LOOK_S)
        for pid in self.pids:  # its package does not return; what is not sent is in the file
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    def _start(self) -> None:
        run = hashlib.sha256((self._folder / "token").read_bytes()).hexdigest()[:12]
        words = [str(self._folder), self._files, self._job.name, run, *self._job.track]
        # Without the name of the node: who kills all that is left of a lost one would take what a
        # package had not sent yet. It ends by itself, within a bound.
        own = {name: value for name, value in self._environment.items() if name != NODE}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "holdfast.tracking", *words],
                env=own,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,  # packages greet there; what goes wrong is on stderr
                process_group=0,
            )
        except OSError as error:
            note(f"agent: tracking cannot be started: {error}")
            self._begin_at = time.monotonic() + AGAIN_S

    def _let_end(self) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._ending = [one for one in self._ending if one.poll() is None] + [self._process]
        self._process = None
