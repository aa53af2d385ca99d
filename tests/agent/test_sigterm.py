"""Whose handler of SIGTERM is taken away: in processes of their own, which it ends."""

import signal
import subprocess
import sys

import pytest

ENDS = """
import ctypes, os, signal, sys
from holdfast.agent.frameworks.sigterm import restore_default

whose = sys.argv[1]
ignores = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda _: None)
if whose == "python":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
elif whose == "runtime":
    ctypes.CDLL(None).signal(15, ignores)
elif whose == "ignored":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(restore_default(), flush=True)
os.kill(os.getpid(), signal.SIGTERM)
os._exit(0)
"""


@pytest.mark.parametrize(
    ("whose", "taken", "status"),
    [
        ("nobody", "False", -signal.SIGTERM),
        ("runtime", "True", -signal.SIGTERM),
        ("python", "False", 7),
        ("ignored", "False", 0),
    ],
)
def test_only_a_handler_below_python_is_taken_away(whose: str, taken: str, status: int) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", ENDS, whose], stdout=subprocess.PIPE, text=True, check=False
    )
    assert (ran.stdout.strip(), ran.returncode) == (taken, status)
