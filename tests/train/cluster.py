"""The agents' part, played by a test: shared memory, ranks, a fresh store per attempt.

Workers are real processes, forked from a server that has torch imported. When one of them dies the
others are killed, as the controller would order, and the next attempt starts on the same arenas; a
lost node gets empty ones.
"""

import json
import multiprocessing.connection
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import TCPStore

from holdfast.checkpoint.arena import Arena
from holdfast.checkpoint.storage_page import StoragePage
from holdfast.page import Page, Word
from tests.patience import PATIENCE_S
from tests.train import workload
from tests.train.forks import FORKS


@dataclass
class Attempt:
    """What one attempt did."""

    exit_codes: list[int | None]
    restored: list[int]  # the step each rank went on from
    pages: list[Page]


@dataclass
class Cluster:
    """`nodes` times `local` workers and what outlives them."""

    folder: Path
    nodes: int = 1
    local: int = 1
    env: dict[str, str] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)
    arenas: list[int] = field(default_factory=list)
    storage_pages: list[int] = field(default_factory=list)
    redo_until: int = 0
    pages: list[Page] = field(default_factory=list)  # of the attempt that runs

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.arenas = [Arena.create() for _ in range(self.world)]
        self.storage_pages = [StoragePage.create() for _ in range(self.world)]

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.nodes * self.local

    def run(self, fault: str = "") -> Attempt:
        """One attempt, until all workers ended or one died."""
        # no rank hosts the store, so it outlives every one of them
        store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        fds = [Page.create() for _ in range(self.world)]
        pages = self.pages = [Page(fd) for fd in fds]
        workers = [self._spawn(rank, fds[rank], store.port, fault) for rank in range(self.world)]
        try:
            _wait(workers)
        finally:
            _end(workers)
        restored = [page._ints[Word.RESTORED_STEP] for page in pages]
        del store
        attempt = Attempt([w.exitcode for w in workers], restored, pages)
        self.redo_until = max([self.redo_until, *(p._ints[Word.STEP] - 1 for p in pages)])
        self.attempts.append(attempt)
        for fd in fds:
            os.close(fd)
        return attempt

    def finish(self) -> Attempt:
        """A last attempt that must succeed."""
        attempt = self.run()
        assert attempt.exit_codes == [0] * self.world, self.story()
        return attempt

    def lose(self, *ranks: int) -> None:
        """These ranks' node is gone, its memory with it."""
        for rank in ranks:
            os.close(self.arenas[rank])
            self.arenas[rank] = Arena.create()
            os.close(self.storage_pages[rank])
            self.storage_pages[rank] = StoragePage.create()

    def close(self) -> None:
        """Let go of arenas and storage pages."""
        for fd in [*self.arenas, *self.storage_pages]:
            os.close(fd)

    def losses(self, rank: int = 0) -> list[str]:
        """The loss of each step, bit for bit; of repeated steps the last."""
        return [entry["loss"] for entry in self._steps(rank)]

    def batches(self, rank: int = 0) -> list[str]:
        """Digest of each step's batch; of repeated steps the last."""
        return [entry["batch"] for entry in self._steps(rank)]

    def final(self, rank: int = 0) -> str:
        """Digest of the parameters and buffers at the end."""
        return str([entry["final"] for entry in self.lines(rank) if "final" in entry][-1])

    def outcome(self) -> list[Any]:
        """Everything that must be equal with and without faults."""
        ranks = range(self.world)
        return [(self.losses(r), self.batches(r), self.final(r)) for r in ranks]

    def story(self) -> str:
        """The output of all workers, for messages of failed tests."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{log.name}:\n{log.read_text()}" for log in logs)

    def _steps(self, rank: int) -> list[dict[str, Any]]:
        by_step = {e["step"]: e for e in self.lines(rank) if "step" in e}
        return [by_step[step] for step in sorted(by_step)]

    def lines(self, rank: int) -> list[dict[str, Any]]:
        """What a rank wrote down, in order."""
        text = (self.folder / f"rank-{rank}.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def _spawn(self, rank: int, page: int, port: int, fault: str) -> BaseProcess:
        env = self._environment(rank, port, fault)
        log = self.folder / f"attempt-{env['HOLDFAST_ATTEMPT']}-rank-{rank}.log"
        handles = (page, self.arenas[rank], self.storage_pages[rank])
        worker = FORKS.Process(target=_work, args=(env, str(log), *map(_Shared, handles)))
        worker.start()
        return worker

    def _environment(self, rank: int, port: int, fault: str) -> dict[str, str]:
        number = len(self.attempts) + 1
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank % self.local),
            "WORLD_SIZE": str(self.world),
            "LOCAL_WORLD_SIZE": str(self.local),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "HOLDFAST_ATTEMPT": str(number),
            "HOLDFAST_REDO_UNTIL": str(self.redo_until),
            "HOLDFAST_SNAPSHOT_EVERY": "1",
            "RESULTS": str(self.folder),
            "FAULT": fault,
            **self.env,
        }


class _Shared:
    """A file descriptor that travels to a child."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Any, ...]:
        return (_received, (DupFd(self.fd),))


def _received(handle: Any) -> int:
    fd: int = handle.detach()
    return fd


def _work(env: dict[str, str], log: str, page: int, arena: int, storage_page: int) -> None:
    os.environ.update(env)
    os.environ["HOLDFAST_PAGE_FD"], os.environ["HOLDFAST_ARENA_FD"] = str(page), str(arena)
    os.environ["HOLDFAST_STORAGE_PAGE_FD"] = str(storage_page)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    workload.STEPS = int(env.get("STEPS", workload.STEPS))
    workload.main()
    sys.stdout.flush()


def _wait(workers: list[BaseProcess]) -> None:
    end = time.monotonic() + PATIENCE_S
    while any(w.exitcode is None for w in workers) and not any(w.exitcode for w in workers):
        assert time.monotonic() < end, "workers hang"
        multiprocessing.connection.wait([w.sentinel for w in _alive(workers)], 1.0)


def _end(workers: list[BaseProcess]) -> None:
    for worker in _alive(workers):
        worker.kill()
    for worker in workers:
        worker.join()


def _alive(workers: Iterable[BaseProcess]) -> list[BaseProcess]:
    return [worker for worker in workers if worker.exitcode is None]
