"""Outer steps: the formula, what they are at every step, and that they are resumed from."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from holdfast.errors import Error
from holdfast.train.elastic import policy_in
from holdfast.train.outer_steps import VARIABLE, OuterSteps, OuterWish, wish_in
from holdfast.train.placement import REPLICA_NODES
from tests.train.curves import STEPS, CurveFleet, apart
from tests.train.test_curves import TOLERANCE

FSDP: dict[str, Any] = {"dp_replicate": -1, "dp_shard": 2}
ONE, PAIR = 1, 2  # nodes of a replica


@pytest.fixture(scope="module")
def fleet() -> Iterator[CurveFleet]:
    fleet = CurveFleet(4)
    yield fleet
    fleet.close()


@pytest.fixture(scope="module")
def alone(fleet: CurveFleet) -> list[float]:
    """The curve of one rank with all samples of each step."""
    return fleet.losses(None, 1, linear=True)


@pytest.mark.parametrize(
    ("world", "layout", "each"),
    [(2, None, ONE), (4, None, PAIR), (4, FSDP, PAIR)],
    ids=["one rank", "ddp", "fsdp"],
)
def test_with_an_outer_step_of_sgd_after_each_step_it_is_plain_averaging(
    fleet: CurveFleet, alone: list[float], world: int, layout: Any, each: int
) -> None:
    """What all have done is linear in the gradients, so it is the same for their mean."""
    averaged = fleet.losses(
        layout, world, linear=True, outer=OuterWish(1, 1.0, 0.0), nodes_each=each
    )
    assert apart(averaged, alone) < TOLERANCE


@pytest.mark.parametrize("layout", [None, FSDP], ids=["ddp", "fsdp"])
def test_what_breaks_off_within_a_window_is_resumed_where_that_began_bit_for_bit(
    fleet: CurveFleet, layout: Any
) -> None:
    job: dict[str, Any] = {"outer": OuterWish(2, 0.7, 0.9), "nodes_each": PAIR}
    undisturbed = fleet.losses(layout, 4, **job)
    what = {**job, "arena": f"outer {layout}"}
    assert undisturbed[-1] < undisturbed[0]
    before = fleet.losses(layout, 4, until=4, **what)  # three steps, and a part of the fourth
    after = fleet.losses(layout, 4, seed=2, **what)
    assert before == undisturbed[:4]
    assert after == undisturbed[2:], "its third step was given up"


def test_a_loop_that_is_ended_within_a_window_ends_with_an_outer_step_and_stays_ended(
    fleet: CurveFleet,
) -> None:
    what: dict[str, Any] = {"outer": OuterWish(100, 0.7, 0.9), "arena": "ended"}
    assert 2 <= len(fleet.losses(None, 2, stops=2, **what)) < STEPS
    assert fleet.losses(None, 2, seed=2, **what) == []


def test_an_outer_step_is_nesterovs_with_what_was_come_away_for_a_gradient() -> None:
    """Sutskever's momentum m ← μm + Δ, and a step of lr times Δ + μm, by hand."""
    model = torch.nn.Linear(2, 1, bias=False)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    outer = OuterSteps(OuterWish(2, 0.5, 0.5), [model], {"optimizer": inner})
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


def test_the_last_step_is_followed_by_an_outer_one() -> None:
    outer = OuterSteps(OuterWish(4, 0.7, 0.9), [torch.nn.Linear(1, 1)], {})
    assert [step for step in range(1, 11) if outer.due(step, 10)] == [4, 8, 10]


def test_what_no_outer_step_would_bring_together_is_refused() -> None:
    model, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    both = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=1.0)
    with pytest.raises(Error, match="was called before"):
        OuterSteps(OuterWish(4, 0.7, 0.9), [], {})
    with pytest.raises(Error, match="both trains parameters that outer steps do not bring"):
        OuterSteps(OuterWish(4, 0.7, 0.9), [model], {"both": both})


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
    assert wish_in({VARIABLE: wanted}) == OuterWish(4, 0.7, 0.9)
    assert policy_in(4).averages == 4
