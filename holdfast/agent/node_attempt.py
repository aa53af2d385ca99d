"""One attempt on one node: which workers it has, and what their deaths mean.

Whoever died before the order to stop came is news for the controller. Whoever died after it is
news only if our own signals do not explain the way it died: so a worker that failed by itself
while its peers were already being stopped can still be found to be the one that failed first.
"""

import asyncio
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from holdfast.agent import error_file
from holdfast.agent.processes import ProcessExit
from holdfast.agent.workers import Worker
from holdfast.diagnosis.logs import parse_traceback
from holdfast.diagnosis.mismatch import clue_in
from holdfast.events import LastEntered, Progress, WorkerError, WorkerExited
from holdfast.messages import Start


class NativeLook(NamedTuple):
    """Where a worker stood before it was ended, the innermost frame first: once that is read."""

    worker: Worker
    stack: "asyncio.Task[tuple[str, ...]]"


@dataclass
class NodeAttempt:
    """The workers of one attempt by local rank; `gone` is set once all of them are dead
    or parked."""

    order: Start
    workers: dict[int, Worker] = field(default_factory=dict)
    announced: bool = False  # `WorkersStarted` was sent
    stop_at: float | None = None  # when the order to stop came
    kill_at: float | None = None  # when SIGKILL was sent
    able: int = 0  # workers that could have been kept then
    stopped: bool = False  # `WorkersStopped` was sent
    entered: dict[int, tuple[LastEntered, ...]] = field(default_factory=dict)  # when stopped
    native_look: NativeLook | None = None  # at one that hangs
    trains: bool = False  # every worker of ours has done its first step
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def alive(self) -> list[Worker]:
        """Workers that have neither died nor parked, nor gone on to another attempt since."""
        return [one for one in self.workers.values() if one.acts_in(self.order.attempt)]

    def of_rank(self, rank: int | None) -> Worker | None:
        """The worker that lives and has this rank, if one has."""
        ranks = {one.assignment.rank: one for one in self.alive if one.assignment is not None}
        return ranks.get(rank) if rank is not None else None

    @property
    def refusal(self) -> str:
        """Why a worker of its cannot be kept over attempts; empty if nothing speaks against it."""
        said = (
            one.sockets.parking.why
            for one in self.workers.values()
            if one.sockets.parking is not None
        )
        return next(filter(None, said), "")

    def look_gone(self) -> None:
        """One has died or parked."""
        if not self.alive:
            self.gone.set()

    @property
    def all_forked(self) -> bool:
        """Whether every worker has a process, or has already lost it."""
        return all(worker.pid or worker.death for worker in self.workers.values())

    def is_news(self, death: ProcessExit) -> bool:
        """Whether the controller has to hear of this death."""
        if self.stop_at is None or death.at < self.stop_at:
            return True
        by_term = death.exit_code in (0, 128 + signal.SIGTERM) or death.signal == signal.SIGTERM
        by_kill = death.exit_code == 128 + signal.SIGKILL or death.signal == signal.SIGKILL
        return not (by_term or (by_kill and self.kill_at is not None))

    def progress(self) -> Progress:
        """How far the furthest of its workers came."""
        now = time.monotonic()
        pages = [worker.page.progress(now) for worker in self.workers.values()]
        return max(pages, key=_step_of, default=Progress())


def exited(
    node: str,
    worker: Worker,
    death: ProcessExit,
    oom: str = "",
    mask: Callable[[str], str] = str,
    store: str = "",
) -> WorkerExited:
    """The fact that a worker with a rank has died, with what it left behind; `mask` takes secrets
    out of that. `store`: how that of its attempt had died, if it had."""
    assert worker.assignment is not None
    now = time.monotonic()
    return WorkerExited(
        node=node,
        attempt=worker.assignment.attempt,
        rank=worker.assignment.rank,
        exit_code=death.exit_code,
        signal=death.signal,
        ago_s=max(0.0, now - death.at),
        progress=worker.page.progress(now),
        error=_masked(error_of(worker, death), mask),
        log=worker.log,
        forkserver=worker.forkserver,
        store=store,
        oom=oom,
        broke=worker.page.first_broke(now),
        clue=mask(_clue(worker, death)),
    )


def _clue(worker: Worker, death: ProcessExit) -> str:
    """What native code has printed before it aborted, where that is known to tell why."""
    if death.signal != signal.SIGABRT:
        return ""
    return clue_in(worker.output.tail.decode(errors="replace"))


def error_of(worker: Worker, death: ProcessExit) -> WorkerError | None:
    """What the worker wrote into its page, or torch for it, else what its log looks like."""
    if death.exit_code == 0:
        return None
    if (error := worker.page.error() or error_file.error_in(worker.error_file)) is not None:
        return error
    if death.signal is not None:
        return None
    return parse_traceback(worker.output.tail.decode(errors="replace"))


def _masked(error: WorkerError | None, mask: Callable[[str], str]) -> WorkerError | None:
    if error is None:
        return None
    message, traceback = mask(error.message), mask(error.traceback)
    return msgspec.structs.replace(error, message=message, traceback=traceback)


def _step_of(progress: Progress) -> int:
    return -1 if progress.step is None else progress.step
