"""Processes for tests of the library. Their forkserver is itself forked from the warm server.

So torch, which takes seconds, is imported once for all that a test process starts.
"""

import multiprocessing
from collections.abc import Sequence
from multiprocessing import util
from typing import Any

from tests.warm import Script

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.train.preloaded"])
_started: list[Script] = []  # kept, so that nobody takes them for forgotten
_plain: Any = util.spawnv_passfds


def _spawn(path: Any, words: Sequence[str], passed: Sequence[int]) -> int:
    """A process of `multiprocessing`: the forkserver from the warm server, any other as ever."""
    if "multiprocessing.forkserver" not in words[-1]:
        pid: int = _plain(path, words, passed)
        return pid
    _started.append(Script([words[-1]], pass_fds=passed))
    return _started[-1].pid


util.spawnv_passfds = _spawn  # type: ignore[assignment]
