"""Counting the steps of a plain script on a GPU: nothing waits for it, and a graph is noticed."""

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


def test_a_step_is_counted_without_waiting_for_the_device(page: Page, device: torch.device) -> None:
    optimizer = made(device, foreach=True)
    optimizer.step()
    on_gpu = device.type == "cuda"
    before = torch.cuda.get_sync_debug_mode() if on_gpu else 0
    try:
        if on_gpu:
            torch.cuda.set_sync_debug_mode("error")
        for _ in range(5):
            optimizer.step()
    finally:
        if on_gpu:
            torch.cuda.set_sync_debug_mode(before)
    assert page.report(0, 1, 0.0).optimizer_steps == 6


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
    assert "a CUDA graph repeats them" in capsys.readouterr().err
