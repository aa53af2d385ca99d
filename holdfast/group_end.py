"""Destroys the process group of a script that ends without doing so.

A thread of gloo lets go of the tensors of its last collective whenever it comes to it. If the
interpreter has begun to end by then, waiting for its lock ends the thread, and with it the process
by SIGABRT ("terminate called without an active exception"): a worker that has done all its work
would count as crashed. Destroying the group ends gloo's threads first. Where somebody still has it,
as a model of DDP does, it does not, and they are waited for until they rest.

Either may wait for peers, which may be gone, so destroying has a thread of its own, and both have a
limit, after which the process ends as it would have. `threading` does not know of the thread.
"""

import _thread
import atexit
import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

LIMIT_S = 10.0
LOOK_S = 0.002  # between two looks, in which whoever waits for the interpreter's lock gets it
GLOO_THREAD = "pt_gloo_runloop"
TORCH = "torch.distributed"


def leave_at_exit(backends: tuple[str, ...] = ()) -> None:
    """At the end of this process: of these backends only, by default any."""
    leaving, gone, worker = _thread.allocate_lock(), _thread.allocate_lock(), os.getpid()
    leaving.acquire()
    gone.acquire()

    def destroy() -> None:
        leaving.acquire()
        with contextlib.suppress(Exception):  # peers may be gone: nothing left to say about it
            dist: Any = sys.modules[TORCH]
            dist.destroy_process_group()
        gone.release()

    def leave() -> None:
        dist: Any = sys.modules.get(TORCH)
        if os.getpid() != worker or dist is None or not dist.is_available():
            return
        if dist.is_initialized() and (not backends or dist.get_backend() in backends):
            leaving.release()
            gone.acquire(timeout=LIMIT_S)
        _wait_for_gloo()

    # started now, because a thread cannot be started any more while the interpreter ends
    _thread.start_new_thread(destroy, ())
    atexit.register(leave)


def _wait_for_gloo() -> None:
    """Until its threads sleep, and have done nothing since the previous look."""
    end, before = time.monotonic() + LIMIT_S, list[str]()
    while time.monotonic() < end and (now := _gloo_threads()) != before:
        before = now if all("sleeping" in one for one in now) else []
        time.sleep(LOOK_S)


def _gloo_threads() -> list[str]:
    """What each of them does, and how often it was switched to or away from; see
    proc_pid_status(5)."""
    found = []
    for task in Path("/proc/self/task").glob("*"):
        with contextlib.suppress(OSError):  # it has ended
            lines = (task / "status").read_text().splitlines()
            if lines[0].endswith(GLOO_THREAD):
                kept = ("State", "voluntary_ctxt", "nonvoluntary_ctxt")
                found.append("; ".join([task.name, *(x for x in lines if x.startswith(kept))]))
    return found
