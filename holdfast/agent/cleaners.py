"""Processes that remove what others leave behind: named shared memory, semaphores, folders.

Python's resource tracker (and loky's) and PyTorch's manager of shared memory end by themselves once
all that used them are gone, and remove what those did not. Killed with the others, they leave it in
/dev/shm for good: each attempt would take as much memory again. So whoever kills a worker lets them
be for a while.
"""

import re
import time
from collections.abc import Iterable
from pathlib import Path

GRACE_S = 5.0  # what takes longer is killed like everything else; gigabytes are gone in a second
_TRACKER = re.compile(rb"\0-c\0from [\w.]*\bresource_tracker import main\b")
_MANAGER = b"torch_shm_manager"


def among(pids: Iterable[int]) -> set[int]:
    """Those of them that are one."""
    return {pid for pid in pids if _is_one(pid)}


def spared(pids: Iterable[int], since: float) -> set[int]:
    """Those of them to be let be: cleaners, for a while from `since` (monotonic) on."""
    return among(pids) if time.monotonic() < since + GRACE_S else set()


def _is_one(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    program = words.partition(b"\0")[0].rpartition(b"/")[2]
    return program == _MANAGER or _TRACKER.search(words) is not None
