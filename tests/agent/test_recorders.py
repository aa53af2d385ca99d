"""Asking real processes which collectives they have entered."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from holdfast import flight_recorder
from holdfast.agent import recorders, stack_dump
from holdfast.agent.recorders import Recorder
from holdfast.collectives import CollectiveLog, CollectivePace
from holdfast.stacks import Activity, StackGroup
from tests.patience import PATIENCE_S, until
from tests.warm import PIPE, Script

BEGIN = "from holdfast import flight_recorder; flight_recorder.answer_from_now_on()\n"
ALONE = """
import os, sys, tempfile, torch
import torch.distributed as dist
file = tempfile.mktemp()
dist.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=1)
for size in (3, 4, 5):
    dist.all_reduce(torch.ones(size))
    flight_recorder.step_ended(size)
dist.barrier()
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def answering(
    script: str, *, warm: bool = False
) -> Iterator[tuple[Recorder, "subprocess.Popen[str]"]]:
    """A process that has printed one line, and our end of its socket; a `warm` one has torch."""
    recorder, theirs = recorders.socket_pair()
    environment = {
        **os.environ,
        flight_recorder.VARIABLE: str(theirs.fileno()),
        flight_recorder.SIZE: "8",
    }
    how: dict[str, Any] = {"env": environment, "pass_fds": [theirs.fileno()], "text": True}
    how |= {"stdin": PIPE, "stdout": PIPE}
    words = [BEGIN + script]
    with (
        Script(words, **how) if warm else subprocess.Popen([sys.executable, "-c", *words], **how)
    ) as process:
        theirs.close()
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield recorder, process
        finally:
            process.kill()
            recorder.close()


def ask(recorder: Recorder, recent: int = 8, *, kinds: bool = True) -> CollectiveLog:
    return asyncio.run(asyncio.wait_for(recorder.ask(recent, kinds=kinds), PATIENCE_S))


LOCKED = """
import threading
def feeds(): threading.Event().wait()
threading.Thread(target=feeds, name="feeder", daemon=True).start()
class Model:
    def waits(self, lock): lock.acquire(); print("ready", flush=True); lock.acquire()
Model().waits(threading.Lock())
"""


def test_where_nobody_can_look_from_outside_a_worker_tells_its_stacks_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As py-spy has them, which is asked for the same process."""
    with answering(LOCKED) as (recorder, process):

        def looks(count: int) -> StackGroup:
            one = stack_dump.LookedAt(3, process.pid, recorder.stacks)
            [group] = asyncio.run(stack_dump.stacks_of([one], count, 0.01))
            return group

        assert until(lambda: "Model.waits" in str(looks(1).frames[-1:]))
        outside = looks(1)
        monkeypatch.setattr(stack_dump, "_program", lambda: "/nowhere/py-spy")
        inside = looks(3)
        assert inside.why == "" and inside.activity is Activity.STILL
        assert inside.frames == outside.frames
        assert [t.name for t in inside.threads] == ["MainThread", "feeder"]
        assert "feeds" in str(inside.threads[1].frames)
        os.kill(process.pid, signal.SIGSTOP)
        assert "py-spy cannot be started" in looks(1).why, "it cannot answer, and that is said"


def test_a_worker_tells_the_newest_collectives_of_its_groups() -> None:
    with answering(ALONE, warm=True) as (recorder, _):
        (group,) = ask(recorder, 3).groups
        assert [c.kind for c in group.recent] == [
            "all_reduce float[4]",
            "all_reduce float[5]",
            "barrier",
        ]
        assert [c.sequence for c in group.recent] == [2, 3, 4]
        assert group.members == ((0, 1, 1),) and group.description == "default_pg"
        assert not group.last.pending
        times = [c.entered_us for c in group.recent]
        assert times == sorted(times) and times[0] > 1_000_000_000_000_000
        log = ask(recorder, 1, kinds=False)
        assert [(c.sequence, c.kind) for c in log.groups[0].recent] == [(4, "")]
        assert log.paces == (CollectivePace("0", ((0, 1, 1),), ((3, 1), (5, 3))),)
        assert [step for step, _ in log.steps] == [3, 4, 5]
        assert times[0] < log.steps[1][1] <= times[1], "of the same clock"


def test_ranks_tell_the_same_of_a_collective_to_which_only_one_gives_something() -> None:
    """Else every scatter was a collective that does not match, whatever had failed."""
    root = flight_recorder._Entry(
        ("0", "default_pg"), 8, "gloo:scatter", 1, input_sizes=[[2, 4, 16]], input_dtypes=["Float"]
    )
    other = msgspec.structs.replace(root, input_sizes=[], input_dtypes=[])
    assert flight_recorder._kind(root) == flight_recorder._kind(other) == "scatter"
    reduced = msgspec.structs.replace(root, profiling_name="gloo:all_reduce")
    assert flight_recorder._kind(reduced) == "all_reduce float[2, 4, 16]"


AGAIN = ALONE.replace(
    "dist.barrier()",
    """
clock, set_s = time.time_ns, float(sys.argv[1])
time.time_ns = lambda: clock() - int(set_s * 1e9)
flight_recorder.forget()
time.time_ns = clock
dist.all_reduce(torch.ones(6))
""",
).replace("import os", "import time, os")


@pytest.mark.parametrize("set_s", [-3600.0, 3600.0])
def test_of_an_attempt_that_a_worker_has_left_nothing_is_told_whatever_the_clock_is_set_to(
    set_s: float,
) -> None:
    with answering(AGAIN.replace("sys.argv[1]", str(set_s))) as (recorder, _):
        (group,) = ask(recorder).groups
        assert [c.kind for c in group.recent] == ["all_reduce float[6]"]


def test_a_worker_without_a_process_group_says_so() -> None:
    script = "import sys; print('ready', flush=True); sys.stdin.read()"
    with answering(script) as (recorder, _):
        log = ask(recorder)
        assert log.groups == () and "no process group" in log.why


def test_a_worker_that_holds_the_gil_is_given_up_and_its_late_answer_is_dropped() -> None:
    script = """
import ctypes, sys
from holdfast.agent import processes
print("ready", flush=True)
libc = ctypes.PyDLL(None)
libc.getchar()  # waits with the GIL
print("free", flush=True)
sys.stdin.read()
"""
    with answering(script) as (recorder, process):
        assert process.stdin is not None and process.stdout is not None
        end = time.monotonic() + PATIENCE_S
        while "did not answer" not in ask(recorder).why:
            assert time.monotonic() < end  # it has said that it is ready before it waits
        assert "did not answer" in ask(recorder).why
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "free\n"
        end = time.monotonic() + PATIENCE_S
        while "did not answer" in (why := ask(recorder).why) and time.monotonic() < end:
            pass  # on a busy machine a second is short
        assert "no process group" in why


def test_a_worker_that_has_died_cannot_be_asked() -> None:
    script = "import sys; print('ready', flush=True); sys.stdin.read()"
    with answering(script) as (recorder, process):
        process.kill()
        process.wait()
        assert "cannot be asked" in ask(recorder).why


def test_what_is_no_answer_is_refused() -> None:
    ours, theirs = socket.socketpair()
    recorder = Recorder(ours)
    with theirs:
        theirs.sendall(b"\xff" * 64)
        assert "cannot be asked" in ask(recorder).why
    recorder.close()
