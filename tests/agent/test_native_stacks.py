"""Frames of C of all workers, for whoever asks; where they cannot be read, that is said."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.agent import looks, stack_dump
from holdfast.agent.native_stacks import native_stacks_of
from holdfast.agent.stack_dump import LookedAt
from holdfast.agent.workers import Worker
from holdfast.messages import Assignment, Stacks, TakeStacks
from holdfast.page import Page
from holdfast.stacks import StackGroup
from tests.agent.test_stack_dump import HAS_CHILDREN, IN_C, PRINTED, Start, start
from tests.patience import until

__all__ = ["start"]
REFUSED = (
    'case "$*" in *--native*) echo "Error: Permission denied (os error 13)" >&2; exit 1;; esac'
)
TOO_LONG = 'case "$*" in *--native*) echo "["; exec sleep 100000;; esac'


def taken(*pids: int, within_s: float = 100.0) -> tuple[StackGroup, ...]:
    workers = (LookedAt(rank, pid) for rank, pid in enumerate(pids))
    return asyncio.run(native_stacks_of(workers, within_s))


def fake(folder: Path, monkeypatch: pytest.MonkeyPatch, refusal: str) -> None:
    """A py-spy that reads Python only."""
    program = folder / "py-spy"
    program.write_text(f"#!/bin/sh\n{refusal}\n{PRINTED}\n")
    program.chmod(0o755)
    monkeypatch.setattr(stack_dump, "_program", lambda: str(program))


def test_a_worker_is_shown_with_the_frames_of_c_below_its_python(start: Start) -> None:
    process = start(IN_C)

    def seen() -> bool:
        [group] = taken(process.pid)
        names = [frame.partition(" (")[0] for frame in group.frames]
        assert not group.why
        return "stuck" in names and any("sleep (libc" in one for one in group.frames)

    assert until(seen), taken(process.pid)
    assert process.poll() is None, "it goes on"


def test_its_processes_are_shown_beside_it(start: Start) -> None:
    process = start(HAS_CHILDREN)
    [group] = taken(process.pid)
    assert group.threads[0].pid == process.pid
    below = [one for one in group.threads if one.pid != process.pid]
    assert below and any("loads" in frame for frame in below[0].frames)


def test_where_py_spy_may_not_or_cannot_its_reason_is_told_beside_the_python_frames(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path, monkeypatch, REFUSED)
    [group] = taken(start(IN_C).pid)
    assert group.why == "no frames of C: py-spy: Permission denied (os error 13)"
    assert group.frames == ("sleep (libc.so.6)",)


def test_all_of_a_node_are_given_up_when_the_time_is_over(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = [start(IN_C) for _ in range(3)]
    fake(tmp_path, monkeypatch, TOO_LONG)
    groups = taken(*(process.pid for process in processes), within_s=0.5)
    told = {one.why for one in groups}
    assert all(why.startswith("no frames of C: ") for why in told)
    assert "no frames of C: there was no time left for it" in told, "two are read at once"
    assert sum(one.count for one in groups) == 3 and all(one.threads for one in groups)


def test_of_the_one_rank_that_is_asked_for_no_other_worker_is_paused(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = tmp_path / "read"
    fake(tmp_path, monkeypatch, f'echo "$@" >> {read}')
    workers = [_worker(rank, start(IN_C).pid) for rank in range(2)]
    order = TakeStacks(number=3, native=True, rank=1)
    told = asyncio.run(looks.obey(order, workers, lambda _rank: False))
    assert isinstance(told, Stacks) and told.number == 3
    assert [one.ranks for one in told.groups] == [((1, 1),)]
    paused = read.read_text()
    assert str(workers[1].pid) in paused and str(workers[0].pid) not in paused


def _worker(rank: int, pid: int) -> Worker:
    """One whose stacks are read from outside."""
    nothing: Any = None
    fd = Page.create()
    page = Page(fd)
    os.close(fd)
    given = Assignment(attempt=1, rank=rank, local_rank=rank, world_size=2, redo_until=0, env={})
    return Worker(rank, rank, page=page, output=nothing, pid=pid, assignment=given)


def test_one_that_a_signal_has_stopped_is_not_waited_for(start: Start) -> None:
    process = start(IN_C)
    os.kill(process.pid, signal.SIGSTOP)
    assert until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    [group] = taken(process.pid)
    assert "it is in state stopped" in group.why and "stuck" in str(group.frames)
    process.send_signal(signal.SIGCONT)


def test_of_one_that_has_ended_nothing_more_is_said(start: Start) -> None:
    process = start(IN_C)
    process.kill()
    process.wait()
    [group] = taken(process.pid)
    assert group.why == "the process has ended" and not group.threads
