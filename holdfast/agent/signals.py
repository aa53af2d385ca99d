"""The signals that end the workers of an attempt: SIGTERM, SIGKILL, and what follows if that hangs.

The times are noted in the attempt, because a death after our own signal is no news
(`node_attempt`).
"""

import asyncio
import signal
import time

from holdfast.agent.node_attempt import NodeAttempt
from holdfast.agent.node_processes import NodeProcesses
from holdfast.agent.notes import note
from holdfast.agent.processes import ending_of, ends_well
from holdfast.agent.workers import Worker
from holdfast.page import WorkerPhase

ENDING = WorkerPhase.ENDING.name.lower()
FORCE_AFTER_S = 3.0  # a forkserver that does not carry out SIGKILL in this time is killed itself


def terminate(
    attempt: NodeAttempt,
    processes: NodeProcesses,
    now: float,
    *,
    park_s: float | None = None,
    spared: Worker | None = None,
) -> None:
    """SIGTERM to all its workers but the `spared` one; only once. `park_s`, if not 0: those that
    can be kept park instead."""
    if attempt.stop_at is not None:
        return
    attempt.stop_at = now
    for worker in attempt.alive:
        if worker is spared:
            continue
        parking = worker.sockets.parking
        able = parking is not None and parking.able and worker.ends is None
        attempt.able += able
        if able and park_s and parking is not None:
            parking.order(attempt.look_gone)
        else:
            ask_to_end(worker, processes)


def ask_to_end(worker: Worker, processes: NodeProcesses) -> None:
    """SIGTERM to one."""
    worker.own_status = _own_status(worker)
    if not worker.raised_at:  # else it ends by itself, with what is to be done before
        processes.signal(worker, signal.SIGTERM)
    processes.signal(worker, signal.SIGCONT)  # one that was stopped would not see it


def _own_status(worker: Worker) -> int | None:
    """With which it ends by itself, if it does; None: it works, or has done all there was to do."""
    if worker.page.error() is not None:
        return 1
    seen = worker.page.report(0, worker.pid, time.monotonic())
    ends = seen.phase == ENDING or (bool(worker.pid) and ends_well(worker.pid))  # by os._exit(0)
    return 0 if ends and not seen.progress.finished else None


def kill(attempt: NodeAttempt, processes: NodeProcesses) -> None:
    """SIGKILL to all its workers that live."""
    _kill(attempt, attempt.alive, processes)


def kill_others(attempt: NodeAttempt, processes: NodeProcesses) -> None:
    """SIGKILL to those that live and were not told to park."""
    _kill(attempt, [one for one in attempt.alive if not one.is_to_park], processes)


def _kill(attempt: NodeAttempt, workers: list[Worker], processes: NodeProcesses) -> None:
    if workers:
        attempt.kill_at = time.monotonic()
        loop = asyncio.get_running_loop()
        loop.call_later(FORCE_AFTER_S, _force, attempt, workers, processes)
    for worker in workers:
        processes.signal(worker, signal.SIGKILL)


def _force(attempt: NodeAttempt, killed: list[Worker], processes: NodeProcesses) -> None:
    """Workers are still there, and not because the kernel takes them apart: the forkserver itself
    must hang."""
    left = [worker for worker in attempt.alive if worker in killed]
    if any(ending_of(worker.pid) is None for worker in left) and processes.ready:
        note("agent: workers survived SIGKILL; killing their forkserver")
        processes.kill()
