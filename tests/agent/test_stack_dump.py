"""What a worker does is seen from outside, whatever it is stuck in."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from holdfast.agent import stack_dump
from holdfast.agent.stack_dump import LookedAt, native_stack, stacks_of
from holdfast.diagnosis.hang import AMONG_THREADS
from holdfast.stacks import MAIN, Activity, StackGroup, ThreadStack
from tests.patience import until

SLEEPS = "def waits():\n    print('up', flush=True)\n    time.sleep(1e6)\nwaits()\n"
HOLDS_THE_GIL = (
    "def stuck():\n    print('up', flush=True)\n    re.match('(a*)*b', 'a' * 64)\nstuck()\n"
)
HAS_CHILDREN = (
    "def loads():\n    time.sleep(1e6)\n"
    "def waits():\n    loader.join()\n"
    "loader = multiprocessing.get_context('fork').Process(target=loads, daemon=True)\n"
    "loader.start()\nprint('up', flush=True)\nwaits()\n"
)
HAS_THREADS = (
    "def other():\n    time.sleep(1e6)\n"
    "threading.Thread(target=other, name='feeder', daemon=True).start()\n"
) + SLEEPS

Start = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts scripts, and ends them."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(text: str) -> "subprocess.Popen[bytes]":
        script = f"import multiprocessing, re, threading, time\n{text}"
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        running.append(process)
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        return process

    yield begin
    for process in running:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def taken(*workers: tuple[int, int]) -> tuple[StackGroup, ...]:
    return asyncio.run(stacks_of(LookedAt(rank, pid) for rank, pid in workers))


def stands_in(group: StackGroup, function: str) -> bool:
    return any(frame.startswith(f"{function} (") for frame in group.frames)


@pytest.mark.parametrize(("script", "function"), [(SLEEPS, "waits"), (HOLDS_THE_GIL, "stuck")])
def test_a_worker_that_waits_or_holds_the_gil_is_seen(
    start: Start, script: str, function: str
) -> None:
    process = start(script)

    def seen() -> bool:
        [group] = taken((3, process.pid))
        assert group.ranks == ((3, 3),)
        return stands_in(group, function)

    assert until(seen)
    assert process.poll() is None, "it goes on"


def test_a_stopped_worker_is_read_as_it_is_and_stays_stopped(start: Start) -> None:
    process = start(SLEEPS)
    os.kill(process.pid, signal.SIGSTOP)
    assert until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    [group] = taken((0, process.pid))
    assert group.state == "stopped" and stands_in(group, "waits")
    assert psutil.Process(process.pid).status() == psutil.STATUS_STOPPED


def test_all_threads_of_a_worker_and_of_its_children_are_told_the_main_one_first(
    start: Start,
) -> None:
    [group] = taken((0, start(HAS_THREADS).pid))
    assert [thread.name for thread in group.threads] == ["MainThread", "feeder"]
    process = start(HAS_CHILDREN)
    [group] = taken((0, process.pid))
    assert group.threads[0].pid == process.pid and stands_in(group, "waits")
    children = [t for t in group.threads if t.pid != process.pid]
    assert children and any("loads" in frame for frame in children[0].frames)


def test_workers_at_the_same_place_are_one_group(start: Start) -> None:
    a, b, c = start(SLEEPS), start(SLEEPS), start(HAS_THREADS)
    groups = taken((0, a.pid), (1, b.pid), (2, c.pid))
    assert [group.count for group in groups] == [1, 2], "the lines of the third are others"


def test_why_there_is_no_stack_is_said(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = start(SLEEPS)
    ended.kill()
    ended.wait()
    plain = subprocess.Popen(["sleep", "1000"])
    try:
        gone, other = taken((0, ended.pid), (1, plain.pid))
    finally:
        plain.kill()
        plain.wait()
    assert gone.why == "the process has ended" and gone.threads == ()
    assert other.why.startswith("py-spy: ") and "\n" not in other.why
    monkeypatch.setattr(stack_dump, "_program", lambda: "/nowhere/py-spy")
    [group] = taken((0, os.getpid()))
    assert group.why == "py-spy cannot be started: No such file or directory"


def test_a_reader_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = tmp_path / "py-spy"
    stuck.write_text("#!/bin/sh\nexec sleep 1000\n")
    stuck.chmod(0o755)
    monkeypatch.setattr(stack_dump, "_program", lambda: str(stuck))
    monkeypatch.setattr(stack_dump, "ONE_S", 0.2)
    [group] = taken((0, os.getpid()))
    assert group.why == "py-spy did not answer within 0.2 s"


def test_what_is_no_answer_is_not_taken_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / "py-spy"
    odd.write_text("#!/bin/sh\necho '[{}]'\n")
    odd.chmod(0o755)
    monkeypatch.setattr(stack_dump, "_program", lambda: str(odd))
    [group] = taken((0, os.getpid()))
    assert group.why.startswith("unexpected output of py-spy")


# ── frames of C ──

IN_C = (
    "import ctypes\ndef stuck():\n    print('up', flush=True)\n"
    "    ctypes.PyDLL(None).sleep(100_000)\nstuck()\n"
)


def test_where_in_c_a_worker_stands_is_told_with_the_python_that_called_it(start: Start) -> None:
    process = start(IN_C)

    def seen() -> bool:
        stack = asyncio.run(native_stack(process.pid))
        frames = [frame.partition(" (")[0] for frame in stack]
        inner = frames[: frames.index("stuck")] if "stuck" in frames else []
        in_c = [frame for frame in stack[: len(inner)] if "sleep (libc" in frame]
        return bool(in_c) and ":" not in in_c[0] and "<module>" in frames

    assert until(seen), asyncio.run(native_stack(process.pid))
    assert process.poll() is None, "it goes on"


def test_where_nobody_can_tell_that_nothing_is_told(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(IN_C)
    knows_no_c = tmp_path / "py-spy"
    knows_no_c.write_text("#!/bin/sh\necho 'error: unexpected argument --native' >&2\nexit 2\n")
    knows_no_c.chmod(0o755)
    monkeypatch.setattr(stack_dump, "_program", lambda: str(knows_no_c))
    assert asyncio.run(native_stack(process.pid)) == ()
    process.kill()
    process.wait()
    assert asyncio.run(native_stack(process.pid)) == ()


def stands_in_for_py_spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    program = tmp_path / "py-spy"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    monkeypatch.setattr(stack_dump, "_program", lambda: str(program))


PRINTED = """cat <<E
[
  {"pid": 1, "thread_name": "MainThread", "active": false, "owns_gil": false, "frames": [
     {"name": "sleep", "short_filename": "libc.so.6", "filename": "libc.so.6", "line": 0}]}
]
E"""


def test_once_the_frames_are_printed_nobody_waits_for_py_spy_to_end(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(IN_C)
    stands_in_for_py_spy(tmp_path, monkeypatch, f"{PRINTED}\nexec sleep 100000")
    assert asyncio.run(native_stack(process.pid, 1e5)) == ("sleep (libc.so.6)",)
    assert until(lambda: not _children_named("sleep")), "it is ended and waited for"


def test_py_spy_that_takes_too_long_is_ended_and_lets_go(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(IN_C)
    stands_in_for_py_spy(tmp_path, monkeypatch, "echo '['; exec sleep 100000")
    assert asyncio.run(native_stack(process.pid, 0.2)) == ()
    assert until(lambda: not _children_named("sleep"))


def _children_named(name: str) -> list[int]:
    return [one.pid for one in psutil.Process().children() if name in _name(one)]


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


def test_of_one_that_a_signal_has_stopped_no_frames_of_c_are_waited_for(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(IN_C)
    stands_in_for_py_spy(tmp_path, monkeypatch, f"touch {tmp_path}/asked; {PRINTED}")
    process.send_signal(signal.SIGSTOP)
    assert until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    assert asyncio.run(native_stack(process.pid)) == ()
    assert not (tmp_path / "asked").exists()
    process.send_signal(signal.SIGCONT)


# ── what it did meanwhile ──

MOVES = (
    "def one():\n    return sum(range(10**5))\n"
    "def two():\n    return sorted(range(10**5))\n"
    "print('up', flush=True)\nwhile True: one(); two()\n"
)
SPINS = "def spins():\n    print('up', flush=True)\n    re.match('(a*)*b', 'a' * 64)\nspins()\n"
WORKS_BESIDE = (
    "def other():\n"
    "    while True: sum(range(10**6))\n"
    "threading.Thread(target=other, daemon=True).start()\n"
) + SLEEPS
HAS_A_WORKING_CHILD = (
    "def works():\n    while True: sum(range(10**6))\n"
    "loader = multiprocessing.get_context('fork').Process(target=works, daemon=True)\n"
    "loader.start()\nprint('up', flush=True)\nloader.join()\n"
)
READS = (
    "def reads():\n    print('up', flush=True)\n"
    "    while True: file.read(10**6) or file.seek(0)\n"
    "file = open('/dev/zero', 'rb')\nreads()\n"
)


@pytest.mark.parametrize(
    ("script", "did"),
    [
        (SLEEPS, {Activity.STILL}),
        (SPINS, {Activity.BUSY}),
        (MOVES, {Activity.MOVES, Activity.BUSY}),
        (WORKS_BESIDE, {Activity.BACKGROUND, Activity.BUSY}),  # which of them: whose lock it is
        (HAS_A_WORKING_CHILD, {Activity.BUSY}),
        (READS, {Activity.MOVES, Activity.BUSY}),
    ],
)
def test_several_looks_tell_what_a_worker_did_meanwhile(
    start: Start, script: str, did: set[Activity]
) -> None:
    process = start(script)

    def seen() -> bool:
        [group] = asyncio.run(stacks_of([LookedAt(0, process.pid)], looks=3, apart_s=0.2))
        return group.activity in did

    assert until(seen)


def test_after_several_looks_the_processes_below_whoever_stands_still_are_told_apart(
    start: Start,
) -> None:
    """They say what a data loader does, and nothing about what the worker itself did."""
    process = start(HAS_CHILDREN)

    def seen() -> bool:
        [group] = asyncio.run(stacks_of([LookedAt(0, process.pid)], looks=3, apart_s=0.05))
        assert {thread.pid for thread in group.threads} == {process.pid}
        return any("loads" in frame for thread in group.below for frame in thread.frames)

    assert until(seen)


SPAWNS = (
    "def lock():\n    one = threading.Lock()\n    one.acquire()\n    one.acquire()\n"
    "def waits():\n    rank.join()\n"
    "rank = multiprocessing.get_context('fork').Process(target=lock, daemon=True)\n"
    "rank.start()\nprint('up', flush=True)\nwaits()\n"
)


def test_a_worker_without_steps_that_waits_for_its_own_processes_stands_where_they_do(
    start: Start,
) -> None:
    worker = start(SPAWNS)

    def stand(*, no_steps: bool) -> tuple[str, ...]:
        (group,) = asyncio.run(stacks_of([LookedAt(0, worker.pid, waits=no_steps)], 2, 0.01))
        return group.frames

    assert until(lambda: any(frame.startswith("lock (") for frame in stand(no_steps=True)))
    assert any(frame.startswith("waits (") for frame in stand(no_steps=False))


JOINS = (
    "<module> (t.py:9)",
    "ProcessContext.join (torch/multiprocessing/spawn.py:140)",
    "wait (multiprocessing/connection.py:947)",
    "_PollLikeSelector.select (selectors.py:415)",
)
RANKS = {  # by process
    2: ("main (multiprocessing/resource_tracker.py:200)",),
    3: ("_wrap (torch/multiprocessing/spawn.py:87)", "train (t.py:4)",
        "all_reduce (torch/distributed/distributed_c10d.py:3252)"),
    4: ("_wrap (torch/multiprocessing/spawn.py:87)", "train (t.py:5)"),
    5: ("_worker_loop (torch/utils/data/_utils/worker.py:275)",),
}  # fmt: skip


def of(*pids: int) -> list[ThreadStack]:
    return [ThreadStack(name=MAIN, pid=pid, number=pid, frames=RANKS[pid]) for pid in pids]


@pytest.mark.parametrize(
    ("pids", "shown"), [((2, 3, 4, 5), 4), ((2, 3, 5), 3), ((5, 4), 4), ((2, 5), 1), ((), 1)]
)
def test_of_its_processes_that_one_is_shown_for_which_the_others_wait(
    pids: tuple[int, ...], shown: int
) -> None:
    own = ThreadStack(name=MAIN, pid=1, number=1, frames=JOINS)
    worker = StackGroup(ranks=((0, 0),), threads=(own,), sleeps_in="do_poll")
    found = stack_dump.standing_below(worker, of(*pids))
    assert found.sleeps_in == ("do_poll" if shown == 1 else "")
    assert found.threads[0].pid == shown and {one.pid for one in found.threads} == {1, *pids}
    assert len(found.threads) == 1 + len(pids)


def test_processes_that_cannot_be_read_in_time_hold_up_no_look(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, real = start(HAS_CHILDREN), stack_dump._program()
    slow = tmp_path / "py-spy"
    slow.write_text(f'#!/bin/sh\n[ "$4" = {process.pid} ] || sleep 2\nexec {real} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setattr(stack_dump, "_program", lambda: str(slow))
    monkeypatch.setattr(stack_dump, "BELOW_S", 0.1)
    [group] = asyncio.run(stacks_of([LookedAt(0, process.pid)], looks=2, apart_s=0.05))
    assert group.threads and not group.below


def test_a_worker_that_was_stopped_is_still(start: Start) -> None:
    process = start(MOVES)
    process.send_signal(signal.SIGSTOP)

    def seen() -> bool:
        [group] = asyncio.run(stacks_of([LookedAt(0, process.pid)], looks=2, apart_s=0.1))
        return group.activity is Activity.STILL and group.state == "stopped"

    assert until(seen)


def test_one_look_tells_nothing_of_that(start: Start) -> None:
    [group] = taken((0, start(SLEEPS).pid))
    assert group.activity is Activity.UNKNOWN


def test_stacks_that_cannot_be_read_are_tried_once_and_counters_tell_the_rest(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tries = tmp_path / "tries"
    refuses = tmp_path / "py-spy"
    says = "echo 'Error: Permission denied' >&2"
    refuses.write_text(f"#!/bin/sh\necho x >> {tries}\n{says}\nexit 1\n")
    refuses.chmod(0o755)
    monkeypatch.setattr(stack_dump, "_program", lambda: str(refuses))
    process = start(SPINS)
    [group] = asyncio.run(stacks_of([LookedAt(0, process.pid)], looks=3, apart_s=0.2))
    assert "Permission denied" in group.why and group.threads == ()
    assert group.activity is Activity.BUSY
    assert tries.read_text().count("x") == 2, "once, and once without stopping the process"


def test_what_the_kernel_has_it_wait_for_is_told(start: Start) -> None:
    """A read, of which Python's stack shows no more than of a lock."""
    process = start(
        "def reads():\n    print('up', flush=True)\n    open(pipe[0]).read()\n"
        "import os; pipe = os.pipe()\nreads()\n"
    )
    if not Path("/proc/self/wchan").exists():
        pytest.skip("the kernel does not say what a thread waits in")

    def told() -> bool:
        [group] = taken((0, process.pid))
        return "pipe_read" in group.sleeps_in

    assert until(told)


def test_a_sleep_that_our_own_look_has_interrupted_is_not_taken_for_a_wait_outside(
    start: Start,
) -> None:
    """The kernel goes on with it by another way, of which only the entry is seen."""
    process = start(
        "import ctypes\ndef holds():\n    print('up', flush=True)\n"
        "    ctypes.PyDLL(None).sleep(100_000)\nholds()\n"
    )
    assert until(lambda: stands_in(taken((0, process.pid))[0], "holds"))
    asleep: list[str] = []

    def slept_again() -> bool:
        [group] = taken((0, process.pid))
        asleep.extend([group.sleeps_in] if group.state == "sleeping" else [])
        return len(asleep) > 1

    assert until(slept_again)
    assert all(not place or place.startswith(AMONG_THREADS) for place in asleep), asleep


def test_what_it_waits_in_is_asked_before_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Afterwards it may not have got a processor yet to go on waiting, and nothing is told."""
    places = ["request_wait_answer", ""]
    monkeypatch.setattr(stack_dump, "_sleeps_in", lambda _pid: places[0])

    async def stopped(pid: int, _turns: object) -> list[ThreadStack]:
        places.pop(0)
        return [ThreadStack(name="MainThread", pid=pid, frames=("reads (train.py:7)",))]

    monkeypatch.setattr(stack_dump, "_process", stopped)
    monkeypatch.setattr(psutil.Process, "status", lambda _: psutil.STATUS_SLEEPING)
    [group] = taken((0, os.getpid()))
    assert group.sleeps_in == "request_wait_answer"


def test_a_main_thread_without_a_python_frame_is_not_taken_for_another_one(start: Start) -> None:
    """As where `atexit` has called a function in C."""
    process = start(
        "import atexit\ndef other():\n    time.sleep(1e6)\n"
        "threading.Thread(target=other, daemon=True).start()\n"
        "atexit.register(time.sleep, 1e6)\nprint('up', flush=True)\n"
    )
    assert until(lambda: len(taken((0, process.pid))[0].threads) > 1 and not main_of(process))


def main_of(process: "subprocess.Popen[bytes]") -> tuple[str, ...]:
    """Its main thread's frames."""
    [group] = taken((0, process.pid))
    assert group.threads[0].name == "MainThread"
    return group.frames
