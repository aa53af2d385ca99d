"""What tests of a GPU share: who runs where, and where the figures go.

A test marked `gpu` is skipped where there is no GPU, which is looked for without importing torch
unless somebody asks for these tests (`-m gpu`). With HOLDFAST_GPU_REHEARSAL set they run on the CPU
instead, as far as they can: then nothing is learned about a GPU, but much about the tests.

Tests that take `device` run on both, so that the part of them that no GPU is needed for is known to
work. Figures are written where HOLDFAST_GPU_FIGURES says (`make gpu`), and nowhere otherwise.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import devices
from tests.gpu.figures import FIGURES, REHEARSAL, Figure, append

if TYPE_CHECKING:
    import torch

Measured = Callable[..., None]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU where there is none."""
    if item.get_closest_marker("gpu") is None or (REHEARSAL in os.environ and _can_rehearse(item)):
        return
    if why := _why_no_gpu(asked="gpu" in item.config.option.markexpr):
        pytest.skip(why)


def _can_rehearse(item: pytest.Item) -> bool:
    """Tests of CUDA itself, and those that run on the CPU anyhow, are not run there again."""
    parameters = getattr(item, "callspec", None)
    on_cpu_too = parameters is not None and "device" in parameters.params
    return not on_cpu_too and "cuda" not in getattr(item, "fixturenames", ())


def _why_no_gpu(*, asked: bool) -> str:
    if not asked and devices.count("cuda", os.environ) == 0:
        return "no NVIDIA GPU in /dev"
    import torch

    return "" if torch.cuda.is_available() else "torch.cuda.is_available() is False"


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> "torch.device":
    """Where the test computes: on the CPU always, on a GPU where there is one."""
    import torch

    return torch.device(request.param, 0) if request.param == "cuda" else torch.device("cpu")


@pytest.fixture
def small_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A CPU copies beside training what is small, too, as a GPU does, and takes one core."""
    import torch

    from holdfast.checkpoint import streams

    monkeypatch.setattr(streams.SideThread, "least_bytes", 0)
    monkeypatch.setattr(streams, "_WORTH_BYTES", 0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def fd() -> Iterator[int]:
    """An empty arena."""
    from holdfast.checkpoint.arena import Arena
    from tests.gpu.workbench import unpin

    made = Arena.create()
    yield made
    unpin()
    os.close(made)


@pytest.fixture
def cuda() -> "torch.device":
    """A GPU, for what a CPU has no counterpart of."""
    import torch

    return torch.device("cuda", 0)


@pytest.fixture
def place() -> str:
    """Where workers of real jobs compute: a GPU, or the CPU in a rehearsal."""
    return "cpu" if REHEARSAL in os.environ else "cuda:0"


@pytest.fixture
def measured() -> Measured:
    """Keep a figure for the table. Does nothing unless `make gpu` runs the tests."""
    path = os.environ.get(FIGURES)

    def keep(group: str, what: str, value: Any, unit: str = "") -> None:
        if path is not None:
            append(Path(path), Figure(group, what, value, unit))

    return keep
