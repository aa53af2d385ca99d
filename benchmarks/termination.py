"""What SIGTERM does to a benchmark: it ends as by an exception, so its jobs end with it."""

import signal
import sys
from types import FrameType
from typing import NoReturn


def end_cleanly_when_terminated() -> None:
    """From now on, once; from the main thread."""
    signal.signal(signal.SIGTERM, _terminated)


def _terminated(number: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)
