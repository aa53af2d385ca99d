"""How the end of a node is carried out: its workers, everything else below it, the last words."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable

from holdfast.agent import cleaners, node_memory
from holdfast.agent.controller_connection import ControllerConnection
from holdfast.agent.node_attempt import NodeAttempt
from holdfast.agent.node_end import NodeEnd
from holdfast.agent.node_processes import NodeProcesses
from holdfast.agent.signals import kill, terminate
from holdfast.agent.stray_processes import end_strays, kill_carriers
from holdfast.events import NodeLeft

GOODBYE_S = 1.0
CLOSE_S = 2.0


async def end_workers(run: NodeAttempt | None, processes: NodeProcesses, grace_s: float) -> None:
    """SIGTERM to every worker, SIGKILL after the grace time."""
    if run is not None:
        terminate(run, processes, time.monotonic())
    sig = signal.SIGTERM if grace_s > 0 else signal.SIGKILL
    processes.workers.dismiss_parked()
    for worker in processes.workers.warm.values():
        processes.signal(worker, sig)
    await until(lambda: not processes.workers.table, grace_s)
    if run is not None:
        kill(run, processes)
    for worker in processes.workers.table.values():
        processes.signal(worker, signal.SIGKILL)
    await until(lambda: not processes.workers.table, CLOSE_S)


async def end_processes(processes: NodeProcesses, node: str) -> None:
    """The forkserver, the storage process, and whatever workers have left behind."""
    processes.close()
    if not await until(lambda: processes.closed, CLOSE_S):
        processes.kill()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(cleaners.GRACE_S + CLOSE_S):
            await end_strays(frozenset)
    kill_carriers(node)
    node_memory.forget(node)


async def say_goodbye(controller: ControllerConnection, node: str, end: NodeEnd) -> None:
    """Tell the controller that the node has left, and wait a moment until it knows.

    A controller that has dismissed the node knows already, and may not listen any more.
    """
    controller.fact(NodeLeft(node=node, failed=end.failed))
    if end.dismissed:
        await until(lambda: controller.all_sent or not controller.connected, GOODBYE_S)
    elif controller.connected:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await controller.flush()


async def until(condition: Callable[[], bool], deadline_s: float) -> bool:
    """Wait for the condition; whether it has come true in time."""
    end = time.monotonic() + deadline_s
    while not condition() and time.monotonic() < end:
        await asyncio.sleep(0.005)
    return condition()
