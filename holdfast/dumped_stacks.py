"""The Python stacks of this process, written by a handler in C: for when nothing else here answers.

A worker that holds the GIL cannot tell its stacks itself (`own_stacks`), and in most pods nobody
may read them from outside. So `faulthandler` is registered for a signal that nobody uses, one of
the last of the real-time range. Its handler needs no GIL and writes where all threads stand into
memory that the agent holds, too. That memory begins with a line that says how to ask. Where the
script handles the signal in a way of its own the line is taken back, and nobody asks any more.

A dump names functions without their classes, so a frame reads a little shorter than elsewhere.
"""

import ctypes
import faulthandler
import os
import re
import signal
import sys
import threading
from typing import NamedTuple

import msgspec

from holdfast.own_stacks import short
from holdfast.stacks import LEFT_OUT, MAIN, MAX_THREADS, ThreadStack, shortened

VARIABLE = "HOLDFAST_DUMP_FD"
SIGNALS = range(signal.SIGRTMAX - 1, signal.SIGRTMAX - 9, -1)  # the first that is free
DEFAULT = 0  # SIG_DFL
_SIGACTION_BYTES = 256  # more than any system's `struct sigaction`, which begins with the handler
_POINTER_BYTES = ctypes.sizeof(ctypes.c_void_p)
_libc = ctypes.CDLL(None)

_THREAD = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]+)(?: \[.*\])? \(most recent call")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
_MORE_FRAMES, _MORE_THREADS = "  ...", "..."
_FRAMES_MOST = 100  # of a thread: Python 3.13 leaves out the others and does not say so


class DumpOffer(msgspec.Struct, frozen=True):
    """How a process is asked for its stacks."""

    signal: int
    fd: int  # of the memory, in that process
    main: int  # which thread is the main one
    folders: tuple[str, ...]  # from which modules are imported


class _Given(NamedTuple):
    """What we have offered."""

    offer: DumpOffer
    handler: int | None
    pid: int


_given: list[_Given] = []  # at most one


def offer() -> None:
    """From now on; nothing without an agent, or where all signals are taken."""
    fd = os.environ.pop(VARIABLE, None)  # children of the script must not offer it again
    number = next((one for one in SIGNALS if _handler_of(one) == DEFAULT), None)
    if fd is None or number is None:
        return
    faulthandler.register(number, file=int(fd), all_threads=True, chain=False)
    main = threading.main_thread().ident or 0
    made = DumpOffer(number, int(fd), main, tuple(map(str, sys.path)))
    os.write(int(fd), msgspec.json.encode(made) + b"\n")
    _given[:] = [_Given(made, _handler_of(number), os.getpid())]


def take_back_if_not_ours() -> None:
    """Whoever handles the signal now means something else by it."""
    for one in _given:
        if one.pid == os.getpid() and _handler_of(one.offer.signal) != one.handler:
            os.ftruncate(one.offer.fd, 0)
            _given.clear()
            return


def _handler_of(number: int) -> int | None:
    """The address of what handles it, whoever has set that; None if it cannot be told."""
    found = ctypes.create_string_buffer(_SIGACTION_BYTES)
    if _libc.sigaction(number, None, found) != 0:
        return None
    return int.from_bytes(found.raw[:_POINTER_BYTES], sys.byteorder)


def read(dump: str, offered: DumpOffer, pid: int) -> tuple[ThreadStack, ...]:
    """The threads of a dump, the main one first; empty where that is not among them, as the dump
    ends after a hundred. In a child that a thread has forked the last one is."""
    stacks: dict[int, list[str]] = {}
    for line in dump.splitlines():
        if head := _THREAD.match(line):
            stacks[int(head[1], 16)] = []
        elif stacks and (found := _FRAME.fullmatch(line)):
            file, number, function = found.groups()
            place = f"{function} ({short(file, offered.folders)}:{number})"
            stacks[next(reversed(stacks))].append(place)
        elif stacks and line == _MORE_FRAMES:
            stacks[next(reversed(stacks))].append(LEFT_OUT)
    for frames in stacks.values():
        if len(frames) == _FRAMES_MOST:
            frames.append(LEFT_OUT)
    known = [offered.main] if offered.main in stacks else [*stacks][-1:]
    cut = offered.main not in stacks and dump.rstrip("\n").endswith(f"\n{_MORE_THREADS}")
    if cut or not any(stacks.values()):
        return ()
    order = [*known, *(ident for ident in stacks if ident not in known and stacks[ident])]
    return tuple(
        ThreadStack(
            name=MAIN if ident in known else "",
            pid=pid,
            frames=shortened(stacks[ident][::-1]),
        )
        for ident in order[:MAX_THREADS]
    )
