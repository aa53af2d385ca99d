"""Counting the steps of a plain script on a GPU: nothing waits for it, and a graph is noticed."""

import math
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from holdfast import optimizer_steps
from holdfast.page import Page


@pytest.fixture
def page() -> Iterator[Page]:
    fd = Page.create()
    made = Page(fd)
    optimizer_steps.observe(made)
    yield made
    optimizer_steps.leave_to_the_script()
    made.close()
    os.close(fd)


def made(device: torch.device, **options: Any) -> torch.optim.Optimizer:
    parameter = torch.nn.Parameter(torch.ones(1024, device=device))
    parameter.grad = torch.full_like(parameter, 0.1)
    return torch.optim.AdamW([parameter], **options)


def step_without_waiting(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    on_gpu = device.type == "cuda"
    before = torch.cuda.get_sync_debug_mode() if on_gpu else 0
    try:
        if on_gpu:
            torch.cuda.set_sync_debug_mode("error")
        optimizer.step()
    finally:
        if on_gpu:
            torch.cuda.set_sync_debug_mode(before)


def test_a_step_is_counted_without_waiting_for_the_device(page: Page, device: torch.device) -> None:
    optimizer = made(device, foreach=True)
    optimizer.step()
    for _ in range(5):
        step_without_waiting(optimizer, device)
    assert page.report(0, 1, 0.0).optimizer_steps == 6


def test_gradients_are_looked_at_without_waiting_for_the_device(
    page: Page, device: torch.device, capsys: pytest.CaptureFixture[str]
) -> None:
    """The numbers of a step are taken at a later one, which finds them there."""
    optimizer = made(device, foreach=True)
    (parameter,) = optimizer.param_groups[0]["params"]
    bad_step = 0
    for step in range(1, 13):
        norm = page.report(0, 1, 0.0).grad_norm
        if norm is not None and not bad_step:
            assert norm == pytest.approx(3.2)
            bad_step = step
            parameter.grad.fill_(math.nan)
        step_without_waiting(optimizer, device)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    broke = page.report(0, 1, 0.0).broke
    assert broke is not None and (broke.step, broke.value) == (bad_step, "nan")
    assert "any more" not in capsys.readouterr().err


def test_training_is_bitwise_the_same(device: torch.device) -> None:
    def trained() -> list[torch.Tensor]:
        torch.manual_seed(3)
        layers = torch.nn.Linear(64, 64), torch.nn.Dropout(), torch.nn.Linear(64, 1)
        model = torch.nn.Sequential(*layers).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(20):
            loss: Any = model(torch.randn(16, 64, device=device)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        drawn = torch.rand(4, device=device)
        return [drawn, *(p.detach().cpu() for p in model.parameters())]

    without = trained()
    fd = Page.create()
    page = Page(fd)
    optimizer_steps.observe(page)
    found = trained()
    optimizer_steps.leave_to_the_script()
    assert all(torch.equal(a, b) for a, b in zip(found, without, strict=True))
    page.close()
    os.close(fd)


@pytest.mark.gpu
def test_a_step_that_a_graph_repeats_ends_the_counting(
    page: Page, cuda: torch.device, capsys: pytest.CaptureFixture[str]
) -> None:
    optimizer = made(cuda, capturable=True)
    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for _ in range(3):
            optimizer.step()
    torch.cuda.current_stream().wait_stream(stream)
    assert page.report(0, 1, 0.0).optimizer_steps == 3
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    graph.replay()
    assert page.report(0, 1, 0.0).optimizer_steps == 0
    assert "a CUDA graph replays them" in capsys.readouterr().err
