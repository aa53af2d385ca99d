"""The memory of snapshots is found before the first step."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from holdfast.checkpoint.arena import Arena, StatePart
from holdfast.checkpoint.settings import CheckpointSettings
from holdfast.train.cadence import Cadence
from holdfast.train.layout import Ranks
from holdfast.train.optimizer_memory import coming_bytes
from holdfast.train.placement import Placement
from holdfast.train.snapshots import Snapshotter
from holdfast.train.tracked import Tracked

ALONE = Placement(0, 0, 1, 1, 1, 0, distributed=False)


def model() -> torch.nn.Module:
    return torch.nn.Linear(100, 50)


@pytest.mark.parametrize(
    ("make", "tensors"),
    [
        (lambda p: torch.optim.AdamW(p, lr=1e-3), 2),
        (lambda p: torch.optim.Adam(p, amsgrad=True), 3),
        (lambda p: torch.optim.SGD(p, lr=0.1), 0),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 1),
        (lambda p: torch.optim.RMSprop(p, centered=True), 2),
    ],
)
def test_state_to_come_is_what_comes(make: Callable[..., Any], tensors: int) -> None:
    net = model()
    optimizer = make(net.parameters())
    expected = coming_bytes(optimizer)
    assert expected == tensors * (100 * 50 + 50) * 4
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    state = [v for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v)]
    assert sum(v.numel() * 4 for v in state if v.ndim) == expected
    assert coming_bytes(optimizer) == 0


def test_an_optimizer_that_cannot_be_tried_is_no_obstacle() -> None:
    class Odd(torch.optim.SGD):
        def __init__(self, params: Any, must: int) -> None:
            super().__init__(params, lr=float(must))

    assert coming_bytes(Odd(model().parameters(), 1)) == 0


def test_cells_do_not_grow_in_the_first_steps_nor_over_hundreds() -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    objects = {"model": net, "optimizer": optimizer}
    tracked = Tracked(objects, torch.device("cpu"), [], Ranks(0, 1, 1), None)
    arena = Arena(Arena.create())
    snapshots = Snapshotter(
        arena, None, None, ALONE, tracked, Cadence(1, 0.05), CheckpointSettings()
    )
    snapshots.restore()
    cells = [
        cell for part in (StatePart.SHARED, StatePart.PRIVATE) for cell in arena.cells(part)[:2]
    ]
    sizes = [len(cell.memory) for cell in cells]
    assert sizes[0] > 3 * (100 * 50 + 50) * 4
    for step in range(1, 251):
        for parameter in net.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        assert snapshots.meet(step, 1000) is not None
        snapshots.take(step)
    assert [len(cell.memory) for cell in cells] == sizes
    assert not any(cell.header() for cell in arena.cells(StatePart.SHARED)[2:]), "no third copy"
    before = [cell.memory for cell in cells]
    again = Snapshotter(arena, None, None, ALONE, tracked, Cadence(1, 0.05), CheckpointSettings())
    assert again.restore() == 250
    kept = [cell.memory is memory for cell, memory in zip(cells, before, strict=True)]
    assert all(kept), "the next attempt maps nothing anew, though there is more to say by now"
