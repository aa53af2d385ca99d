"""Hearing of the end of a process when it begins, and not when the kernel is done with it.

A thread for each worker with a rank, and for the forkserver, waits for the lock that it holds as
long as it works (`end_lock`), and has the event loop look. Where there are no threads left, the
next look of the agent finds a worker's end, twenty times a second.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable

from holdfast.end_lock import EndLock


def watch_end(lock: EndLock, look: Callable[[], None]) -> None:
    """Have `look` called when who holds this begins to end, if it can be seen. Once is enough."""
    if lock.awaited or not lock.held:
        return
    lock.awaited = True
    waits = (lock, asyncio.get_running_loop(), look)
    with contextlib.suppress(RuntimeError):  # it cannot start a thread
        threading.Thread(target=_wait, args=waits, daemon=True).start()


def _wait(lock: EndLock, loop: asyncio.AbstractEventLoop, look: Callable[[], None]) -> None:
    lock.wait()
    with contextlib.suppress(RuntimeError):  # the agent has ended meanwhile
        loop.call_soon_threadsafe(look)
