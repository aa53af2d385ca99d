"""Ctrl-C from the first moment of a command on.

Python turns SIGINT into an exception wherever it is just then, and where nobody can be told of an
exception, such as in a callback of the garbage collector or of an import, prints and forgets it.
So what was asked is kept until somebody takes the signal over.
"""

import signal
from types import FrameType
from typing import NoReturn


class Interrupts:
    """A handler of SIGINT that raises `KeyboardInterrupt` and knows that it has."""

    def __init__(self) -> None:
        self.any = False

    def __call__(self, _signal: int, _frame: FrameType | None) -> NoReturn:
        self.any = True
        raise KeyboardInterrupt


def keep() -> None:
    """Take the place of Python's own handler, or of a former one of ours; one of somebody else
    stays. Only in the main thread."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler or isinstance(handler, Interrupts):
        signal.signal(signal.SIGINT, Interrupts())


def forgotten(number: signal.Signals) -> bool:
    """Whether there was one, although the program goes on."""
    handler = signal.getsignal(number)
    return isinstance(handler, Interrupts) and handler.any
