"""SIGTERM ends a worker of TensorFlow, as it ends every other program that does not handle it.

TensorFlow's runtime handles it below Python, as a notice of preemption, and goes on: a stop would
wait for its grace time. Its handler is found by what the kernel says is caught though Python has no
handler, and taken away. One that the script has installed, `PreemptionCheckpointHandler` for
instance, is Python's and stays; so does TensorFlow's own where `KEPT` is set.
"""

import ctypes
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path

KEPT = "HOLDFAST_TENSORFLOW_NOTICE"
LOOK_S = 0.5
_DEFAULT = None  # SIG_DFL is the null pointer


def let_it_end(environ: Mapping[str, str]) -> None:
    """From now on, whenever TensorFlow begins to handle it."""
    if not environ.get(KEPT):
        threading.Thread(target=_watch, name="holdfast-sigterm", daemon=True).start()


def _watch() -> None:
    while True:
        time.sleep(LOOK_S)
        restore_default()


def restore_default() -> bool:
    """Take a handler away that is none of Python's; whether there was one."""
    foreign = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and _is_caught()
    if foreign:
        ctypes.CDLL(None).signal(int(signal.SIGTERM), _DEFAULT)
    return foreign


def _is_caught() -> bool:
    status = Path("/proc/self/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
