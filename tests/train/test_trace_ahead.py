"""A worker that waits traces the blocks it will train, and nothing else of it changes by that."""

import gc
import random
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from holdfast import learned_imports
from holdfast.train.layouts import trace_ahead
from holdfast.train.layouts.compiled_calls import CompiledCall, arguments, told
from holdfast.train.layouts.recomputation import recompute


class Block(nn.Module):
    """A call draws random numbers and changes buffers."""

    def __init__(self, norm: type[nn.Module] = nn.BatchNorm1d) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), norm(4)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        """As wide as `x`."""
        return x + scale * nn.functional.dropout(self.norm(self.linear(x)), 0.5, self.training)


class Compiler:
    """Instead of Inductor: runs what was traced, and knows whether any shape was left open."""

    def __init__(self) -> None:
        self.left_open: list[bool] = []

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.left_open.append(any(isinstance(one, torch.SymInt) for one in inputs))
        return graph.forward

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Compiler]:
    """Of processes that note in `tmp_path`; nothing is left of it."""
    gc.freeze()  # models are looked for among all objects, of which other tests have left millions
    found = Compiler()
    plain: Any = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda module: plain(module, backend=found))
    monkeypatch.setenv(learned_imports.FILE, str(tmp_path / "imports.json"))
    monkeypatch.setenv("LOCAL_RANK", "0")
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()
    trace_ahead._traced.clear()


def model(wish: str = "none") -> nn.Sequential:
    """Only without recomputation can buffers change, if Inductor does not compile."""
    torch.manual_seed(1)
    norm = nn.BatchNorm1d if wish == "none" else nn.LayerNorm
    return nn.Sequential(Block(norm), Block(norm))


def compiled(wish: Any = "none") -> nn.Sequential:
    """As `run.parallelize` leaves it."""
    made = model(wish)
    recompute([*made], wish)
    trace_ahead.compile_blocks(made, [*made], noted=True)
    return made


def step(made: nn.Module, rows: int = 8) -> torch.Tensor:
    torch.manual_seed(2)
    out: torch.Tensor = made(torch.randn(rows, 4))
    if out.requires_grad:
        torch.autograd.backward(out.square().mean())
    return out


def noted(folder: Path) -> list[CompiledCall]:
    return trace_ahead._known(folder / trace_ahead.FILE)


AROUND: dict[str, Any] = {
    "plain": nullcontext,
    "evaluation": torch.no_grad,
    "mixed precision": partial(torch.autocast, "cpu", dtype=torch.bfloat16),
}


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("ddp", [False, True])
@pytest.mark.parametrize("wish", ["none", "full"])
@pytest.mark.parametrize("around", AROUND)
def test_what_was_traced_ahead_is_not_traced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, around: str, wish: Any, ddp: bool
) -> None:
    if ddp:
        alike: Any = SimpleNamespace(bucket_bytes_cap=25 << 20)
        monkeypatch.setattr(DistributedDataParallel, "_active_ddp_module", alike)
    with AROUND[around]():
        expected = step(compiled(wish))
    torch._dynamo.reset()
    waiting = model(wish)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DistributedDataParallel, "_active_ddp_module", None)
        for call in noted(tmp_path):
            trace_ahead.trace(call, wish)
    count = trace_ahead._frames()
    recompute([*waiting], wish)
    trace_ahead.compile_blocks(waiting, [*waiting], noted=True)
    with AROUND[around]():
        found = step(waiting)
    assert trace_ahead._frames() == count
    assert torch.equal(found, expected)


def test_tracing_ahead_leaves_all_as_it_was(compiler: Compiler, tmp_path: Path) -> None:
    step(compiled())
    torch._dynamo.reset()
    waiting = model().eval()
    before = {name: part.clone() for name, part in waiting.state_dict().items()}
    attributes = [dict(vars(module)) for module in waiting.modules()]
    numbers, words = torch.get_rng_state(), random.getstate()
    traces = len(compiler.left_open)
    for call in noted(tmp_path):
        trace_ahead.trace(call)
    assert len(compiler.left_open) > traces
    assert all(torch.equal(part, before[name]) for name, part in waiting.state_dict().items())
    assert all(parameter.grad is None for parameter in waiting.parameters())
    assert [dict(vars(module)) for module in waiting.modules()] == attributes
    assert torch.equal(torch.get_rng_state(), numbers) and random.getstate() == words
    assert DistributedDataParallel._active_ddp_module is None


def test_a_training_that_begins_with_another_shape_is_compiled_as_if_nothing_had_been_traced(
    compiler: Compiler, tmp_path: Path
) -> None:
    step(compiled(), rows=8)
    torch._dynamo.reset()
    waiting = model()
    for call in noted(tmp_path):
        trace_ahead.trace(call)
    trace_ahead.compile_blocks(waiting, [*waiting], noted=True)
    compiler.left_open.clear()
    step(waiting, rows=6)
    assert compiler.left_open and not any(compiler.left_open)


@pytest.mark.usefixtures("compiler")
def test_shapes_that_came_later_are_left_open_as_before(tmp_path: Path) -> None:
    first = compiled()
    step(first, rows=8)
    step(first, rows=6)
    torch._dynamo.reset()
    waiting = model()
    for call in noted(tmp_path):
        trace_ahead.trace(call)
    trace_ahead.compile_blocks(waiting, [*waiting], noted=True)
    count = trace_ahead._frames()
    for rows in (8, 6, 7):
        step(waiting, rows)
    assert trace_ahead._frames() == count


@pytest.mark.usefixtures("compiler")
def test_a_block_whose_calls_somebody_watches_is_not_called_unseen(tmp_path: Path) -> None:
    step(compiled())
    torch._dynamo.reset()
    waiting, calls = model(), list[Any]()
    for block in waiting:
        block.register_forward_hook(lambda *given: calls.append(given))
    count = trace_ahead._frames()
    for call in noted(tmp_path):
        trace_ahead.trace(call)
    assert not calls and trace_ahead._frames() == count


@pytest.mark.usefixtures("compiler")
def test_a_model_that_is_another_one_is_not_called(tmp_path: Path) -> None:
    step(compiled())
    torch._dynamo.reset()
    other = nn.Sequential(Block(), Block(), Block())
    count = trace_ahead._frames()
    for call in noted(tmp_path):
        trace_ahead.trace(call)
    assert other and trace_ahead._frames() == count


@pytest.mark.usefixtures("compiler")
def test_each_call_is_noted_once_and_by_one_worker_of_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        made = compiled()
        step(made)
        step(made)
        torch._dynamo.reset()
    assert [call.block for call in noted(tmp_path)] == ["0", "1"]
    (tmp_path / trace_ahead.FILE).unlink()
    monkeypatch.setenv("LOCAL_RANK", "1")
    step(compiled())
    assert not noted(tmp_path)


# ── what a call is given ──

A = torch.randn(4, 6, requires_grad=True)
GIVEN: dict[str, Any] = {
    "values": ((1, 1.0, True, None, "x"), {}),
    "a view": ((A.t(),), {}),
    "kept in lists": (([A, (A * 2, 3)],), {"mask": torch.ones(3, dtype=torch.bool)}),
    "twice the same": ((A, A), {"again": A}),
    "no element": ((torch.empty(0, 3),), {}),
}
UNTOLD: dict[str, Any] = {
    "an object": ((object(),), {}),
    "another device": ((torch.ones(2, device="meta"),), {}),
    "another layout": ((torch.eye(2).to_sparse(),), {}),
    "infinity": ((float("inf"),), {}),
}


@pytest.mark.parametrize("name", GIVEN)
def test_a_call_can_be_told_and_made_alike(name: str) -> None:
    call = told("s", "b", Block(), GIVEN[name])
    assert call is not None
    line = msgspec.json.encode(call)
    again = msgspec.json.decode(line, type=CompiledCall)
    assert again == call
    assert told("s", "b", Block(), arguments(again)) == call


@pytest.mark.parametrize("name", UNTOLD)
def test_what_cannot_be_told_is_not(name: str) -> None:
    assert told("s", "b", Block(), UNTOLD[name]) is None
