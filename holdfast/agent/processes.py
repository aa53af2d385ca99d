"""What the kernel offers to keep track of processes: death signals, groups, reaping, /proc.

Plain functions over prctl, waitid and /proc. A group is killed while its dead leader is still a
zombie: only then can its number not have been given to somebody else.
"""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import NamedTuple

from holdfast.agent import cleaners

_PR_SET_PDEATHSIG = 1
_PR_SET_PTRACER = 0x59616D61  # linux/prctl.h; Documentation/admin-guide/LSM/Yama.rst
_PTRACER_ANY = (1 << 64) - 1
_PR_SET_CHILD_SUBREAPER = 36
_FLAGS, _EXIT_CODE = 6, 49  # fields 9 and 52 of proc_pid_stat(5), from the third on
_ENDS = 0x4 | 0x8 | 0x200  # PF_EXITING, PF_POSTCOREDUMP, PF_DUMPCORE of linux/sched.h
_GROUP = 2  # the field of proc_pid_stat(5) with its process group, from the third on
_TIMES = slice(11, 15)  # fields 14 to 17 of proc_pid_stat(5), from the third on
_TICKS_S = os.sysconf("SC_CLK_TCK")
_THREADS = 17  # the field of proc_pid_stat(5) with their number, from the third on
_TELLS_CHILDREN = Path("/proc/thread-self/children").exists()  # CONFIG_PROC_CHILDREN
_libc = ctypes.CDLL(None, use_errno=True)


class ProcessExit(NamedTuple):
    """How a process ended: by an exit code or by a signal. `at` is monotonic."""

    pid: int
    exit_code: int | None
    signal: int | None
    at: float

    @property
    def words(self) -> str:
        """For people."""
        by_signal = self.signal is not None
        return f"signal {self.signal}" if by_signal else f"exit status {self.exit_code}"


def die_with_parent(parent: int, sig: int) -> None:
    """Have the kernel send us `sig` when our parent dies; at once if it is dead already."""
    _prctl(_PR_SET_PDEATHSIG, sig)
    if os.getppid() != parent:
        os.kill(os.getpid(), sig)  # a worker that was forked last dies like the others
        os._exit(1)


def adopt_orphans() -> None:
    """Descendants whose parent dies become our children instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def let_stacks_be_read() -> None:
    """Where Yama restricts tracing to descendants (the default of Ubuntu), a program of the same
    user may read this process nevertheless. Elsewhere the kernel knows no such restriction."""
    with contextlib.suppress(OSError):
        _prctl(_PR_SET_PTRACER, _PTRACER_ANY)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def signal_group(pid: int, sig: int) -> None:
    """Signal the process group `pid` leads, and `pid` itself if it has moved to another group.
    SIGKILL spares the cleaners in it.

    Only for a child that has not been reaped.
    """
    if sig == signal.SIGKILL and cleaners.among(_group(pid)):
        kill_all({pid}, set(), {pid})
        return
    try:
        os.killpg(pid, sig)
        if os.getpgid(pid) != pid:
            os.kill(pid, sig)
    except ProcessLookupError:
        signal_one(pid, sig)


def group_of(pid: int) -> int:
    """Its process group; 0 if it is gone."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def kill_all(found: Set[int], spared: Set[int], groups: Set[int]) -> None:
    """SIGKILL to these processes but the `spared` of them. Their `groups`, to which nobody else
    belonged when they were found, are stopped before: who forks another and ends at once would
    never be found; the kernel lets nobody fork who has been sent a signal to its group. Whoever is
    in a group and was not found goes with it, before it says whose it is, but for cleaners."""
    stopped = groups - {0, 1, os.getpgrp()}
    for group in stopped:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGSTOP)
    late = {pid for pid in pids() if group_of(pid) in stopped} - found if stopped else set()
    cleaning = (found & spared) | cleaners.among(late)
    for pid in (found | late) - cleaning:
        signal_one(pid, signal.SIGKILL)
    for pid in cleaning:
        signal_one(pid, signal.SIGCONT)


def _group(leader: int) -> set[int]:
    """Live processes other than the leader of the group: below it, and below us or our parent, who
    adopt what a dead one leaves."""
    if not _TELLS_CHILDREN:
        return {pid for pid in pids() if pid != leader and _is_in_group(pid, leader)}
    found: set[int] = set()
    todo = _children(leader) | _children(os.getpid()) | _children(os.getppid())
    while todo:
        pid = todo.pop()
        if pid != leader and pid not in found and _is_in_group(pid, leader):
            found.add(pid)
            todo |= _children(pid)
    return found


def _is_in_group(pid: int, leader: int) -> bool:
    at = _stat(pid)
    return bool(at) and at[0] not in b"ZX" and int(at[_GROUP]) == leader


def _children(pid: int) -> set[int]:
    """As the kernel tells them: one small file per thread, instead of the whole machine."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                listed = content(f"/proc/{pid}/task/{thread}/children")
                found.update(map(int, listed.split()))
    return found


def tree(pid: int) -> set[int]:
    """This process and all below it."""
    if not _TELLS_CHILDREN:
        return {pid, *descendants(pid)}
    found, todo = set[int](), [pid]
    while todo:
        found.add(one := todo.pop())
        todo += _children(one) - found
    return found


def processor_s(pid: int) -> float | None:
    """What this process, and those that it has waited for, took of processors; None: it is gone."""
    found = _stat(pid)
    return sum(map(int, found[_TIMES])) / _TICKS_S if found else None


def signal_one(pid: int, sig: int) -> None:
    """Signal a process; nothing happens if it is gone."""
    try:
        os.kill(pid, sig)
    except ProcessLookupError:
        return


def reap(leads_group: Callable[[int], bool]) -> Iterator[ProcessExit]:
    """Every child that has ended; where `leads_group(pid)`, the rest of its group is killed."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None:
            return
        at = time.monotonic()
        if leads_group(found.si_pid):
            signal_group(found.si_pid, signal.SIGKILL)
        try:
            _, status = os.waitpid(found.si_pid, 0)
        except ChildProcessError:  # a thread of ours that ran a program has waited for it
            continue
        yield death_of(found.si_pid, status, at)


def death_of(pid: int, status: int, at: float) -> ProcessExit:
    """A wait status in words."""
    code = os.waitstatus_to_exitcode(status)
    return ProcessExit(pid, code if code >= 0 else None, -code if code < 0 else None, at)


def ending_of(pid: int) -> ProcessExit | None:
    """How this process ends that the kernel is taking apart, or whose memory it writes to a file,
    which takes seconds and minutes. None: it lives, is gone, or ends well."""
    fields = _stat(pid)
    if not fields or not int(fields[_FLAGS]) & _ENDS or not int(fields[_EXIT_CODE]):
        return None
    return death_of(pid, int(fields[_EXIT_CODE]), time.monotonic())


def ends_well(pid: int) -> bool:
    """Whether this process has begun to end with status 0, and not been reaped."""
    fields = _stat(pid)
    return bool(fields) and bool(int(fields[_FLAGS]) & _ENDS) and not int(fields[_EXIT_CODE])


def pids() -> list[int]:
    """Every process there is."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def parent_of(pid: int) -> int | None:
    """The parent of a live process; None for one that is gone or a zombie."""
    found = _state_and_parent(pid)
    return None if found is None or found[0] in (b"Z", b"X") else found[1]


def _state_and_parent(pid: int) -> tuple[bytes, int] | None:
    found = _stat(pid)
    return (found[0], int(found[1])) if found else None


def _stat(pid: int) -> list[bytes]:
    """From the third field of proc_pid_stat(5) on; empty for one that is gone."""
    try:
        return content(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return []


def content(path: str) -> bytes:
    """Of a file of /proc, in a third of the time that `Path.read_text` takes: agents read
    thousands. Raises OSError."""
    with open(path, "rb", buffering=0) as file:
        return file.read()


def waits_to_be_reaped(pid: int) -> bool:
    """Whether it has ended, with all of its threads, and its parent has not asked how."""
    found = _stat(pid)
    return bool(found) and found[0] == b"Z" and int(found[_THREADS]) <= 1


def exists(pid: int) -> bool:
    """Whether there is such a process, be it a zombie."""
    return Path(f"/proc/{pid}").exists()


def has_parent(pid: int, parents: set[int]) -> bool:
    """Whether this process exists, be it a zombie, and is a child of one of `parents`."""
    found = _state_and_parent(pid)
    return found is not None and found[1] in parents


def carrying(name: str, value: str) -> set[int]:
    """Live processes whose environment, as it was when they started, has `name=value`."""
    needle = f"\0{name}={value}\0".encode()
    return {pid for pid in pids() if needle in _environment(pid) and parent_of(pid) is not None}


def _environment(pid: int) -> bytes:
    try:
        return b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def descendants(pid: int, spared: frozenset[int] = frozenset()) -> set[int]:
    """Live processes below `pid`; `spared` ones and what is below them are left out."""
    parents = {found: parent_of(found) for found in pids()}
    children: dict[int, list[int]] = {}
    for child, parent in parents.items():
        if parent is not None and child not in spared:
            children.setdefault(parent, []).append(child)
    found: set[int] = set()
    todo = [pid]
    while todo:
        todo += (new := children.get(todo.pop(), []))
        found.update(new)
    return found


def has_stray_children(spared: frozenset[int]) -> bool:
    """Whether we have children other than `spared`: cheap, one small file per thread of ours."""
    return not _TELLS_CHILDREN or bool(_children(os.getpid()) - spared)
