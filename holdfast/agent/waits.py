"""What the threads of a worker, and of all processes below it, wait for in the kernel.

A thread that waits for a lock without a time limit is only ever woken by a thread that shares the
memory of the lock; one that waits for a socket or a pipe by anybody. So the kernel's own words tell
apart what may well go on from what cannot: the function in which a thread sleeps
(`/proc/PID/task/TID/wchan`), and the arguments of its system call (`syscall`), of which the fourth
of futex(2) is its time limit. Where the kernel does not say, or a thread runs, nothing is known of
the whole, because that thread may wake all others. Threads in which PyTorch serves the connections
between ranks are left out: they do nothing but what another rank began, or wake up to look.
"""

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from holdfast.agent.processes import tree
from holdfast.stacks import MAIN, ThreadStack, Wait

ENTRIES = frozenset(
    (
        "do_syscall_64", "x64_sys_call", "do_fast_syscall_32", "__do_sys_restart_syscall",
        "invoke_syscall", "el0_svc_common", "do_el0_svc", "el0_svc",
    )
)  # fmt: skip
"""Where a thread enters the kernel: all that it shows of a sleep that goes on after it was stopped,
as by our own look."""
BETWEEN_RANKS = ("gloo_tcp", "pt_gloo", "pt_nccl", "pt_tcpstore")  # how threads' names begin
STOPPED = ("do_signal_stop", "ptrace_stop", "get_signal")
TIMERS = ("hrtimer_nanosleep", "do_nanosleep")
LOCKS = ("futex",)
CHILDREN = ("do_wait",)
# futex and futex_waitv of syscalls(2); a wait that goes on by restart_syscall(2) has a time limit.
FUTEX = {"x86_64": ("202", "449"), "aarch64": ("98", "449")}.get(platform.machine(), ())
TIME_LIMIT = 4  # place of that argument, behind the number of the call
OURS = "holdfast/"
STARTS = ("threading.py", "<frozen")
Waits = Mapping[int, Wait | None]  # by thread; None: it is not known


def waits_of(pid: int) -> dict[int, Wait | None]:
    """Of this process and all below it, by thread, zombies left out."""
    return {thread: wait for one in tree(pid) for thread, wait in _of_process(one)}


def joined_waits(waits: Waits, threads: Sequence[ThreadStack]) -> tuple[Wait, ...]:
    """What there is of them, without `threads` of ours, which wait for questions; empty if that of
    any is not known."""
    ours = {thread.number for thread in threads if is_ours(thread)}
    found = {wait for thread, wait in waits.items() if thread not in ours}
    return () if None in found else tuple(sorted(filter(None, found)))


def is_ours(thread: ThreadStack) -> bool:
    """Whether it was started by this library in a worker, and does nothing of the script. A main
    thread does: a worker that was forked begins in the forkserver."""
    if thread.name == MAIN or thread.number == thread.pid:
        return False
    places = [frame.partition(" (")[2] for frame in thread.frames]
    begins = next((place for place in places if not place.startswith(STARTS)), "")
    return begins.startswith(OURS)


def _of_process(pid: int) -> Iterable[tuple[int, Wait | None]]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for thread in threads:
        task = Path(f"/proc/{pid}/task/{thread}")
        named, _, rest = _text(task / "stat").rpartition(")")
        between = named.partition("(")[2].startswith(BETWEEN_RANKS) and int(thread) != pid
        if not between and (state := rest.strip()[:1]) not in ("", "Z", "X"):
            yield int(thread), wait_in(state, _text(task / "wchan"), _text(task / "syscall"))


def wait_in(state: str, place: str, call: str) -> Wait | None:
    """From the state of a thread, `wchan` and `syscall` (proc(5))."""
    place = place.strip("0\n")
    if state != "S" or not place or place in ENTRIES or place.startswith(STOPPED):
        return Wait.OUTSIDE if state == "D" else None
    if place.startswith(TIMERS):
        return Wait.TIMER
    if place.startswith(CHILDREN):
        return Wait.CHILD
    if not place.startswith(LOCKS):
        return Wait.OUTSIDE
    number, *arguments = call.split() or [""]
    limited = len(arguments) < TIME_LIMIT or int(arguments[TIME_LIMIT - 1], 16) != 0
    return Wait.TIMER if number not in FUTEX or limited else Wait.LOCK


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
