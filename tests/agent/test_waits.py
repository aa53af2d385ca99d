"""The kernel tells a deadlock from a program that sleeps, or waits for something outside."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from holdfast.agent.waits import ENTRIES, is_ours, joined_waits, wait_in, waits_of
from holdfast.stacks import AMONG_THEMSELVES, ThreadStack, Wait
from tests.more import long
from tests.patience import until

UP = "print('up', flush=True)\n"
LOCK = "lock = threading.Lock()\nlock.acquire()\n"
TAKE = "lock.acquire()\n"
tells = pytest.mark.skipif(
    not Path("/proc/self/syscall").exists() or not Path("/proc/self/wchan").exists(),
    reason="the kernel does not say in what threads wait",
)


def waits_in(code: str) -> set[Wait | None]:
    """What the threads of a real program wait for, once all of them do."""
    head = "import os, queue, signal, socket, subprocess, sys, threading, time\n"
    command = [sys.executable, "-c", head + code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE) as ran:
        try:
            assert ran.stdout is not None and ran.stdout.readline() == b"up\n"
            seen: list[dict[int, Wait | None]] = [{}]

            def settled() -> bool:
                seen.append(waits_of(ran.pid))
                same = seen[-1] == seen[-2] and None not in seen[-1].values()
                return same and bool(seen[-1])

            assert until(settled)
            return {*seen[-1].values()}
        finally:
            for pid in waits_of(ran.pid):
                if pid != ran.pid and Path(f"/proc/{pid}/status").exists():
                    tgid = Path(f"/proc/{pid}/status").read_text().split("Tgid:")[1].split()[0]
                    if int(tgid) != ran.pid:
                        os.kill(int(tgid), 9)
            ran.kill()


NAMED = """
import ctypes
def serve(name, wait):
    assert ctypes.CDLL(None).prctl(15, name) == 0  # PR_SET_NAME
    wait()
""".lstrip()
SERVES = "t = threading.Thread(target=serve, args=(b'gloo_tcp_loop', lambda: os.read(0, 1)))\n"
GLOO = """
import tempfile, torch.distributed as dist
store = dist.FileStore(tempfile.mktemp(), 1)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
dist.barrier()
""".lstrip()

THREADS = {
    "a lock": (LOCK + UP + TAKE, {Wait.LOCK}),
    "an event": (UP + "threading.Event().wait()", {Wait.LOCK}),
    "a queue": (UP + "queue.Queue().get()", {Wait.LOCK}),
    "two threads": (
        LOCK + "t = threading.Thread(target=lock.acquire)\nt.start()\n" + UP + "t.join()",
        {Wait.LOCK},
    ),
    "a child": (
        LOCK + "if not (child := os.fork()):\n    lock.acquire()\n" + UP + "os.waitpid(child, 0)",
        {Wait.LOCK, Wait.CHILD},
    ),
    "a lock for an hour": (LOCK + UP + "lock.acquire(timeout=3600)", {Wait.TIMER}),
    "a sleep": (UP + "time.sleep(3600)", {Wait.TIMER}),
    "a thread that sleeps": (
        "t = threading.Thread(target=time.sleep, args=(3600,))\nt.start()\n" + UP + "t.join()",
        {Wait.LOCK, Wait.TIMER},
    ),
    "a pipe": (UP + "os.read(0, 1)", {Wait.OUTSIDE}),
    "a server": (
        "s = socket.create_server(('127.0.0.1', 0))\n" + UP + "s.accept()", {Wait.OUTSIDE},
    ),
    "a server in a thread": (
        "s = socket.create_server(('127.0.0.1', 0))\nt = threading.Thread(target=s.accept)\n"
        "t.start()\n" + UP + "t.join()",
        {Wait.LOCK, Wait.OUTSIDE},
    ),
    "a signal": (UP + "signal.pause()", {Wait.OUTSIDE}),
    "a lock, beside a thread that serves other ranks": (
        NAMED + SERVES + "t.start()\n" + UP + "t.join()", {Wait.LOCK},
    ),
    "a pipe, whatever it is called": (
        NAMED + UP + "serve(b'gloo_tcp_loop', lambda: os.read(0, 1))", {Wait.OUTSIDE},
    ),
    "a child that sleeps": (
        UP + "subprocess.run(['sleep', '3600'])", {Wait.CHILD, Wait.TIMER},
    ),
}  # fmt: skip


@tells
@pytest.mark.parametrize("kind", THREADS)
def test_what_a_program_waits_for_is_told(kind: str) -> None:
    code, expected = THREADS[kind]
    assert waits_in(code) == expected
    outside = Wait.TIMER in expected or Wait.OUTSIDE in expected
    assert AMONG_THEMSELVES.issuperset(expected) is not outside


@long
@tells
def test_the_threads_of_a_process_group_are_those_that_serve_other_ranks() -> None:
    assert waits_in(GLOO + LOCK + UP + TAKE) == {Wait.LOCK}


def test_where_the_kernel_does_not_say_nothing_is_known() -> None:
    assert wait_in("S", "0", "") is None
    assert wait_in("R", "0", "running") is None
    assert wait_in("T", "do_signal_stop", "") is None
    assert {wait_in("S", place, "202 0x0 0x0 0x0 0x0 0x0 0x0 0x0 0x0") for place in ENTRIES} == {
        None
    }
    assert wait_in("D", "folio_wait_bit", "") is Wait.OUTSIDE


@pytest.mark.parametrize("call", ["", "0x0", "219 0x0 0x0 0x0 0x0 0x0 0x0 0x0 0x0", "202 0x1 0x0"])
def test_a_lock_of_which_it_is_not_known_that_there_is_no_limit_may_have_one(call: str) -> None:
    assert wait_in("S", "futex_do_wait", call) is Wait.TIMER


def test_our_own_threads_in_a_worker_are_left_out_of_it() -> None:
    ours = ThreadStack(
        name="", pid=1, number=5, frames=("_answer (holdfast/flight_recorder.py:1)",)
    )
    started = ThreadStack(
        name="x", pid=1, number=6,
        frames=("_bootstrap (threading.py:1)", "_watch (holdfast/agent/sigterm.py:1)"),
    )  # fmt: skip
    script = ThreadStack(
        name="MainThread", pid=1, number=4,
        frames=("<module> (t.py:1)", "fetch (holdfast/train/data.py:1)"),
    )  # fmt: skip
    forked = msgspec.structs.replace(
        script, frames=("main (holdfast/agent/forkserver.py:38)", *script.frames)
    )
    renamed = msgspec.structs.replace(forked, name="rank 0", number=1)
    every = ours, started, script, forked, renamed
    assert [is_ours(one) for one in every] == [True, True, False, False, False]
    waits = {4: Wait.LOCK, 5: Wait.OUTSIDE, 6: Wait.OUTSIDE}
    assert joined_waits(waits, [script, ours, started]) == (Wait.LOCK,)
    assert joined_waits({**waits, 7: None}, [script, ours, started]) == (), "it may wake the others"
    assert joined_waits({}, []) == ()
