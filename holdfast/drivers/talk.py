"""What a controller says: one line for whoever reads its log.

Whoever runs a job may listen, too: the listener belongs to the tasks that its job has started, so
that two jobs in one process do not hear each other.
"""

import sys
from collections.abc import Callable
from contextvars import ContextVar

LISTENER: ContextVar[Callable[[str], None] | None] = ContextVar("LISTENER", default=None)


def say(text: str) -> None:
    """Say something, at once."""
    say_aside(text)
    listener = LISTENER.get()
    if listener is not None:
        listener(text)


def say_aside(text: str) -> None:
    """The same for the log alone; for listeners that say something themselves."""
    print(f"holdfast: {text}", file=sys.stderr, flush=True)
