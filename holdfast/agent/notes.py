"""What the agent and its forkserver say, into `agent.log`, which is their standard error.

Written straight to the descriptor: a full disk loses the words and nothing else.
"""

import contextlib
import os
import time


def note(text: str) -> None:
    """One line with the time. Never raises because of the disk."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    with contextlib.suppress(OSError):
        os.write(2, f"{stamp} {text}\n".encode(errors="replace"))
