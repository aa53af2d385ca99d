"""What a controller says: one line for whoever reads its log.

Whoever runs a job may listen, too: the listener belongs to the tasks that its job has started, so
that two jobs in one process do not hear each other.
"""

import os
import stat
import sys
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from pathlib import Path

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


def talk_to_file(path: Path, descriptors: Iterable[int] = (1, 2)) -> None:
    """Send to this file what went to a terminal that is gone, or by a pipe to who was on it; what
    goes to a file (`> train.log`) goes on to that."""
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
    for descriptor in descriptors:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.dup2(fd, descriptor)
    os.close(fd)
