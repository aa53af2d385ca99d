"""Which limit of the shell or container a worker has reached, by its exception."""

import re

from holdfast.events import WorkerError

_LIMITS = {
    "file size limit (ulimit -f)": re.compile(r"\[Errno 27\]|File too large"),
    "open files limit (ulimit -n)": re.compile(r"\[Errno 24\]|Too many open files"),
    "limit of processes and threads (ulimit -u)": re.compile(r"can't start new thread"),
}


def limit_reached(error: WorkerError) -> str:
    """The limit, for people; empty if the exception says of none."""
    return next((which for which, says in _LIMITS.items() if says.search(error.message)), "")
