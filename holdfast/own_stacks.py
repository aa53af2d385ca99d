"""The Python stacks of this process, read from inside: where nobody outside may or can read them.

py-spy needs a binary for the machine, a Python that it knows and the right to trace. Without one of
these the worker's own thread that waits for the agent's questions (`flight_recorder`) tells where
the others stand, also while they wait in a collective; one that holds the GIL leaves it to
`dumped_stacks`. Frames read as py-spy writes them, because verdicts are found by functions and
files.
"""

import sys
import threading
from collections.abc import Iterable, Iterator
from types import FrameType

from holdfast.stacks import MAIN, MAX_THREADS, ThreadStack, shortened


def own_stacks(pid: int) -> tuple[ThreadStack, ...]:
    """Of all threads but the one that asks, the main one first."""
    names = {ident: thread.name for ident, thread in _known().items()}
    me, main = threading.get_ident(), threading.main_thread().ident
    frames = sorted(sys._current_frames().items(), key=lambda one: one[0] != main)
    found = (
        ThreadStack(
            name=MAIN if ident == main else names.get(ident, ""),
            pid=pid,
            frames=shortened([_place(one) for one in reversed([*_outwards(frame)])]),
        )
        for ident, frame in frames
        if ident != me
    )
    return tuple(found)[:MAX_THREADS]


def _known() -> dict[int, threading.Thread]:
    """Without the lock of `threading.enumerate`, which a thread that is stuck may hold."""
    active: dict[int, threading.Thread] = getattr(threading, "_active", {})
    return dict(active)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _place(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_qualname} ({short(code.co_filename, sys.path)}:{frame.f_lineno})"


def short(file: str, folders: Iterable[str]) -> str:
    """Without the longest of the folders from which modules are imported."""
    known = (f"{folder}/" for folder in folders if folder)
    return file.removeprefix(max(filter(file.startswith, known), key=len, default=""))
