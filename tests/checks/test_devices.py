"""What a device computes has a known answer, or the same bits again; one that errs is found."""

import itertools
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from holdfast.checks import devices
from holdfast.checks.plan import RANKS, CheckGroup, CheckOrder
from holdfast.checks.runner import run
from tests.patience import PATIENCE_S
from tests.warm import Module


@pytest.fixture(autouse=True)
def _as_before() -> Any:
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(strict)


def test_products_and_a_model_step_are_right_on_every_core_and_leave_the_affinity() -> None:
    allowed = os.sched_getaffinity(0)
    product, step = devices.matmul(), devices.model_step()
    assert (product.state, step.state) == ("ok", "ok"), (product, step)
    assert product.digest != step.digest and "torch" in step.digest
    assert "three steps of a model with Adam=" in step.digest, "another version may compute another"
    assert devices.model_step().digest == step.digest
    assert os.sched_getaffinity(0) == allowed


def test_a_core_that_multiplies_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    worst = max(os.sched_getaffinity(0))
    real = torch.Tensor.__matmul__

    def times(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = real(one, two)
        if os.sched_getaffinity(0) == {worst} and product.is_floating_point():
            product[3, 4] += 1
        return product

    monkeypatch.setattr(torch.Tensor, "__matmul__", times)
    found = devices.matmul()
    assert found.state == "failed" and found.found == f"wrong products on core {worst}"


def test_bits_that_come_out_otherwise_the_next_time_are_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = itertools.count()
    monkeypatch.setattr(devices, "trained", lambda _device: bytes([next(turns) == 2]))
    found = devices.model_step()
    assert found.state == "failed" and "differ between 3 repetitions" in found.found


def test_memory_is_held_where_it_is_a_gpu_s_or_not() -> None:
    assert devices._holds(torch.device("cpu"), 1 << 20)


@pytest.mark.slow
def test_two_processes_agree_and_say_how_fast_they_talk(monkeypatch: pytest.MonkeyPatch) -> None:
    executed = subprocess.Popen

    def forked(command: list[str], **how: Any) -> Any:
        ours = command[:3] == [sys.executable, "-m", RANKS]
        return Module(RANKS, command[3:], **how) if ours else executed(command, **how)

    monkeypatch.setattr(subprocess, "Popen", forked)
    names = ("model step of 2 ranks", "all-reduce", "neighbour")
    order = CheckOrder(bytes=1 << 16, deadline_s=PATIENCE_S)
    found = run(CheckGroup(names=names, module=RANKS, order=order))
    assert [one.state for one in found] == ["ok"] * 3, found
    assert "GB/s" in found[1].found and "gloo" in found[2].found
