"""How the end of a node is carried out: its workers, everything else below it, the last words."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable

from holdfast.agent.controller_connection import ControllerConnection
from holdfast.agent.node_attempt import NodeAttempt
from holdfast.agent.node_processes import NodeProcesses
from holdfast.agent.signals import kill, terminate
from holdfast.agent.stray_processes import end_strays, kill_carriers
from holdfast.events import NodeLeft

GOODBYE_S = 1.0
CLOSE_S = 2.0


async def end_workers(run: NodeAttempt | None, supply: NodeProcesses, grace_s: float) -> None:
    """SIGTERM to every worker, SIGKILL after the grace time."""
    if run is not None:
        terminate(run, supply, time.monotonic())
    sig = signal.SIGTERM if grace_s > 0 else signal.SIGKILL
    for worker in supply.workers.warm.values():
        supply.signal(worker, sig)
    await until(lambda: not supply.workers.table, grace_s)
    if run is not None:
        kill(run, supply)
    for worker in supply.workers.table.values():
        supply.signal(worker, signal.SIGKILL)
    await until(lambda: not supply.workers.table, CLOSE_S)


async def end_processes(supply: NodeProcesses, node: str) -> None:
    """The forkserver, the storage process, and whatever workers have left behind."""
    supply.close()
    if not await until(lambda: supply.closed, CLOSE_S):
        supply.kill()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            await end_strays(frozenset)
    kill_carriers(node)


async def say_goodbye(link: ControllerConnection, node: str, *, dismissed: bool) -> None:
    """Tell the controller that the node has left, and wait a moment until it knows.

    A controller that has dismissed the node knows already, and may not listen any more.
    """
    link.fact(NodeLeft(node=node))
    if dismissed:
        await until(lambda: link.all_sent or not link.connected, GOODBYE_S)
    elif link.connected:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await link.flush()


async def until(condition: Callable[[], bool], deadline_s: float) -> bool:
    """Wait for the condition; whether it has come true in time."""
    end = time.monotonic() + deadline_s
    while not condition() and time.monotonic() < end:
        await asyncio.sleep(0.005)
    return condition()
