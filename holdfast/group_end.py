"""Destroys the process group of a script that ends without doing so.

A thread of gloo lets go of the tensors of its last collective whenever it comes to it. If the
interpreter has begun to end by then, waiting for its lock ends the thread, and with it the process
by SIGABRT ("terminate called without an active exception"): a worker that has done all its work
would count as crashed. Destroying the group ends gloo's threads first.

That may wait for peers, which may be gone, so it has a thread of its own and a limit, after which
the process ends as it would have. `threading` does not know of the thread.
"""

import _thread
import atexit
import contextlib
import os
import sys
from typing import Any

LIMIT_S = 10.0
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

    # started now, because a thread cannot be started any more while the interpreter ends
    _thread.start_new_thread(destroy, ())
    atexit.register(leave)
