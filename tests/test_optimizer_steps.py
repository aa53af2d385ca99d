"""Steps of a script that does not report them: each is counted once, and nothing else changes."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from holdfast import optimizer_steps
from holdfast.events import Milestone
from holdfast.messages import WorkerReport
from holdfast.optimizer_steps import StepCount
from holdfast.page import Page
from tests.more import sample
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[1]


class Counted:
    """A page, and what the agent finds on it."""

    def __init__(self) -> None:
        self.fd = Page.create()
        self.page = Page(self.fd)

    @property
    def report(self) -> WorkerReport:
        """As the agent reads it."""
        return self.page.report(0, 1, time.monotonic())

    @property
    def steps(self) -> int:
        """How many."""
        return self.report.optimizer_steps

    def observe(self) -> None:
        """As in a worker that has just been forked."""
        optimizer_steps.observe(self.page)


@pytest.fixture
def idle() -> Iterator[Counted]:
    """A page of a process that is not observed yet."""
    counted = Counted()
    yield counted
    optimizer_steps.leave_to_the_script()
    counted.page.close()
    os.close(counted.fd)


@pytest.fixture
def counted(idle: Counted) -> Counted:
    """Of one that is."""
    idle.observe()
    return idle


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=vars(dist)["HashStore"](), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def parameter() -> torch.nn.Parameter:
    made = torch.nn.Parameter(torch.ones(3))
    made.grad = torch.full((3,), 0.1)
    return made


def sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter()], lr=0.1)


def step(optimizer: torch.optim.Optimizer, times: int = 1) -> None:
    for _ in range(times):
        optimizer.step()


# ── what is counted ───────────────────────────────────────────────────────────────────────────


def test_steps_are_counted_with_their_time_and_are_no_steps_of_the_training(idle: Counted) -> None:
    """Also those of an optimizer that is older than the hook."""
    optimizer = sgd()
    idle.observe()
    step(optimizer)
    first = idle.report
    assert (first.optimizer_steps, first.optimizer_step_time_s, first.phase) == (1, None, "step")
    assert list(first.milestones) == [Milestone.STEPPED]
    step(optimizer, 4)
    found = idle.report
    assert found.optimizer_steps == 5
    assert 0.0 <= found.optimizer_step_ago_s < PATIENCE_S
    assert found.optimizer_step_time_s is not None and found.optimizer_step_time_s > 0.0
    assert found.progress.step is None and found.step_time_s is None
    assert found.milestones[Milestone.STEPPED] > found.optimizer_step_ago_s


def test_one_line_says_so_and_how_to_turn_it_off(
    counted: Counted, capsys: pytest.CaptureFixture[str]
) -> None:
    assert capsys.readouterr().err == "", "nothing is said before there is a step"
    step(sgd(), 3)
    assert counted.steps == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("holdfast: optimizer steps are counted") and "instrument: off" in line


class Overriding(torch.optim.SGD):
    """A subclass as scripts write them."""

    def step(self, closure: Any = None) -> Any:
        """Something, then the step of its parent, which is hooked as well."""
        return super().step(closure)


class Own(torch.optim.Optimizer):
    """An optimizer that shares nothing with PyTorch's."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, _closure: Any = None) -> Any:
        """Its own arithmetic."""
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(p.grad, alpha=-0.1)


def overriding(p: Any) -> torch.optim.Optimizer:
    step(sgd())  # the parent class has been used, and so is hooked by itself
    return Overriding(p, lr=0.1)


def zero_redundancy(p: Any) -> torch.optim.Optimizer:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(p, torch.optim.AdamW, lr=0.1)


def scheduled(p: Any) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(p, lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    return optimizer


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.AdamW(p, foreach=True),
        lambda p: torch.optim.AdamW(p, fused=True),
        scheduled,
        Own,
        overriding,
        zero_redundancy,
    ],
    ids=["plain", "foreach", "fused", "scheduled", "own", "overriding", "zero"],
)
def test_each_step_counts_once_whatever_the_optimizer(
    idle: Counted, group: None, make: Callable[[Any], torch.optim.Optimizer]
) -> None:
    del group
    optimizer = make([parameter()])
    idle.observe()
    step(optimizer, 5)
    assert idle.steps == 5


def test_a_step_with_a_closure_is_one_however_often_that_is_called(counted: Counted) -> None:
    calls, p = [], parameter()
    optimizer: Any = torch.optim.LBFGS([p], max_iter=5)

    def closure() -> float:
        calls.append(1)
        optimizer.zero_grad()
        loss: Any = (p**4).sum()
        loss.backward()
        return float(loss.item())

    for _ in range(2):
        optimizer.step(closure)
    assert counted.steps == 2 and len(calls) > 4


@pytest.mark.slow
def test_a_compiled_step_is_counted_and_compiled_as_without(idle: Counted) -> None:
    """The hook is no part of what is compiled: neither more graphs nor other ones."""
    without = compiled()
    idle.observe()
    assert compiled() == without
    assert idle.steps == 4


def compiled() -> tuple[list[float], dict[str, int]]:
    """Four compiled steps; the parameters, and what the compiler did."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    p = parameter()
    optimizer = torch.optim.AdamW([p], lr=0.1)
    run = torch.compile(optimizer.step, backend="eager")
    for _ in range(4):
        run()
    return p.tolist(), {**counters["stats"], "frames": counters["frames"]["total"]}


def test_a_sharded_model_is_stepped_as_any(counted: Counted, group: None) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    del group
    model = torch.nn.Linear(4, 4)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert counted.steps == 3


def test_accumulated_gradients_make_one_step_and_a_scaler_that_skips_makes_none(
    counted: Counted,
) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for number in range(8):
        scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        if number % 2:
            if number == 3:
                model.weight.grad.fill_(float("inf"))  # type: ignore[union-attr]
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert counted.steps == 3


# ── several optimizers ────────────────────────────────────────────────────────────────────────


class Thing:
    """Any optimizer."""


def counted_of(turns: str) -> list[int]:
    """The number after each of these steps, one letter for each optimizer."""
    things, count = {name: Thing() for name in turns}, StepCount()
    numbers = []
    for at, name in enumerate(turns):
        count.takes(things[name], float(at))
        numbers.append(count.count)
    return numbers


def test_of_two_that_take_turns_the_first_is_counted() -> None:
    assert counted_of("ABABAB") == [1, 1, 2, 2, 3, 3]
    assert counted_of("ABCABC") == [1, 1, 1, 2, 2, 2]


def test_of_two_the_one_that_steps_more_often_is_counted() -> None:
    assert counted_of("AAAAABAAAAAB")[-1] == 10
    assert counted_of("ABBBBBABBBBB") == [1, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10]


def test_a_second_phase_with_another_optimizer_goes_on_counting() -> None:
    assert counted_of("AAAABBBB") == [1, 2, 3, 4, 4, 5, 6, 7]
    count, first = StepCount(), Thing()
    assert [count.takes(first, 1.0), count.takes(first, 2.0)] == [True, True]
    del first
    assert count.takes(Thing(), 3.0), "the first one is gone"
    assert count.count == 3


def test_a_pause_does_not_look_like_slow_steps_for_long() -> None:
    thing, count, now = Thing(), StepCount(), 0.0
    for took in (0.0, *[0.05] * 50, 60.0, *[0.05] * 20):
        now += took
        count.takes(thing, now)
    assert count.mean_s == pytest.approx(0.05, rel=0.1)
    for _ in range(50):
        now += 0.2
        count.takes(thing, now)
    assert count.mean_s == pytest.approx(0.2, rel=0.1), "steps that are slow from now on"


# ── nothing else changes ──────────────────────────────────────────────────────────────────────


def trained() -> tuple[list[str], bytes, bytes]:
    """Losses, parameters and the state of the generator after a small training."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        loss = model(torch.randn(16, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    return losses, weights, torch.get_rng_state().numpy().tobytes()


def test_training_is_bitwise_the_same(idle: Counted) -> None:
    without = trained()
    idle.observe()
    assert trained() == without
    assert idle.steps == 20


def test_an_error_inside_ends_the_counting_and_not_the_training(
    counted: Counted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hooks of others after it are called too, in that step as well."""
    step(sgd(), 2)
    capsys.readouterr()
    others: list[int] = []
    other = register_optimizer_step_post_hook(lambda *_: others.append(1))

    def broken(*_: object) -> None:
        raise OSError("no page")

    monkeypatch.setattr(Page, "optimizer_stepped", broken)
    try:
        step(sgd(), 5)
    finally:
        other.remove()
    assert len(others) == 5
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "holdfast: optimizer steps are no longer counted: OSError: no page"
    assert counted.steps == 0, "a number that stands still would look like a hang"
    monkeypatch.undo()
    step(sgd(), 5)
    assert counted.steps == 0 and capsys.readouterr().err == ""


def test_steps_that_a_cuda_graph_will_repeat_are_not_counted(
    counted: Counted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    step(sgd())
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    step(sgd())
    assert counted.steps == 0
    assert "a CUDA graph replays them" in capsys.readouterr().err


def test_when_the_script_reports_by_itself_the_hook_is_gone(counted: Counted) -> None:

    hooks = vars(sys.modules["torch.optim.optimizer"])["_global_optimizer_post_hooks"]
    step(sgd(), 3)
    before = len(hooks)
    optimizer_steps.leave_to_the_script()
    assert len(hooks) == before - 1 and counted.steps == 0
    step(sgd(), 3)
    assert counted.steps == 0
    assert not [finder for finder in sys.meta_path if "Watch" in type(finder).__name__]


# ── other processes ───────────────────────────────────────────────────────────────────────────


class Stepping(torch.utils.data.Dataset[int]):
    """Data that a worker of a loader makes with an optimizer of its own."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> int:
        step(sgd(), 5)
        return number


@pytest.mark.slow
@pytest.mark.parametrize("how", sample(["fork"], ["spawn"]))
def test_workers_of_a_data_loader_do_not_write_to_the_page(counted: Counted, how: str) -> None:
    step(sgd(), 2)
    loader = torch.utils.data.DataLoader(Stepping(), num_workers=2, multiprocessing_context=how)
    assert sorted(int(batch) for batch in loader) == [0, 1, 2, 3]
    assert counted.steps == 2


def test_a_forked_child_that_reports_by_itself_leaves_the_page_alone(counted: Counted) -> None:
    step(sgd(), 2)
    child = os.fork()
    if child == 0:
        optimizer_steps.leave_to_the_script()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert counted.steps == 2


BEFORE = """
import os, sys, time
from holdfast import optimizer_steps
from holdfast.page import Page
page = Page(Page.create())
found = list(sys.meta_path)
optimizer_steps.observe(page)
assert "torch" not in sys.modules
"""
AFTER = """
p = torch.nn.Parameter(torch.ones(3))
p.grad = torch.ones(3)
optimizer = torch.optim.AdamW([p])
for _ in range(3):
    optimizer.step()
assert page.report(0, 1, time.monotonic()).optimizer_steps == 3
assert sys.meta_path == found
(hook,) = sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks.values()
assert getattr(hook, "_torchdynamo_disable", False), hook
"""


def fresh(source: str) -> str:
    """Run this in a process of its own; what it says on standard error."""
    command = [sys.executable, "-W", "error::UserWarning:torch._dynamo", "-c", source]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("imports", sample(["import torch"], ["import torch._dynamo, torch"]))
def test_where_the_script_imports_torch_itself_the_hook_is_set_then(imports: str) -> None:
    """Hidden from the compiler as soon as that is there; and no trace of the watch is left."""
    assert "instrument: off" in fresh(BEFORE + imports + AFTER)


def test_a_script_without_torch_is_left_alone() -> None:
    told = fresh(BEFORE + "import json, decimal; assert page.report(0, 1, 0.0).milestones == {}")
    assert told == ""
