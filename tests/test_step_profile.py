"""A worker profiles its steps when its page says so, and does nothing in any other step."""

import gc
import json
import mmap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast import step_profile
from holdfast.page import Page
from holdfast.profile_slot import ProfileOrder
from holdfast.step_profile import StepProfiler
from holdfast.train.progress import ProgressReporter
from tests.patience import PATIENCE_S


class Worker:
    """One that does a small step, and writes down its sections."""

    def __init__(self, folder: Path) -> None:
        self.page = Page(Page.create())
        self.slot = self.page.profile
        self.trace = folder / "trace.json"
        self.sections: list[str] = []
        self.profiler = StepProfiler(self.slot, self._section)
        self.step = 0

    @property
    def stage(self) -> str:
        return self.slot.stage.name

    @contextmanager
    def _section(self) -> Iterator[None]:
        self.sections.append(self.stage)
        yield

    def ask(self, number: int, steps: int = 2, after: int = 0, within_s: float = 60.0) -> None:
        path = str(self.trace)
        order = ProfileOrder(steps=steps, after=after, path=path, within_s=within_s)
        self.slot.ask(number, order)

    def why(self, number: int) -> str:
        """Why there is none; empty if there is one."""
        notes = self.slot.answer_to(number)
        assert notes is not None
        return notes.why

    def do(self, steps: int) -> None:
        for _ in range(steps):
            torch.ones(4, 4).mm(torch.ones(4, 4))
            self.profiler.waited(0.001)
            self.step += 1
            self.profiler.step_ended(self.step)


def records() -> bool:
    autograd: Any = torch.autograd
    return bool(autograd._profiler_enabled())


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(tmp_path)


def test_the_steps_that_were_asked_for_are_in_the_trace(worker: Worker) -> None:
    worker.do(3)
    worker.ask(1, steps=2, after=5)
    worker.do(1)
    assert worker.stage == "ASKED", "it begins after step 5"
    worker.do(1)
    assert worker.stage == "PREPARING" and worker.slot.answer_to(1) is None
    worker.do(2)
    assert worker.stage == "RECORDING"
    worker.do(1)
    notes = worker.slot.answer_to(1)
    assert notes is not None and not notes.why
    assert (notes.first_step, len(notes.ends_ns), len(notes.waits_ns)) == (7, 3, 2)
    assert worker.sections == ["PREPARING", "WRITING"], "it says what keeps it from training"
    events = json.loads(worker.trace.read_text())["traceEvents"]
    assert [e["name"] for e in events if e.get("cat") == "cpu_op"].count("aten::mm") == 2


def test_in_other_steps_nothing_is_done(worker: Worker) -> None:
    worker.do(1)
    assert not records() and worker.slot.answer_to(0) is None
    worker.ask(1, steps=1)
    worker.do(4)
    first = worker.slot.answer_to(1)
    worker.trace.unlink()
    worker.do(5)
    assert not records() and not worker.trace.exists()
    assert worker.slot.answer_to(1) == first
    worker.ask(2, steps=1)
    worker.do(4)
    assert (again := worker.slot.answer_to(2)) is not None and not again.why


@pytest.mark.parametrize("done", [1, 2, 3])
def test_a_wish_that_is_taken_back_leaves_nothing(worker: Worker, done: int) -> None:
    worker.ask(1, steps=2)
    worker.do(done)
    assert records() == (done > 1)
    worker.slot.withdraw()
    worker.do(1)
    assert not records() and not worker.trace.exists()
    worker.ask(2, steps=1)
    worker.do(3)
    assert (notes := worker.slot.answer_to(2)) is not None and not notes.why


def test_a_loop_that_ends_before_says_so(worker: Worker) -> None:
    worker.ask(4, steps=20)
    worker.do(5)
    worker.profiler.give_up("the training loop ended before that")
    notes = worker.slot.answer_to(4)
    assert notes is not None and notes.why == "the training loop ended before that"
    assert not worker.trace.exists() and not records()


def test_a_script_with_a_profiler_of_its_own_keeps_it(worker: Worker) -> None:
    with torch.profiler.profile() as own:
        worker.ask(1)
        worker.do(5)
        notes = worker.slot.answer_to(1)
        assert notes is not None and "torch.profiler of its own" in notes.why
    assert any(event.key == "aten::mm" for event in own.key_averages())


def test_a_profiler_that_the_script_begins_meanwhile_gets_its_events(worker: Worker) -> None:
    worker.ask(1, steps=3)
    worker.do(2)
    with torch.profiler.profile() as own:
        worker.do(1)
    assert any(event.key == "aten::mm" for event in own.key_averages())
    worker.do(3)
    notes = worker.slot.answer_to(1)
    assert notes is not None and "torch.profiler of its own" in notes.why
    assert not records() and not worker.trace.exists()
    before = torch.autograd.profiler.profile._prepare_trace
    worker.ask(2, steps=1)
    worker.do(3)
    assert (again := worker.slot.answer_to(2)) is not None and not again.why
    assert torch.autograd.profiler.profile._prepare_trace is before, "nothing of ours is left"


def test_a_profiler_that_the_script_begins_meanwhile_goes_on_over_steps(worker: Worker) -> None:
    worker.ask(1, steps=2)
    worker.do(2)
    own = torch.profiler.profile()
    own.start()
    worker.do(5)
    own.stop()
    assert sum(event.count for event in own.key_averages() if event.key == "aten::mm") == 5


def test_a_profiler_of_the_script_that_waits_is_seen_where_there_is_no_garbage(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = torch.profiler.profile(schedule=torch.profiler.schedule(wait=9, warmup=1, active=1))
    collect = gc.collect

    def nothing_left() -> int:
        collect()
        return 0

    monkeypatch.setattr(gc, "collect", nothing_left)
    worker.ask(1, steps=1)
    worker.do(4)
    assert "torch.profiler of its own" in worker.why(1)
    assert own.profiler is None


@pytest.mark.parametrize("scheduled", [False, True])
def test_a_profiler_of_the_script_that_is_over_holds_up_nothing(
    worker: Worker, scheduled: bool
) -> None:
    once = torch.profiler.schedule(wait=1, warmup=1, active=1, repeat=1)
    own = torch.profiler.profile(schedule=once if scheduled else None)
    with own:
        worker.ask(1)
        for _ in range(4):
            worker.do(1)
            own.step()
    assert "torch.profiler of its own" in worker.why(1)
    worker.ask(2, steps=1)
    worker.do(4)
    assert worker.why(2) == ""
    assert own.key_averages() is not None, "and it keeps what it has"


def test_whether_there_is_another_profiler_is_looked_for_in_a_section(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    def taken() -> str:
        seen.append(list(worker.sections))
        return "taken"

    monkeypatch.setattr(step_profile, "_taken_elsewhere", taken)
    worker.ask(1)
    worker.do(1)
    assert seen == [["PREPARING"]] and worker.why(1) == "taken"


def test_what_goes_wrong_is_told_and_never_raised(worker: Worker) -> None:
    there, worker.trace = worker.trace, worker.trace.parent / "no" / "folder" / "trace.json"
    worker.ask(1, steps=1)
    worker.do(4)
    assert "Kineto wrote no trace" in worker.why(1) and not records()
    worker.trace = there
    worker.ask(2, steps=1)
    worker.do(4)
    assert worker.why(2) == "" and worker.trace.exists()
    worker.slot._order[:4] = b"\xff\xff\xff\xff"
    worker.slot._words[0] = 9
    worker.do(2)
    assert (broken := worker.slot.answer_to(9)) is not None and "Error" in broken.why


def compute_until_answered(worker: Worker, number: int) -> None:
    """In which no step ends."""
    a, until = torch.ones(4, 4, requires_grad=True), time.monotonic() + PATIENCE_S
    while worker.slot.answer_to(number) is None:
        assert time.monotonic() < until
        (a * 2).sum().backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("bound", ["time", "memory", "cancelled"])
def test_what_goes_on_without_bounds_is_ended_though_no_step_ends(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(step_profile, "LOOK_S", 0.01)
    if bound == "memory":
        monkeypatch.setattr(step_profile, "GROWTH_BYTES", -(1 << 40))
    worker.ask(1, steps=5, within_s=0.01 if bound == "time" else 60.0)
    worker.do(2)
    if bound == "cancelled":
        worker.slot.withdraw()
    compute_until_answered(worker, 1)
    words = {"time": "did not finish within 0.01 s", "memory": "MiB of memory", "cancelled": bound}
    assert words[bound] in worker.why(1) and not records() and not worker.trace.exists()
    monkeypatch.undo()
    worker.ask(2, steps=1)
    worker.do(4)
    assert worker.why(2) == ""


class Memory:
    """What the process takes, and how often it was looked at."""

    def __init__(self) -> None:
        self.taken, self.looks = 100 << 20, 0

    def look(self) -> int:
        self.looks += 1
        return self.taken

    def step(self, worker: Worker, bytes_: int) -> None:
        """One in which so much is taken for a while, and seen."""
        self.taken += bytes_
        seen, until = self.looks, time.monotonic() + PATIENCE_S
        while worker.profiler._recording is not None and self.looks < seen + 2:
            assert time.monotonic() < until
        self.taken -= bytes_
        worker.do(1)


def test_what_each_step_takes_and_gives_back_is_not_the_recording(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory()
    monkeypatch.setattr(step_profile, "LOOK_S", 0.001)
    monkeypatch.setattr(step_profile, "_own_bytes", memory.look)
    worker.ask(1, steps=2)
    for _ in range(4):
        memory.step(worker, 1 << 30)
    assert worker.why(1) == ""
    worker.ask(2, steps=2)
    for taken in (1 << 30, 1 << 30, (1 << 30) + step_profile.GROWTH_BYTES + 1, 0):
        memory.step(worker, taken)
    assert "grew by more than 256 MiB" in worker.why(2)


def test_memory_of_snapshots_is_not_counted_and_the_process_s_own_is() -> None:
    size = 64 << 20
    before = step_profile._own_bytes()
    with mmap.mmap(-1, size) as shared:
        shared.write(b"x" * size)
        assert step_profile._own_bytes() - before < size // 2
    own = bytearray(b"x" * size)
    assert step_profile._own_bytes() - before > size // 2 and len(own) == size


def test_where_another_thread_trains_it_ends_at_the_end_of_a_step(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_profile, "LOOK_S", 0.01)
    until = time.monotonic() + PATIENCE_S

    def train() -> None:
        worker.ask(1, steps=10**6, within_s=0.01)
        while worker.slot.answer_to(1) is None and time.monotonic() < until:
            worker.do(1)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert "did not finish within 0.01 s" in worker.why(1) and not records()


def test_a_section_of_the_script_ends_what_is_recorded_and_not_what_is_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, reporter = Worker(tmp_path), ProgressReporter(None, 0)
    ours = StepProfiler(worker.slot, lambda: reporter.section(step_profile.SECTION))
    worker.profiler = ours
    monkeypatch.setattr(step_profile, "_profiler", ours)
    worker.ask(1, steps=2, after=3)
    worker.do(1)
    with reporter.section("eval"):
        assert worker.slot.answer_to(1) is None
    worker.do(3)
    assert records()
    with reporter.section("eval"):
        assert not records()
    assert worker.why(1) == "the script entered section 'eval' meanwhile"
    worker.ask(2, steps=1)
    worker.do(4)
    assert worker.why(2) == "", "its own sections end nothing"


def test_the_slot_lies_in_the_page_and_touches_nothing_else_of_it() -> None:
    page = Page(Page.create())
    page.section("eval")
    page.profile.ask(3, ProfileOrder(steps=50, after=7, path="/x" * 1000))
    assert page.report(0, 1, 0.0).section == "eval"
    assert page.profile.order().path == "/x" * 1000 and page.profile.wanted == 3
    with pytest.raises(ValueError, match="too long"):
        page.profile.ask(4, ProfileOrder(steps=50, after=7, path="x" * 5000))
    page.begin_again()
    assert page.profile.wanted == 0
    page.close()
    with pytest.raises(ValueError, match="released"):
        _ = page.profile.wanted
