"""Run a training script whose rank 1 kills itself once, a few seconds into the first attempt."""

import os
import runpy
import signal
import sys
import threading
import time

SECONDS = 4.0


def _die_once() -> None:
    """The rank is known only from `join()` on: a warm worker waits for it."""
    while "HOLDFAST_ATTEMPT" not in os.environ:
        time.sleep(0.05)
    if os.environ["HOLDFAST_ATTEMPT"] == "1" and os.environ.get("RANK") == "1":
        time.sleep(SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)


threading.Thread(target=_die_once, daemon=True).start()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
