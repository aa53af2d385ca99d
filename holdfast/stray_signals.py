"""Signals that ask for nothing and would end a process of ours without a word.

What Linux does by default with SIGUSR1, with a timer of somebody else's or with a signal of the
real-time range is to end the process (signal(7)). A batch system that warns of a limit, a
`pkill -USR1 python` or a slip of the hand would so end a controller, an agent, or what forks all
workers of a node. Each kind is told once and ignored. Other programs that are started get the
default back by exec(2); a fork becomes another's process by `forget`.
"""

import contextlib
import os
import signal
from collections.abc import Callable
from types import FrameType

NAMED = ("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPWR", "SIGSTKFLT")


class Stray:
    """A handler that tells the first of each kind; `tell` must do without Python's streams, in
    whose midst it may be called."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._told = tell, set[int]()

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if number not in self._told:
            self._told.add(number)
            self._tell(f"{_name(number)} was received: it has no meaning here and is ignored")


def outlive(tell: Callable[[str], None] | None = None, *more: signal.Signals) -> None:
    """From now on, as far as nobody else handles them; `more` too. Only in the main thread."""
    handler = Stray(tell or _say)
    for number in {*_stray(), *more}:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, handler)


def forget() -> None:
    """As it was before `outlive`."""
    for number in signal.valid_signals():
        if isinstance(signal.getsignal(number), Stray):
            signal.signal(number, signal.SIG_DFL)


def _stray() -> set[int]:
    named = {int(getattr(signal, name)) for name in NAMED if hasattr(signal, name)}
    return (named | {*range(signal.SIGRTMIN, signal.SIGRTMAX + 1)}) & {*signal.valid_signals()}


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"holdfast: {text}\n".encode())
