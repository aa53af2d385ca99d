"""Stacks of workers, grouped by what is the same: however many ranks there are, few stacks differ.

A node groups those of its workers before it sends them, and the controller joins what comes from
the nodes, so that it never holds more than `MAX_GROUPS` of them.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import lru_cache

import msgspec

from holdfast.events import Ranks
from holdfast.rank_rows import JoinedRows

MAX_FRAMES = 64  # of a thread; of more the middle is left out
MAX_THREADS = 24  # of a worker, with all its processes
MAX_GROUPS = 256
NATIVE_S = 12.0  # for frames of C of all workers of a node
LEFT_OUT = "..."
MAIN = "MainThread"
# Of compilers, not of what they have compiled, which stands in other files while it runs.
COMPILERS = (
    "torch/_dynamo/convert_frame.py", "torch/_inductor/codecache.py",
    "torch/_inductor/compile_fx.py", "torch/_inductor/async_compile.py",
    "torch/_inductor/cpp_builder.py", "torch/utils/cpp_extension.py", "triton/compiler/",
    "jax/_src/compiler.py", "numba/core/",
)  # fmt: skip
RUNS = ("run", "torch/_inductor/compile_fx.py")  # a CUDA graph


class Activity(StrEnum):
    """What a worker did between several looks at it, from least to most."""

    UNKNOWN = ""  # one look does not tell
    STILL = "still"  # its main thread stood where it was, and used no processor
    BACKGROUND = "background"  # so did that, but other threads moved or used a processor
    BUSY = "busy"  # it stood where it was; it, or a process of its own, computed, read or wrote
    MOVES = "moves"  # it was seen at different places


class Wait(StrEnum):
    """What a thread that sleeps in the kernel waits for."""

    LOCK = "lock"  # for another thread, or a process with which it shares memory, and for ever
    CHILD = "child"  # for a process that it has started
    TIMER = "timer"  # for a time; it may wait for a lock until then
    OUTSIDE = "outside"  # for a socket, a pipe, a file, a signal: whoever ends that is not known


AMONG_THEMSELVES = frozenset((Wait.LOCK, Wait.CHILD))
"""If all threads of some processes wait for this, nothing outside of them will ever wake them."""


class ThreadStack(msgspec.Struct, frozen=True, kw_only=True):
    """One thread. `frames` reads "function (file:line)", the outermost first."""

    name: str
    pid: int
    frames: tuple[str, ...]
    active: bool = False  # it was on a processor, or ready to be
    holds_gil: bool = False
    number: int = 0  # of the kernel; 0: not known


class StackGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks whose main threads stand at the same place. `threads` are all of the lowest of them,
    the main one first; empty if they could not be read, and `why` says so, as it does of frames of
    C that were wanted. `below` are those of its processes, as of a data loader, after several
    looks; after one they are among `threads`."""

    ranks: Ranks
    threads: tuple[ThreadStack, ...] = ()
    below: tuple[ThreadStack, ...] = ()
    state: str = ""  # of the process: running, sleeping, stopped, disk-sleep, zombie
    why: str = ""
    sleeps_in: str = ""  # function of the kernel in which the lowest waits, if it says so
    activity: Activity = Activity.UNKNOWN
    gpu_busy: bool = False  # so was its GPU; that also is while kernels wait for other ranks
    waits: tuple[Wait, ...] = ()  # of all threads, also of processes below; empty: not known

    @property
    def frames(self) -> tuple[str, ...]:
        """Of the main thread."""
        return self.threads[0].frames if self.threads else ()

    @property
    def compiles(self) -> bool:
        """Whether any of its threads stands in a compiler: one of autograd's may."""
        return any(_in_compiler(thread.frames) for thread in self.threads)

    @property
    def count(self) -> int:
        """How many ranks."""
        return sum(last - first + 1 for first, last in self.ranks)


class JoinedStacks:
    """Those with the same stack, state, activity and reason made one, who compiles apart from who
    does not, and so for GPUs; as they come, and never many."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], tuple[StackGroup, JoinedRows]] = {}

    def add(self, groups: Iterable[StackGroup]) -> None:
        """More of them."""
        for group in groups:
            kind = _kind(group)
            first, rows = self._found.get(kind) or (group, JoinedRows(()))
            rows.add(group.ranks)
            self._found[kind] = min(first, group, key=lambda one: one.ranks), rows
            if len(self._found) > 2 * MAX_GROUPS:
                kept = self.groups()
                self._found = {_kind(one): (one, JoinedRows(one.ranks)) for one in kept}

    def groups(self) -> tuple[StackGroup, ...]:
        """The smallest first. Beyond `MAX_GROUPS` the rarest are kept, because what is rare is
        looked for."""
        known = [
            msgspec.structs.replace(first, ranks=rows.rows())
            for first, rows in self._found.values()
        ]
        return tuple(sorted(known, key=lambda group: (group.count, group.ranks))[:MAX_GROUPS])


def joined(groups: Iterable[StackGroup]) -> tuple[StackGroup, ...]:
    """All of them (`JoinedStacks`)."""
    found = JoinedStacks()
    found.add(groups)
    return found.groups()


def _kind(group: StackGroup) -> tuple[object, ...]:
    did = group.activity, group.gpu_busy, group.compiles, group.waits
    return group.frames, group.state, group.why, did


@lru_cache(1024)  # asked for each of many ranks that stand alike
def _in_compiler(frames: tuple[str, ...]) -> bool:
    return any(map(_is_compiler, frames))


@lru_cache(4096)  # nodes of a large job tell the same ones
def _is_compiler(frame: str) -> bool:
    name, _, place = frame.partition(" (")
    runs = (name.rpartition(".")[2], place.partition(":")[0]) == RUNS
    return place.startswith(COMPILERS) and not runs


def shortened(frames: Sequence[str]) -> tuple[str, ...]:
    """At most `MAX_FRAMES`: the outermost and the innermost."""
    if len(frames) <= MAX_FRAMES:
        return tuple(frames)
    half = MAX_FRAMES // 2
    return (*frames[: half - 1], LEFT_OUT, *frames[-half:])


def in_words(ranks: Ranks, most: int = 8) -> str:
    """`0-3, 7`; of many rows only the first."""
    rows = [str(first) if first == last else f"{first}-{last}" for first, last in ranks]
    return ", ".join(rows[:most]) + (", ..." if len(rows) > most else "")
