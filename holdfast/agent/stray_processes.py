"""Ending what workers left behind: daemons, and children that moved to a group of their own.

The agent adopts every orphan below it, so whatever outlives its worker becomes a child of ours and
is found without looking at the whole machine. Only at the very end is the environment of every
process searched as well, for what escaped even that.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable

from holdfast.agent import cleaners, processes
from holdfast.agent.notes import note

PAUSE_S = 0.005
SAY_AFTER_S = 10.0


async def end_strays(spared: Callable[[], frozenset[int]]) -> None:
    """Kill every process below us until none is left, but `spared()` and what is below those.
    Cleaners are waited for."""
    began = time.monotonic()
    said_at = began + SAY_AFTER_S
    while processes.has_stray_children(spared()):
        left = processes.descendants(os.getpid(), spared())
        groups = set(map(processes.group_of, left))
        kept = set[int]().union(*map(processes.tree, spared()))
        groups.difference_update(map(processes.group_of, kept))
        processes.kill_all(left, cleaners.spared(left, began), groups)
        if left and time.monotonic() > said_at:
            note(f"agent: processes {sorted(left)} do not exit")
            said_at += SAY_AFTER_S
        await asyncio.sleep(PAUSE_S)


def kill_carriers(node: str) -> set[int]:
    """Kill every other process that carries this node's id in its environment; those found. A
    parent that does is the container's first process, and ends with us."""
    found = processes.carrying("HOLDFAST_NODE", node) - {os.getpid(), os.getppid()}
    for pid in found:
        processes.signal_one(pid, signal.SIGKILL)
    return found
