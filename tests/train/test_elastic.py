"""Another number of ranks: the same samples in each step, or another learning rate."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Error
from holdfast.train.data import SampleOrder, loader
from holdfast.train.elastic import BatchPolicy, Elastic, LearningRateScale, policy_in, sliced


def keeping(reference: int, world: int) -> BatchPolicy:
    return BatchPolicy(reference, world, keeps=True, warmup_steps=0)


def scaling(reference: int, world: int, steps: int = 0) -> BatchPolicy:
    return BatchPolicy(reference, world, keeps=False, warmup_steps=steps)


class Dealt:
    """A loader in the middle of a step."""

    def __init__(self, batch_size: int, here: int, total: int) -> None:
        self.batch_size, self.dealt = batch_size, (here, total)


@given(
    st.integers(1, 4),
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 9), st.integers(0, 3)), max_size=12),
    st.booleans(),
)
def test_over_any_sequence_of_sizes_each_step_has_its_samples_once(
    batch_size: int, reference: int, lives: list[tuple[int, int, int]], shuffle: bool
) -> None:
    """Each life of the job has a size, trains some steps and loses the last of them."""
    order = SampleOrder(97, batch_size, 5, shuffle, drop_last=True)
    whole = batch_size * reference
    epoch = samples = 0
    used: list[tuple[int, list[int]]] = []  # what counts in the end: epoch and samples, by step
    for world, count, lost in lives:
        if world > whole:
            continue
        total = keeping(reference, world).samples(batch_size)
        ranks = [order.tickets(epoch, samples, rank, world, total) for rank in range(world)]
        steps = [[next(rank) for rank in ranks] for _ in range(count)]
        for tickets in steps[: count - lost]:
            shares = [len(ticket.indices) for ticket in tickets]
            assert sum(shares) == whole == tickets[0].total
            assert max(shares) - min(shares) <= 1
            used.append((tickets[0].epoch, [i for t in tickets for i in t.indices]))
            epoch, samples = tickets[0].epoch, tickets[0].samples_after
    undisturbed = order.tickets(0, 0, 0, 1, whole)
    for done_epoch, indices in used:
        ticket = next(undisturbed)
        assert (ticket.epoch, ticket.indices) == (done_epoch, indices)


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 9), st.integers(0, 40))
def test_weights_give_the_gradient_of_the_whole_batch(
    batch_size: int, reference: int, world: int, seed: int
) -> None:
    whole = batch_size * reference
    world = min(world, whole)
    x = torch.randn(whole, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    order = SampleOrder(whole, batch_size, 0, shuffle=False, drop_last=True)
    sums = torch.zeros(3, dtype=torch.float64)
    for rank in range(world):
        here = next(order.tickets(0, 0, rank, world, whole)).indices
        module = torch.nn.Module()
        elastic = Elastic(keeping(reference, world), [module])
        elastic.loader = Dealt(batch_size, len(here), whole)
        synced = []
        for part, weight in elastic.parts(x[here]):
            assert 1 <= len(part) <= batch_size
            sums += part.mean(0) * weight / world  # ranks are averaged
            synced.append(module.require_backward_grad_sync)
        assert synced == [False] * (len(synced) - 1) + [True]
        assert len(synced) <= elastic.policy.accumulation
    torch.testing.assert_close(sums, x.mean(0))


def test_at_the_size_it_was_written_for_a_batch_is_left_as_it_is() -> None:
    elastic = Elastic(keeping(3, 3), [])
    elastic.loader = Dealt(4, 4, 12)
    batch = object()
    assert [*elastic.parts(batch)] == [(batch, 1.0)]
    assert (elastic.policy.accumulation, elastic.lr_scale) == (1, 1.0)


def test_without_elasticity_everything_is_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_ELASTIC", raising=False)
    policy = policy_in(5)
    assert (policy.samples(4), policy.accumulation, policy.lr_scale) == (20, 1, 1.0)
    assert Elastic(policy, []).numbers() == {} and Elastic(policy, []).tracked == {}


def test_the_loader_deals_out_what_the_job_was_written_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wish = '{"nodes": 3, "batch": "keep_global_batch", "warmup_steps": 0}'
    for name, value in {"HOLDFAST_ELASTIC": wish, "WORLD_SIZE": "2", "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    data = loader(list(range(40)), 3, shuffle=False)
    batches: Iterator[Any] = iter(data)
    assert next(batches).tolist() == [4, 5, 6, 7, 8]
    assert data.dealt == (5, 9) and data.samples == 9
    monkeypatch.setenv("WORLD_SIZE", "10")
    with pytest.raises(Error, match="cannot be divided among 10 ranks"):
        next(iter(loader(list(range(40)), 3)))


def test_the_learning_rate_goes_to_its_new_value_over_the_warm_up() -> None:
    first = LearningRateScale(scaling(4, 4, 10))
    assert [first.at(step) for step in (0, 5, 50)] == [1.0, 1.0, 1.0]
    second = LearningRateScale(scaling(4, 2, 10))
    second.load_state_dict(first.state_dict())
    second.resumed(100)
    assert [second.at(step) for step in (100, 105, 110, 500)] == [1.0, 0.75, 0.5, 0.5]


def test_a_restart_and_another_change_in_the_middle_of_a_warm_up_go_on_with_it() -> None:
    first = LearningRateScale(scaling(4, 4, 10))
    second = LearningRateScale(scaling(4, 2, 10))
    second.load_state_dict(first.state_dict())
    second.resumed(100)
    again = LearningRateScale(scaling(4, 2, 10))
    again.load_state_dict(second.state_dict())
    again.resumed(103)
    assert again.at(105) == second.at(105) == 0.75
    third = LearningRateScale(scaling(4, 4, 10))
    third.load_state_dict(again.state_dict())
    third.resumed(105)
    assert [third.at(step) for step in (105, 115)] == [0.75, 1.0]


def test_who_wants_to_know_is_told_of_another_number_of_ranks_once_it_is_restored() -> None:
    elastic, told = Elastic(keeping(3, 2), []), []
    elastic.on_resize(lambda *sizes: told.append(sizes))
    elastic.resumed(0, None)
    elastic.resumed(5, 2)
    assert told == []
    elastic.resumed(7, 3)
    assert told == [(3, 2)]


def test_batches_are_divided_by_their_samples() -> None:
    x, y = torch.arange(6).reshape(3, 2), torch.arange(3)
    part = sliced({"x": x, "rest": (y, ["a", "b", "c"])}, 1, 3, 3)
    assert part["x"].tolist() == [[2, 3], [4, 5]]
    assert part["rest"][0].tolist() == [1, 2] and part["rest"][1] == ["b", "c"]
    square = sliced([torch.ones(2, 5), torch.ones(2)], 0, 1, 2)
    assert [one.shape for one in square] == [(1, 5), (1,)]
    with pytest.raises(ValueError, match="cannot be divided"):
        sliced(3.0, 0, 1, 2)
