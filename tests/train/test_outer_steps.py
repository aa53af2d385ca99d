"""Outer steps: the formula, and what becomes the same. Jobs with them are in `test_curves`."""

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from holdfast.errors import Error
from holdfast.train.elastic import policy_in
from holdfast.train.outer_steps import VARIABLE, OuterRequest, OuterSteps, wish_in
from holdfast.train.placement import REPLICA_NODES
from tests.patience import PATIENCE_S


def test_an_outer_step_is_nesterovs_with_what_was_come_away_for_a_gradient() -> None:
    """Sutskever's momentum m ← μm + Δ, and a step of lr times Δ + μm, by hand."""
    model = torch.nn.Linear(2, 1, bias=False)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    outer = OuterSteps(OuterRequest(2, 0.5, 0.5), [model], {"optimizer": inner})
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[8.0, 0.0]]))
        outer.begin()
        model.weight.copy_(torch.tensor([[4.0, 0.0]]))  # Δ = 4, m = 4: 8 - 0.5 · (4 + 2)
        outer.step()
        assert model.weight.tolist() == [[5.0, 0.0]]
        model.weight.copy_(torch.tensor([[5.0, 2.0]]))  # Δ = (0, -2), m = (2, -2)
        outer.step()
    assert model.weight.tolist() == [[4.5, 1.5]]
    assert model.weight.grad is None, "the script's gradients are left as they are"


def test_replicas_have_the_same_buffers_and_the_same_of_each_kind_of_state() -> None:
    """A restored state may have its kinds in another order, and BatchNorm counts by itself."""
    models = [torch.nn.BatchNorm1d(2) for _ in range(3)]
    optimizers = [torch.optim.Adadelta(model.parameters()) for model in models]
    outers = [
        OuterSteps(OuterRequest(2, 0.7, 0.9), [model], {"optimizer": optimizer})
        for model, optimizer in zip(models, optimizers, strict=True)
    ]
    for number, (model, optimizer, outer) in enumerate(
        zip(models, optimizers, outers, strict=True)
    ):
        outer.begin()
        model(torch.randn(4, 2) + number).sum().backward()
        optimizer.step()
        for kinds in optimizer.state.values():
            kinds |= {"square_avg": torch.full((2,), 3.0 * number), "acc_delta": torch.ones(2)}
    restored = optimizers[2].state
    restored.update({p: dict(reversed(kinds.items())) for p, kinds in restored.items()})
    first = [buffer.clone() for buffer in models[0].buffers()]
    store = dist.HashStore()  # type: ignore[attr-defined]

    def step(rank: int) -> None:
        group: Any = dist.ProcessGroupGloo(store, rank, 3, timedelta(seconds=PATIENCE_S))
        outers[rank].group = group
        outers[rank].step()

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(step, range(3)))
    for model, optimizer in zip(models, optimizers, strict=True):
        assert all(map(torch.equal, model.buffers(), first))
        for kinds in optimizer.state.values():
            assert kinds["square_avg"].tolist() == [3.0, 3.0]
            assert kinds["acc_delta"].tolist() == [1.0, 1.0]


def test_the_last_step_is_followed_by_an_outer_one() -> None:
    outer = OuterSteps(OuterRequest(4, 0.7, 0.9), [torch.nn.Linear(1, 1)], {})
    assert [step for step in range(1, 11) if outer.due(step, 10)] == [4, 8, 10]


def test_what_no_outer_step_would_bring_together_is_refused() -> None:
    model, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    both = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=1.0)
    with pytest.raises(Error, match="was called before"):
        OuterSteps(OuterRequest(4, 0.7, 0.9), [], {})
    with pytest.raises(Error, match="both trains parameters that outer steps do not sync"):
        OuterSteps(OuterRequest(4, 0.7, 0.9), [model], {"both": both})


@pytest.mark.parametrize(("rank", "samples"), [(0, 5), (1, 5), (2, 6), (3, 6)])
def test_weights_are_those_of_the_samples_of_a_replica(
    monkeypatch: pytest.MonkeyPatch, rank: int, samples: int
) -> None:
    """11 samples over two replicas of two ranks."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    wanted = '{"every": 4, "lr": 0.7, "momentum": 0.9}'
    policy = policy_in(4, {**os.environ, VARIABLE: wanted, REPLICA_NODES: "2"})
    assert policy.averages == 2
    assert policy.replica_samples(rank, 11) == samples
    assert wish_in({VARIABLE: wanted}) == OuterRequest(4, 0.7, 0.9)
    assert policy_in(4).averages == 4
