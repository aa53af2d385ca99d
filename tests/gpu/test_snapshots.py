"""Snapshots copied beside training: right to the last bit, whatever training does meanwhile.

What a CPU can do is done on both; the rest is about pinned memory, the allocator and streams.
"""

import logging
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.checkpoint.arena import Arena, Cell, StatePart
from holdfast.checkpoint.streams import Copy, SideStream
from tests.gpu.workbench import (
    LARGE,
    SMALL,
    Size,
    Training,
    contents,
    differences,
    opened,
    size_for,
    stack,
    state_of,
)

pytestmark = pytest.mark.usefixtures("small_on_a_cpu")


class Odd(nn.Module):
    """Memory of every kind: strided, in other orders, of other types, changed by forward passes."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        wide = 8 * size.width
        self.convolution = nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.norm = nn.BatchNorm1d(size.width)
        self.narrow = nn.Linear(size.width, size.width, dtype=torch.bfloat16)
        self.strided = nn.Parameter(torch.randn(size.width, 2 * size.width)[:, ::2])
        self.wide = nn.Linear(size.width, wide)
        self.scalar = nn.Parameter(torch.tensor(1.5))
        self.empty = nn.Parameter(torch.empty(0, 3))

    def forward(self, x: Tensor) -> Tensor:
        seen = self.norm(x) @ self.strided * self.scalar
        folded = self.convolution(x.view(-1, 4, 16, 16).contiguous()).mean()
        out: Tensor = self.narrow(seen.bfloat16()).float() + self.wide(x).mean() + folded
        return torch.dropout(out, 0.1, True)


@pytest.mark.parametrize("make", [stack, Odd])
def test_a_snapshot_is_what_was_there_however_training_goes_on(
    device: torch.device, fd: int, make: Callable[[Size], nn.Module]
) -> None:
    training = Training(device, fd, size_for(device), make=make)
    training.restore()
    training.step()
    for _ in range(4):  # every cell, twice
        expected = state_of(training)
        key = training.snapshot()
        assert training.snapshots.under_way, "it is copied beside training"
        training.step()  # buffers and random numbers at once, parameters once they are copied
        assert not training.torn
        assert not [*differences(expected, contents(training, key))]


def test_a_change_that_the_optimizer_did_not_make_gives_the_snapshot_up(
    device: torch.device, fd: int, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training(device, fd, size_for(device))
    training.restore()
    training.step()
    key = training.snapshot()
    with torch.no_grad():
        next(training.model.parameters()).mul_(2)
    with caplog.at_level(logging.WARNING):
        training.step()
    assert training.torn and training.cells(key) == []
    assert "was changed before the optimizer's step" in caplog.text


@pytest.mark.gpu
def test_a_forward_pass_waits_for_no_copy_but_that_of_what_it_changes(
    cuda: torch.device, fd: int
) -> None:
    """A GPU has one engine for copies to the host; a small one that comes last would wait there."""
    training = Training(cuda, fd, LARGE, make=_with_statistics)
    training.restore()
    for _ in range(3):  # each cell is pinned, in the end
        training.step()
        training.snapshot()
    training.settle()
    training.step()
    training.wait()
    training.snapshot()
    copier = training.snapshots.capture.writer._background
    assert isinstance(copier, SideStream)
    forward = torch.cuda.Event()  # type: ignore[no-untyped-call]
    forward.record()
    forward.synchronize()
    assert not copier._stream.query(), "parameters are still being copied"
    training.settle()
    assert not training.torn


def _with_statistics(size: Size) -> nn.Module:
    """A model whose forward pass changes some of its state."""
    return nn.Sequential(stack(size), nn.BatchNorm1d(size.width))


@pytest.mark.gpu
def test_a_step_that_was_not_announced_gives_the_snapshot_up(cuda: torch.device, fd: int) -> None:
    """As the replay of a graph that has a whole step in it: no hook runs, no count changes."""
    training = Training(cuda, fd, SMALL)
    training.restore()
    training.step()
    key = training.snapshot()
    next(training.model.parameters()).data.mul_(2)
    training.meet()
    assert training.torn and training.cells(key) == []


@pytest.mark.gpu
def test_memory_of_snapshots_is_pinned_in_the_place_where_it_lies(
    cuda: torch.device, fd: int
) -> None:
    training = Training(cuda, fd, SMALL)
    training.restore()
    for _ in range(3):
        training.step()
        key = training.snapshot()
        training.settle()
        assert all(_is_pinned(cell) for cell in training.cells(key))


def _is_pinned(cell: Cell) -> bool:
    return torch.frombuffer(cell.memory, dtype=torch.uint8).is_pinned()


@pytest.mark.gpu
def test_memory_that_cannot_be_pinned_costs_time_and_nothing_else(
    cuda: torch.device, fd: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver really refuses; what it says of that must not reach a kernel of training."""
    training = Training(cuda, fd, SMALL)
    assert isinstance(training.snapshots.capture.writer._background, SideStream)
    refusing = _Refusing()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: refusing)
    with caplog.at_level(logging.WARNING):
        training.restore()
        training.step()
        expected = state_of(training)
        key = training.snapshot()
    assert "could not be pinned" in caplog.text
    monkeypatch.undo()
    training.step()
    training.wait()
    assert not [*differences(expected, contents(training, key))]


class _Refusing:
    """The CUDA runtime, given nonsense to pin."""

    def __init__(self) -> None:
        self._real: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]

    def cudaHostRegister(self, *_: int) -> Any:  # noqa: N802 - its name
        return self._real.cudaHostRegister(0, 4096, 0)


@pytest.mark.gpu
def test_memory_that_is_freed_while_it_is_copied_is_given_to_nobody_before(
    cuda: torch.device, fd: int
) -> None:
    count = 128 << 20
    cell = Arena(fd).cells(StatePart.SHARED)[0]
    cell.reserve(count)
    target = cell.payload[:count]
    side = opened(SideStream(cuda))
    source = torch.full((count,), 7, dtype=torch.uint8, device=cuda)
    view = torch.frombuffer(target, dtype=torch.uint8)
    side.start(cell.memory, [Copy(view, source, stable=True)])
    del source
    for _ in range(4):
        torch.full((count,), 9, dtype=torch.uint8, device=cuda)
    side.settle()
    assert bool((view == 7).all())


@pytest.mark.gpu
def test_a_snapshot_takes_next_to_no_memory_of_the_gpu(
    cuda: torch.device, fd: int, measured: Callable[..., None]
) -> None:
    training = Training(cuda, fd, LARGE)
    training.restore()
    training.step()
    training.step()
    without = _peak(training, lambda: training.step())
    with_one = _peak(training, lambda: (training.snapshot(), training.step()))
    measured("peak memory of the GPU", "a step", without >> 20, "MiB")
    measured("peak memory of the GPU", "a snapshot and a step", with_one >> 20, "MiB")
    assert with_one - without < LARGE.layer_bytes, "less than one of the layers"


def _peak(training: Training, work: Callable[[], object]) -> int:
    training.wait()
    torch.cuda.reset_peak_memory_stats(training.device)
    work()
    training.wait()
    return torch.cuda.max_memory_allocated(training.device)


# ── what it costs ──


ROUNDS = 12
NEXT_STEPS = 5


@pytest.mark.gpu
@pytest.mark.parametrize("samples", [16, 4096])
@pytest.mark.parametrize("beside", [True, False])
def test_measure_the_stall_and_the_steps_after_it(
    cuda: torch.device, fd: int, measured: Callable[..., None], beside: bool, samples: int
) -> None:
    """A thing that is measured and not judged: every snapshot has to be whole all the same."""
    training = Training(cuda, fd, LARGE, beside=beside)
    costs(training, samples, ROUNDS, measured)


def test_the_measurement_itself_works(fd: int) -> None:
    found: list[tuple[Any, ...]] = []
    training = Training(torch.device("cpu"), fd, SMALL)
    costs(training, 4, 3, lambda *figure: found.append(figure))
    assert [figure[1] for figure in found] == WHAT


WHAT = [
    "state",
    "stall of the first snapshots, which pin the memory",
    "stall",
    "until it is whole, alone",
    "a step without",
    "the five steps after it, excess",
]


def costs(training: Training, samples: int, rounds: int, measured: Callable[..., None]) -> None:
    """Take snapshots in a training of this batch size, and say what they cost."""
    training.restore()
    inputs = torch.randn(samples, training.width, device=training.device)
    for _ in range(NEXT_STEPS):
        training.step(inputs)
    stalls, excess, whole, steps = [], [], [], []
    for number in range(rounds):
        before = _seconds(training, inputs)
        began = time.perf_counter()
        key = training.snapshot()
        stalls.append(time.perf_counter() - began)
        if number % 2:
            training.settle()
            whole.append(time.perf_counter() - began)
        else:
            excess.append(_seconds(training, inputs) / before - 1)
            steps.append(before / NEXT_STEPS)
        assert not training.torn and training.cells(key)
        training.step(inputs)
    way = "beside training" if training.snapshots.capture.writer._background else "at once"
    group = f"snapshots {way}, batches of {samples}"
    state = sum(h.payload_bytes for cell in training.cells(key) if (h := cell.header()))
    slots = 2  # cells of each part
    values = [
        (state / 2**20, "MiB"),
        (max(stalls[:slots]) * 1e3, "ms"),
        (median(stalls[slots:]) * 1e3, "ms"),
        (median(whole) * 1e3, "ms"),
        (median(steps) * 1e3, "ms"),
        (median(excess) * 100, "%"),
    ]
    for what, (value, unit) in zip(WHAT, values, strict=True):
        measured(group, what, value, unit)


def _seconds(training: Training, inputs: Tensor) -> float:
    """Of some steps, until the device has done them."""
    training.wait()
    began = time.perf_counter()
    for _ in range(NEXT_STEPS):
        training.step(inputs)
    training.wait()
    return time.perf_counter() - began


@pytest.mark.gpu
def test_measure_pinning_and_copies_into_pinned_memory(
    cuda: torch.device, fd: int, measured: Callable[..., None]
) -> None:
    """A GiB of the arena, as it is and as it is pinned."""
    size, group = 1 << 30, "copy of a GiB from the GPU into the arena"
    cell = Arena(fd).cells(StatePart.SHARED)[0]
    cell.reserve(size)
    source = torch.full((size,), 5, dtype=torch.uint8, device=cuda)
    target = torch.frombuffer(cell.payload[:size], dtype=torch.uint8)
    side = opened(SideStream(cuda))
    measured(group, "not pinned", 1 / _once(lambda: target.copy_(source)), "GiB/s")
    measured(group, "pinning it", _once(lambda: side._pin(cell.memory)), "s")
    target.zero_()

    def copy() -> None:
        side.start(cell.memory, [Copy(target, source, stable=True)])
        side.settle()

    measured(group, "pinned", 1 / _once(copy), "GiB/s")
    assert bool((target == 5).all())


def _once(work: Callable[[], object]) -> float:
    """Seconds that this takes with the device idle before and after."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - began
