"""Tensors come back bit for bit, with their types, shapes and memory layout."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.checkpoint.arena import Arena, Key, StatePart
from holdfast.checkpoint.tensors import Stamp, Writer, cloned, is_leaf, read
from holdfast.errors import Error


@pytest.fixture
def arena() -> Iterator[Arena]:
    """An empty arena."""
    fd = Arena.create()
    yield Arena(fd)
    os.close(fd)


def stamp(step: int) -> Stamp:
    return Stamp(Key(1, step), 0, 1, 7)


def through(arena: Arena, tree: Any) -> Any:
    """Write the tree and read it back."""
    writer = Writer(arena, StatePart.SHARED)
    writer.encode(tree)
    cell = writer.write(stamp(1), ())
    assert cell.intact()
    return read(cell)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().resolve_conj().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


TYPES = [
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (5, 7), (300, 1001)])
def test_types_and_shapes_survive(arena: Arena, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.randn(shape) * 100).to(dtype)
    back = through(arena, {"x": tensor, "y": [tensor]})
    for copy in (back["x"], back["y"][0]):
        assert copy.dtype is dtype and copy.shape == tensor.shape
        assert bits(copy) == bits(tensor)


def test_values_no_arithmetic_would_keep_survive(arena: Arena) -> None:
    odd = torch.tensor([0x7FC00001, 0x7F800001, -1, 1, 0], dtype=torch.int32).view(torch.float32)
    assert bits(through(arena, odd)) == bits(odd)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(6, 4).t(),
        torch.randn(3, 5, 7).permute(2, 0, 1),
    ],
)
def test_the_memory_layout_survives(arena: Arena, tensor: torch.Tensor) -> None:
    back = through(arena, tensor)
    assert back.stride() == tensor.stride() and torch.equal(back, tensor)
    assert cloned(back).stride() == tensor.stride()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(8, 8)[::2, 1::3],
        torch.randn(1, 5).expand(4, 5),
        torch.randn(4, dtype=torch.complex64).conj(),
    ],
)
def test_views_are_kept_by_value(arena: Arena, tensor: torch.Tensor) -> None:
    assert torch.equal(through(arena, tensor), tensor)


def test_arrays_and_numpy_scalars_survive(arena: Arena) -> None:
    tree: dict[str, Any] = {
        "a": np.arange(12, dtype=">i2").reshape(3, 4).T,
        "s": np.float64(0.1),
        "e": np.empty(0),
    }
    back = through(arena, tree)
    assert np.array_equal(back["a"], tree["a"]) and back["a"].dtype == tree["a"].dtype
    assert type(back["s"]) is np.float64 and back["s"] == tree["s"]
    assert back["e"].shape == (0,)


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(3, device="meta"),
        torch.eye(3).to_sparse(),
        np.array([object()]),
        torch.nn.Linear(1, 1),
    ],
)
def test_what_has_no_plain_memory_is_refused(arena: Arena, value: object) -> None:
    assert not is_leaf(value)
    with pytest.raises(Error, match=r"state\.x"):
        Writer(arena, StatePart.SHARED).encode({"x": value}, "state")


def test_each_snapshot_holds_the_values_of_its_moment(arena: Arena) -> None:
    writer, weights = Writer(arena, StatePart.SHARED), torch.zeros(400_000)
    for step in range(1, 6):
        weights.fill_(step)
        writer.encode({"w": weights, "step": step})
        writer.write(stamp(step), (Key(1, step - 1),))
    for step in (4, 5):
        cell = arena.find(StatePart.SHARED, Key(1, step))
        assert cell is not None and cell.intact()
        tree = read(cell)
        assert tree["step"] == step and (tree["w"] == step).all()


def test_a_tensor_that_was_replaced_is_followed(arena: Arena) -> None:
    writer, state = Writer(arena, StatePart.SHARED), {"w": torch.zeros(10)}
    for step in range(1, 5):
        state["w"] = torch.full((10,), float(step))
        writer.encode(state)
        cell = writer.write(stamp(step), (Key(1, step - 1),))
        assert (read(cell)["w"] == step).all()


def test_state_that_appears_later_is_kept_and_the_older_snapshot_stays(arena: Arena) -> None:
    writer, tree = Writer(arena, StatePart.SHARED), {"w": torch.ones(10)}
    writer.encode(tree)
    older = writer.write(stamp(1), ())
    tree["moments"] = torch.ones(3_000_000)
    writer.encode(tree)
    newer = writer.write(stamp(2), (Key(1, 1),))
    assert older.intact() and set(read(older)) == {"w"}
    assert newer.intact() and (read(newer)["moments"] == 1).all()


def test_a_clone_does_not_change_when_the_cell_does(arena: Arena) -> None:
    writer, weights = Writer(arena, StatePart.SHARED), torch.ones(4)
    writer.encode({"w": weights})
    cell = writer.write(stamp(1), ())
    kept = cloned(read(cell))
    cell.payload[:16] = bytes(16)
    assert (kept["w"] == 1).all()


def test_a_large_snapshot_is_copied_exactly_across_block_borders(arena: Arena) -> None:
    sizes = [1, 65_535, 65_536, 65_537, 200_001, 3]
    tree = [torch.randn(size) for size in sizes]
    assert all(map(torch.equal, through(arena, tree), tree))
