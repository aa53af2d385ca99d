"""A worker that nobody can ask and nobody may read has its stacks written by a handler in C."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
import pytest

from holdfast import dumped_stacks, flight_recorder
from holdfast.agent import dump_memory, recorders, stack_dump
from holdfast.agent.dump_memory import DumpMemory
from holdfast.dumped_stacks import DumpOffer
from holdfast.messages import Stacks, TakeStacks
from holdfast.stacks import LEFT_OUT, MAX_FRAMES, Activity, StackGroup
from tests.agent.conftest import Node
from tests.agent.controller_stub import StubController
from tests.agent.controller_stub import until as awaited
from tests.patience import until

BEGIN = """
import ctypes, faulthandler, json, os, signal, sys, threading, time
from holdfast import dumped_stacks, flight_recorder
def offered():
    return json.loads(os.pread(int(os.environ["MEMORY"]), 65536, 0).partition(b"\\n")[0])["signal"]
def hold():  # the GIL, until a line comes
    print("ready", flush=True)
    ctypes.PyDLL(None).getchar()
def lasts(): time.sleep(1e6)
"""
ANSWER = "flight_recorder.answer_from_now_on()\n"
OFFER = "dumped_stacks.offer()\n"
END = "print('on', flush=True)\nsys.stdin.read()\n"


class Worker:
    """A process that has printed "ready", and our ends of what it answers on."""

    def __init__(self, process: "subprocess.Popen[str]", dump: DumpMemory, fd: int) -> None:
        self.process, self.dump, self.fd = process, dump, fd
        self.recorder: recorders.Recorder
        assert process.stdout is not None and process.stdin is not None
        self.out, self.into = process.stdout, process.stdin

    def looked_at(self, looks: int = 1) -> StackGroup:
        one = stack_dump.LookedAt(3, self.process.pid, self.recorder.stacks, self.dump.stacks)
        [group] = asyncio.run(stack_dump.stacks_of([one], looks, 0.01))
        return group

    def goes_on(self) -> str:
        """It gets its line, and ends; what it prints."""
        told, _ = self.process.communicate("\n")
        assert self.process.returncode == 0, self.process.returncode
        return told


@pytest.fixture(autouse=True)
def _nobody_may_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_dump, "_program", lambda: "/nowhere/py-spy")
    monkeypatch.setattr(recorders, "ANSWER_S", 0.3)


@contextmanager
def worker(script: str, begin: str = BEGIN + ANSWER) -> Iterator[Worker]:
    recorder, theirs = recorders.socket_pair()
    dump, fd = DumpMemory.pair()
    environment = {
        **os.environ,
        flight_recorder.VARIABLE: str(theirs.fileno()),
        dumped_stacks.VARIABLE: str(fd),
        "MEMORY": str(fd),
    }
    with subprocess.Popen(
        [sys.executable, "-c", begin + script], env=environment, text=True,
        pass_fds=[theirs.fileno(), fd], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        theirs.close()
        found = Worker(process, dump, fd)
        found.recorder = recorder
        assert found.out.readline() == "ready\n"
        try:
            yield found
        finally:
            for child in psutil.Process(process.pid).children() if process.poll() is None else ():
                child.kill()
            process.kill()
            recorder.close()
            dump.close()
            os.close(fd)


def stands_in(group: StackGroup, function: str) -> bool:
    return any(frame.startswith(f"{function} (") for frame in group.frames)


def has_signal(pid: int) -> bool:
    return any(one.pending for one in dump_memory._threads(pid).values())


HOLDS = """
threading.Thread(target=lasts, name="feeder", daemon=True).start()
class Model:
    def step(self): hold()
Model().step()
"""


def test_where_a_worker_that_holds_the_gil_stands_is_seen_and_it_goes_on() -> None:
    with worker(OFFER + HOLDS + END) as found:
        assert until(lambda: stands_in(found.looked_at(), "hold"))
        assert until(lambda: found.looked_at(3).activity is Activity.STILL)
        group = found.looked_at(3)
        assert group.why == ""
        assert [frame.partition(" (")[0] for frame in group.frames] == ["<module>", "step", "hold"]
        assert group.threads[0].name == "MainThread" and group.threads[0].pid == found.process.pid
        assert any("lasts" in thread.frames[-1] for thread in group.threads[1:])
        assert not any("(/" in frame for thread in group.threads for frame in thread.frames)
        assert found.goes_on() == "on\n"


def test_a_worker_that_answers_by_itself_is_sent_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr(recorders, "ANSWER_S", 60.0)
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda _fd, number: sent.append(number))
    with worker(f"{OFFER}print('ready', flush=True)\nlasts()\n") as found:
        assert until(lambda: stands_in(found.looked_at(), "lasts"))
    assert sent == []


TAKES = {
    "handler": "signal.signal(offered(), lambda *_: calls.append(1))",
    "default": "faulthandler.unregister(offered())",
    "ignored": "signal.signal(offered(), signal.SIG_IGN)",
    "C": "ctypes.CDLL(None).signal(offered(), C)",
}
TAKEN = """
calls = []
C = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda _: calls.append(1))
{}
print("ready", flush=True)
sys.stdin.readline()
hold()
print(len(calls), flush=True)
"""


@pytest.mark.parametrize("how", TAKES)
def test_a_script_that_handles_the_signal_itself_never_gets_it_from_us(how: str) -> None:
    with worker(OFFER + TAKEN.format(TAKES[how])) as found:
        assert until(
            lambda: "no process group" in asyncio.run(found.recorder.ask(1, kinds=False)).why
        )
        found.into.write("\n")
        found.into.flush()
        assert found.out.readline() == "ready\n"
        assert until(lambda: found.looked_at().threads == ())
        assert "py-spy cannot be started" in found.looked_at().why
        assert found.goes_on() == "0\n"


def test_a_handler_of_the_script_works_as_without_us_and_so_does_its_faulthandler() -> None:
    script = """
own = os.memfd_create("own")
faulthandler.enable(file=own)
faulthandler.register(signal.SIGUSR1, file=own)
taken = []
signal.signal(signal.SIGRTMAX - 1, lambda *_: taken.append(1))
dumped_stacks.offer()
os.kill(os.getpid(), signal.SIGUSR1)
os.kill(os.getpid(), signal.SIGRTMAX - 1)
def late(*_): taken.append(2)
former = signal.signal(offered(), late)
os.kill(os.getpid(), offered())
assert taken == [1, 2] and former is signal.SIG_DFL and signal.getsignal(offered()) is late
assert b"most recent call first" in os.pread(own, 1000, 0)
hold()
"""
    with worker(script) as found:
        head = os.pread(found.fd, 65536, 0).partition(b"\n")[0]
        assert msgspec.json.decode(head)["signal"] == signal.SIGRTMAX - 2, "the first is taken"
        assert found.goes_on() == ""


FORKS = """
if os.fork() == 0:
    lasts()
import subprocess
subprocess.Popen(["sleep", "1000"])
hold()
"""


def test_processes_that_it_has_forked_are_seen_and_other_programs_left_alone() -> None:
    with worker(OFFER + FORKS) as found:
        children = psutil.Process(found.process.pid).children
        assert until(lambda: {one.name() for one in children()} > {"sleep"})

        def seen() -> list[str]:
            return [
                f for t in found.looked_at().threads for f in t.frames if t.pid != found.process.pid
            ]

        assert until(lambda: any(frame.startswith("lasts") for frame in seen()))
        assert stands_in(found.looked_at(), "hold")
        assert len(children()) == 2 and all(one.is_running() for one in children())
        asked = [asyncio.run(found.dump.stacks(one.pid)) for one in children()]
        assert sorted(map(bool, asked)) == [False, True]


def test_a_worker_that_is_stopped_is_not_asked_and_finds_nothing_when_it_goes_on() -> None:
    with worker(OFFER + HOLDS + END) as found:
        os.kill(found.process.pid, signal.SIGSTOP)
        stopped = psutil.STATUS_STOPPED
        assert until(lambda: psutil.Process(found.process.pid).status() == stopped)
        group = found.looked_at()
        assert group.threads == () and group.state == "stopped"
        assert not has_signal(found.process.pid)
        os.kill(found.process.pid, signal.SIGCONT)
        assert until(lambda: stands_in(found.looked_at(), "hold")), "and can be asked again"


BLOCKS = f"{OFFER}signal.pthread_sigmask(signal.SIG_BLOCK, [offered()])\nhold()\n"


def test_where_the_main_thread_blocks_the_signal_another_one_writes() -> None:
    with worker(BLOCKS) as found:
        assert until(lambda: stands_in(found.looked_at(), "hold"))
        assert found.goes_on() == ""


def test_where_all_do_it_is_sent_once_and_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dump_memory, "ANSWER_S", 0.1)
    with worker(BLOCKS, BEGIN) as found:
        assert found.looked_at().threads == ()
        assert until(lambda: has_signal(found.process.pid))
        assert found.looked_at().threads == ()
        assert found.goes_on() == ""


def test_a_stack_of_any_depth_is_cut() -> None:
    deep = "def down(n):\n    down(n - 1) if n else hold()\ndown(500)\n"
    with worker(OFFER + deep) as found:
        assert until(lambda: stands_in(found.looked_at(), "hold"))
        assert len(found.looked_at().frames) == MAX_FRAMES
        assert found.looked_at().frames[0] == LEFT_OUT, "faulthandler tells the innermost"


def test_who_has_ended_or_never_offered_it_is_not_asked() -> None:
    with worker("hold()\n") as found:
        assert asyncio.run(found.dump.stacks(found.process.pid)) == ()
        assert found.goes_on() == ""
        assert asyncio.run(found.dump.stacks(found.process.pid)) == ()


# ── what a dump says ──

OFFERED = DumpOffer(signal=62, fd=9, main=0x7F01, folders=("/usr/lib/python3.14", "/code"))
DUMP = """Thread 0x0000000000007f02 [feeder] (most recent call first):
  File "/usr/lib/python3.14/threading.py", line 320 in wait
  File "/code/data.py", line 7 in feed

Thread 0x0000000000007f03 (most recent call first):
  <no Python frame>

Current thread 0x0000000000007f01 [python] (most recent call first):
  File "/code/my model.py", line ??? in step
  File "/other/x.py", line 3 in <module>
  ...
"""


def test_a_dump_reads_as_other_stacks_do() -> None:
    main, feeder = dumped_stacks.read(DUMP, OFFERED, 5)
    assert (main.name, main.pid) == ("MainThread", 5)
    assert main.frames == (LEFT_OUT, "<module> (/other/x.py:3)", "step (my model.py:???)")
    assert feeder.frames == ("feed (data.py:7)", "wait (threading.py:320)")


def test_a_stack_that_was_cut_without_a_word_was_cut() -> None:
    head, frame = DUMP.splitlines()[-4], '  File "/code/a.py", line 3 in down'
    for more in ([], ["  ..."]):
        (main,) = dumped_stacks.read("\n".join([head, *[frame] * 100, *more]), OFFERED, 5)
        assert main.frames[0] == LEFT_OUT
    (main,) = dumped_stacks.read("\n".join([head, *[frame] * 5]), OFFERED, 5)
    assert main.frames == ("down (a.py:3)",) * 5


def test_a_dump_without_its_main_thread_tells_nothing_unless_another_one_has_forked() -> None:
    forked = msgspec.structs.replace(OFFERED, main=0x1)
    assert dumped_stacks.read(DUMP, forked, 5)[0].frames[-1] == "step (my model.py:???)"
    assert dumped_stacks.read(f"{DUMP}\n...\n", forked, 5) == ()
    assert dumped_stacks.read("", OFFERED, 5) == ()


# ── by an agent ──

LOCKS_UP = """
import ctypes
lock, libc = ctypes.create_string_buffer(64), ctypes.PyDLL(None)
def step():
    libc.pthread_mutex_lock(lock)
    print("stuck", flush=True)
    libc.pthread_mutex_lock(lock)
step()
"""
NOT_HERE = """
import sys
if "holdfast.agent" in sys.orig_argv:
    from holdfast.agent import stack_dump
    stack_dump._program = lambda: "/nowhere/py-spy"
"""


def answer_to(controller: StubController, number: int) -> StackGroup:
    def told() -> list[StackGroup]:
        known = [one for one in controller.answers if isinstance(one, Stacks)]
        return [group for one in known if one.number == number for group in one.groups]

    return awaited(told, "stacks")[0]


def test_an_agent_that_may_not_trace_sees_a_worker_that_holds_the_gil(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(NOT_HERE)
    folders = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(folders))
    controller, agent = node(LOCKS_UP, fresh=True)
    controller.ready()
    controller.start()
    awaited(lambda: "stuck" in agent.log(), "the worker to hang")
    controller.send(TakeStacks(number=1))
    assert stands_in(answer_to(controller, 1), "step")
    assert _seen_for_long_enough(controller) is Activity.STILL
    controller.stop()


def _seen_for_long_enough(controller: StubController) -> Activity:
    """Looks take processor time of the worker, and where there is none it is in doubt whether it
    computes: the longer between them, the less that is."""
    for number in range(2, 10):
        controller.send(TakeStacks(number=number, looks=3, apart_s=0.1 * 2 ** (number - 2)))
        group = answer_to(controller, number)
        assert stands_in(group, "step")
        if group.activity is Activity.STILL:
            break
    return group.activity
