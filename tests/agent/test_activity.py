"""What is counted as activity of a worker."""

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agent import activity
from holdfast.stacks import Activity, StackGroup


def process(pid: int, *children: Any) -> Any:
    """One thread that has used no processor yet."""
    times = SimpleNamespace(user=0.0, system=0.0, children_user=0.0, children_system=0.0)
    thread = SimpleNamespace(id=pid, user_time=0.0, system_time=0.0)
    found = SimpleNamespace(pid=pid, cpu_times=lambda: times, threads=lambda: [thread])
    found.children = lambda **_: [*children]
    return found


STILL = [StackGroup(ranks=((0, 0),), state="sleeping")]


def used(monkeypatch: pytest.MonkeyPatch, worker: Any, *counted: activity.Scheduled) -> Any:
    """Its usage, where its threads and children were scheduled like that: 1, 2 and so on."""
    monkeypatch.setattr(activity, "scheduled_of", lambda _pid, thread: counted[thread - 1])
    monkeypatch.setattr(activity, "_bytes", lambda _pid: 0)
    return activity.usage_of(worker)


@pytest.mark.parametrize("ran_s", [0.0, 0.9])
def test_a_worker_whose_compiler_gets_no_processor_is_busy(
    monkeypatch: pytest.MonkeyPatch, ran_s: float
) -> None:
    """Found on an overloaded machine: the compiler of torch.compile waited for a processor, and
    its worker, which waited for the compiler, was taken for one that hangs."""
    worker, idle = process(1, process(2)), activity.Scheduled(0.0, 0.0)
    before = used(monkeypatch, worker, idle, idle)
    after = used(monkeypatch, worker, idle, activity.Scheduled(ran_s, 5.0 - ran_s))
    assert activity.activity(STILL, before, after, 5.0) is Activity.BUSY
    assert activity.activity(STILL, before, before, 5.0) is Activity.STILL


def test_a_thread_that_wakes_up_now_and_then_keeps_no_worker_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found below a limit of a quarter of a processor: each time that a thread of gloo looked for
    news it waited for its turn, and ranks that hung counted as busy for as long as they did."""
    worker, idle = process(1, process(2)), activity.Scheduled(0.0, 0.0)
    before = used(monkeypatch, worker, idle, idle)
    after = used(monkeypatch, worker, activity.Scheduled(0.0, 0.1), activity.Scheduled(0.01, 4.6))
    assert activity.activity(STILL, before, after, 5.0) is Activity.STILL


def test_a_worker_that_got_no_processor_at_all_is_busy_though_none_of_its_waits_has_ended() -> None:
    usage = activity.Usage(0.0, 0.0, {1: activity.Scheduled(9.0, 1.0)}, 0)
    ready = StackGroup(ranks=((0, 0),), state="running", why="py-spy: Permission denied")
    asleep = StackGroup(ranks=((0, 0),), state="sleeping", why="py-spy: Permission denied")
    assert activity.activity([ready] * 3, usage, usage, 1.0) is Activity.BUSY
    assert activity.activity([ready, asleep, ready], usage, usage, 1.0) is Activity.STILL
    moved = usage._replace(scheduled={1: activity.Scheduled(9.01, 1.0)})
    assert activity.activity([ready] * 3, usage, moved, 1.0) is Activity.STILL


def test_a_kernel_that_counts_nothing_says_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"1": b"0 0 0\n", "2": b"5000000000 1000000000 7\n"}
    monkeypatch.setattr(activity, "content", lambda path: texts[path.split("/")[-2]])
    assert [activity.scheduled_of(1, 1), activity.scheduled_of(1, 2)] == [None, (5.0, 1.0, 7)]


def test_what_a_process_below_has_waited_for_counts_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of one compiler after the other that a pool of processes starts nothing would be seen."""
    idle = activity.Scheduled(0.0, 0.0)
    compiler, pool = process(3), process(2)
    before = used(monkeypatch, process(1, pool, compiler), idle, idle, idle)
    pool.cpu_times().children_user = 3.0
    after = used(monkeypatch, process(1, pool), idle, idle)
    assert activity.activity(STILL, before, after, 5.0) is Activity.BUSY


def test_where_the_kernel_counts_no_waiting_a_thread_that_is_ready_to_run_is_busy() -> None:
    usage, ready = activity.Usage(0.0, 0.0, {}, 0), [StackGroup(ranks=((0, 0),), state="running")]
    assert activity.activity(ready, usage, usage, 5.0) is Activity.BUSY
    assert activity.activity(STILL, usage, usage, 5.0) is Activity.STILL
