"""Tasks and callbacks of the agent's loop, none of which may fail unseen.

Half a node is worse than none: whatever fails that nobody awaits ends the node, loudly.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class AgentTasks:
    """The tasks that run; `on_failure` hears what went wrong in one of them, or in a callback."""

    def __init__(self, on_failure: Callable[[str], None]) -> None:
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[None]] = set()

    def watch_callbacks(self) -> None:
        """From now on hear of callbacks of the loop that fail, too."""
        asyncio.get_running_loop().set_exception_handler(self._on_exception)

    def start(self, work: Coroutine[object, object, None]) -> None:
        """Run this beside everything else."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def cancel(self) -> None:
        """End all that run."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "agent: a task failed", "exception": error, "task": task}
            )
            self._on_failure(f"{type(error).__name__}: {error}")

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        if "handle" in context:
            self._on_failure(f"internal error: {context.get('exception')!r}")
