"""The update-to-weight ratio is how far the weights have moved, wherever they lie."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from holdfast.train import update_ratio
from tests.patience import PATIENCE_S
from tests.train.forks import FORKS


def test_it_is_the_norm_of_the_change_by_that_of_the_weights_before() -> None:
    first = torch.nn.Parameter(torch.tensor([3.0, 0.0]))
    second = torch.nn.Parameter(torch.tensor([4.0]))
    optimizer = torch.optim.SGD([first, second], lr=0.5)
    first.grad, second.grad = torch.tensor([0.0, 6.0]), torch.tensor([8.0])
    with update_ratio(optimizer) as ratio:
        optimizer.step()
    assert ratio.value is not None and ratio.value.item() == pytest.approx(5 / 5)
    assert first.tolist() == [3.0, -3.0] and second.tolist() == [0.0], "and they are as stepped"
    with update_ratio(optimizer) as ratio:
        pass
    assert ratio.value is not None and ratio.value.item() == 0.0


def _divided(rank: int, folder: str, results: Any) -> None:
    """One of two ranks: half of a parameter lies here, and a whole other one."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    whole = torch.nn.Parameter(torch.tensor([1.0, 2.0, 2.0, 4.0]))
    halves = torch.nn.Parameter(distribute_tensor(whole.detach(), mesh, [Shard(0)]))
    both = torch.optim.SGD([halves, whole], lr=1.0)
    gradient = torch.tensor([1.0, 0.0, 0.0, 3.0])
    whole.grad, halves.grad = gradient, distribute_tensor(gradient, mesh, [Shard(0)])
    with update_ratio(both) as ratio:
        both.step()
    assert ratio.value is not None
    results.put(ratio.value.item())
    dist.destroy_process_group()


@pytest.mark.slow
def test_what_is_divided_among_ranks_counts_in_full_and_what_is_replicated_once(
    tmp_path: Path,
) -> None:
    results = FORKS.Queue()
    ranks = [FORKS.Process(target=_divided, args=(n, str(tmp_path), results)) for n in range(2)]
    for rank in ranks:
        rank.start()
    try:
        expected = (10.0 * 2) ** 0.5 / (25.0 * 2) ** 0.5
        for _ in ranks:
            assert results.get(timeout=PATIENCE_S) == pytest.approx(expected)
    finally:
        for rank in ranks:
            rank.join(PATIENCE_S)
