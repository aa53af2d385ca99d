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


def test_a_worker_whose_compiler_gets_no_processor_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found on an overloaded machine: the compiler of torch.compile waited for a processor, and
    its worker, which waited for the compiler, was taken for one that hangs."""
    starved = {1: 0.0, 2: 0.0}
    monkeypatch.setattr(activity, "_starved_s", lambda pid, _thread: starved[pid])
    monkeypatch.setattr(activity, "_bytes", lambda _pid: 0)
    worker = process(1, process(2))
    before = activity.usage_of(worker)
    starved[2] = 4.0
    looks = [StackGroup(ranks=((0, 0),), state="sleeping")]
    assert activity.activity(looks, before, activity.usage_of(worker), 5.0) is Activity.BUSY
    assert activity.activity(looks, before, before, 5.0) is Activity.STILL
