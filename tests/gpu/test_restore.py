"""State goes back to where training computes, and training goes on as if nothing had been."""

import gc
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from holdfast.checkpoint.contents import RANDOM
from tests.gpu.workbench import LARGE, SMALL, Training, differences, state_of

pytestmark = pytest.mark.usefixtures("small_on_a_cpu")

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fused": {"fused": True},
    "amsgrad": {"amsgrad": True, "foreach": False},
}


def begun(device: torch.device, fd: int, **options: Any) -> Training:
    """An attempt after three steps, with a snapshot of them."""
    training = Training(device, fd, SMALL, **options)
    training.restore()
    for _ in range(3):
        training.step()
    training.snapshot()
    training.settle()
    return training


def losses(training: Training, count: int) -> list[float]:
    """Those of the next steps."""
    return [training.step().item() for _ in range(count)]


def require_same_future(device: torch.device, fd: int, options: dict[str, Any]) -> None:
    """A second attempt has the state, the devices and the losses of the first."""
    first = begun(device, fd, options=options)
    expected, calm = state_of(first), losses(first, 3)
    second = Training(device, fd, SMALL, attempt=2, options=options)
    assert second.restore() == 3
    assert not [*differences(expected, state_of(second))]
    assert _devices(second) == _devices(first)
    assert losses(second, 3) == calm, "dropout draws on where it was, too"


def _devices(training: Training) -> list[torch.device]:
    """Where the optimizer's state is: a count of steps may belong on the CPU or on the GPU."""
    states = training.optimizer.state_dict()["state"].values()
    return [value.device for state in states for value in state.values()]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_what_is_restored_is_the_same_and_goes_on_the_same(
    device: torch.device, fd: int, options: dict[str, Any]
) -> None:
    require_same_future(device, fd, options)


@pytest.mark.gpu
def test_an_optimizer_that_a_graph_can_hold_is_restored_on_the_gpu(
    cuda: torch.device, fd: int
) -> None:
    require_same_future(cuda, fd, {"capturable": True})


@pytest.mark.gpu
@pytest.mark.parametrize(("before", "after"), [("cpu", "cuda:0"), ("cuda:0", "cpu")])
def test_a_job_can_go_on_with_other_hardware(
    cuda: torch.device,  # noqa: ARG001 - there has to be one
    fd: int,
    before: str,
    after: str,
) -> None:
    """With the same state. Random numbers of a GPU are others than those of a CPU."""
    first = begun(torch.device(before), fd)
    second = Training(torch.device(after), fd, SMALL, attempt=2)
    assert second.restore() == 3
    expected, found = state_of(first), state_of(second)
    for tree in (*expected, *found):
        tree.pop(RANDOM, None)
    assert not [*differences(expected, found)]
    assert losses(second, 1)[0] > 0


@pytest.mark.gpu
def test_measure_a_restore_into_memory_of_a_gpu(
    cuda: torch.device, fd: int, measured: Callable[..., None]
) -> None:
    """What it needs above the state itself is less than a layer."""
    first = Training(cuda, fd, LARGE)
    first.restore()
    first.step()
    first.snapshot()
    first.settle()
    expected = state_of(first)
    del first
    gc.collect()
    second = Training(cuda, fd, LARGE, attempt=2)
    torch.cuda.synchronize(cuda)
    torch.cuda.reset_peak_memory_stats(cuda)
    began = time.perf_counter()
    second.restore()
    second.wait()
    took_s = time.perf_counter() - began
    peak, held = torch.cuda.max_memory_allocated(cuda), torch.cuda.memory_allocated(cuda)
    state = LARGE.layers * LARGE.layer_bytes
    group = "restore into memory of the GPU"
    measured(group, "state", state / 2**20, "MiB")
    measured(group, "time, checksums included (not computed ahead)", took_s, "s")
    measured(group, "speed", state / took_s / 1e9, "GB/s")
    measured(group, "peak above what is held then", (peak - held) / 2**20, "MiB")
    assert not [*differences(expected, state_of(second))]
    assert peak - held < LARGE.layer_bytes
