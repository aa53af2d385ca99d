"""Who waits for the lock of a process hears that it ends, however it does, and of nothing else."""

import contextlib
import ctypes
import errno
import subprocess
import sys
from collections.abc import Iterator

import pytest

from holdfast.agent.processes import ending_of
from holdfast.page import Page

HOLDS = """
import os, sys, threading, time
from holdfast.page import Page
page = Page(int(sys.argv[1]))
page.end_lock.hold()
print("held", flush=True)
sys.stdin.readline()
"""
ENDS = {
    "killed": ("os.kill(os.getpid(), 9)", (None, 9)),
    "killed_with_threads": (
        "threading.Thread(target=time.sleep, args=(600,)).start(); os.kill(os.getpid(), 9)",
        (None, 9),
    ),
    "leaves": ("os._exit(3)", (3, None)),
    "raises": ("raise ValueError", (1, None)),
}


@contextlib.contextmanager
def holding(page: int, then: str) -> "Iterator[subprocess.Popen[bytes]]":
    """A process that has taken the lock of this page, and does that when it is told to."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS + then, str(page)],
        pass_fds=[page],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            yield process
        finally:
            process.kill()


def tell(process: "subprocess.Popen[bytes]") -> None:
    """To go on."""
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


@pytest.mark.parametrize("end", ENDS)
def test_the_end_of_whoever_holds_it_is_heard_and_how_it_ends_is_known(end: str) -> None:
    then, how = ENDS[end]
    fd = Page.create()
    page = Page(fd)
    assert not page.end_lock.held
    with holding(fd, then) as process:
        assert Page(fd).end_lock.held
        assert ending_of(process.pid) is None
        tell(process)
        page.end_lock.wait()
        found = ending_of(process.pid)
        assert found is not None
        assert (found.exit_code, found.signal) == how
    assert ending_of(process.pid) is None, "it is gone"
    page.close()


@pytest.mark.parametrize("then", ["os._exit(0)", "os.execvp('sleep', ['sleep', '600'])"])
def test_a_process_that_ends_well_or_becomes_another_program_has_not_failed(then: str) -> None:
    fd = Page.create()
    with holding(fd, then) as process:
        tell(process)
        Page(fd).end_lock.wait()
        assert ending_of(process.pid) is None


def test_who_raises_is_heard_before_its_process_begins_to_end() -> None:
    fd = Page.create()
    with holding(fd, "page.raised(); time.sleep(600)") as process:
        tell(process)
        page = Page(fd)
        page.end_lock.wait()
        assert page.raised_at > 0.0
        assert ending_of(process.pid) is None


def test_what_it_forks_may_end_without_being_taken_for_it() -> None:
    fd = Page.create()
    forks = "os.fork() or os._exit(3); os.wait(); print('forked', flush=True); time.sleep(600)"
    with holding(fd, forks) as process:
        tell(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"forked\n"
        lock = Page(fd).end_lock
        assert ctypes.CDLL(None).pthread_mutex_trylock(lock._mutex) == errno.EBUSY
        process.kill()
        lock.wait()
