"""The loader gives every sample once, to one rank, however often training is interrupted."""

import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.dimensions import VARIABLE, Layout, told
from holdfast.errors import Error
from holdfast.train.data import SampleOrder, Ticket, loader

patient = settings(deadline=None)  # other tests may share the machine

orders = st.builds(
    SampleOrder,
    sample_count=st.integers(1, 200),
    batch_size=st.integers(1, 6),
    seed=st.integers(0, 99),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
)


def step(order: SampleOrder, epoch: int, samples: int, world_size: int) -> list[Ticket]:
    """The tickets of all ranks for the step at this position."""
    return [next(order.tickets(epoch, samples, rank, world_size)) for rank in range(world_size)]


def fits(order: SampleOrder, world_size: int) -> bool:
    return order.sample_count >= world_size * (order.batch_size if order.drop_last else 1)


@patient
@given(orders, st.lists(st.integers(1, 5), min_size=1, max_size=80))
def test_no_sample_is_lost_or_doubled_over_resumes_at_any_world_size(
    order: SampleOrder, world_sizes: list[int]
) -> None:
    """Each step is taken by a loader resumed there, each time with another number of ranks."""
    seen: dict[int, list[int]] = {}
    epoch = samples = 0
    for world_size in (w for w in world_sizes if fits(order, w)):
        tickets = step(order, epoch, samples, world_size)
        assert len({(t.epoch, t.samples_after) for t in tickets}) == 1, "ranks keep in step"
        if tickets[0].epoch > epoch:
            left = order.sample_count - samples
            assert left < world_size * (order.batch_size if order.drop_last else 1)
        epoch, samples = tickets[0].epoch, tickets[0].samples_after
        seen.setdefault(epoch, []).extend(i for t in tickets for i in t.indices)
        assert len(seen[epoch]) == len(set(seen[epoch])) == samples


@patient
@given(orders, st.integers(1, 5), st.integers(0, 40))
def test_resuming_is_the_same_as_going_on(order: SampleOrder, world_size: int, after: int) -> None:
    if not fits(order, world_size):
        return
    for rank in range(world_size):
        whole = list(islice(order.tickets(0, 0, rank, world_size), after + 10))
        last = whole[after - 1] if after else Ticket(0, 0, [], 0)
        resumed = order.tickets(last.epoch, last.samples_after, rank, world_size)
        assert list(islice(resumed, 10)) == whole[after:]


@patient
@given(orders, st.integers(1, 5))
def test_every_rank_always_has_something_to_do(order: SampleOrder, world_size: int) -> None:
    if fits(order, world_size):
        for rank in range(world_size):
            tickets = islice(order.tickets(0, 0, rank, world_size), 50)
            assert all(1 <= len(t.indices) <= order.batch_size for t in tickets)


class Noisy:
    """A dataset whose items are drawn at random when they are fetched."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = [float(index), random.random(), float(np.random.random())]
        return torch.tensor(drawn, dtype=torch.float64) + torch.rand((), dtype=torch.float64)


def take(batches: Iterator[Any], count: int) -> list[torch.Tensor]:
    return list(islice(batches, count))


def test_position_counts_what_was_handed_out_and_not_what_was_fetched_ahead() -> None:
    data = loader(Noisy(), 4, num_workers=2, prefetch_factor=4)
    taken = take(iter(data), 3)
    assert len(taken) == 3 and data.state_dict()["samples"] == 12


def test_random_augmentation_in_worker_processes_resumes_bit_for_bit() -> None:
    whole = take(iter(loader(Noisy(), 4, seed=9, num_workers=2)), 14)
    first = loader(Noisy(), 4, seed=9, num_workers=2)
    before = take(iter(first), 6)
    second = loader(Noisy(), 4, seed=1, num_workers=1)
    second.load_state_dict(first.state_dict())
    after = take(iter(second), 8)
    assert all(map(torch.equal, [*before, *after], whole))


@pytest.mark.parametrize("layout", [Layout(tp=2), Layout(cp=2), Layout(pp=2)], ids=str)
def test_ranks_with_the_same_samples_augment_them_alike_whatever_the_script_has_drawn(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, told(layout))
    monkeypatch.setenv("WORLD_SIZE", "2")
    taken = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        torch.manual_seed(rank)
        random.seed(rank)
        before = torch.get_rng_state()
        taken.append(torch.stack(take(iter(loader(Noisy(), 4, seed=9)), 3)))
        assert torch.equal(torch.get_rng_state(), before), "they stay the script's"
    assert torch.equal(*taken)
    assert len({*taken[0][..., 1].flatten().tolist()}) == 12, "each sample has numbers of its own"


def test_starting_to_iterate_draws_nothing_from_the_scripts_random_numbers() -> None:
    before = torch.get_rng_state()
    take(iter(loader(list(range(10)), 2)), 3)
    assert torch.equal(torch.get_rng_state(), before)


def test_epochs_have_different_orders_and_the_same_samples() -> None:
    taken = take(iter(loader(list(range(12)), 4)), 6)
    first, second = torch.cat(taken[:3]).tolist(), torch.cat(taken[3:]).tolist()
    assert first != second and sorted(first) == sorted(second) == list(range(12))


def test_a_dataset_smaller_than_one_step_is_an_error() -> None:
    with pytest.raises(Error, match="has 3 samples, one step needs 4"):
        next(iter(loader([1, 2, 3], 4)))
    with pytest.raises(ValueError, match="batch_size"):
        loader([1, 2, 3], 0)


def test_datasets_that_fetch_many_at_once_are_asked_once_a_batch() -> None:
    class Many(list[int]):
        def __getitems__(self, indices: list[int]) -> list[int]:
            asked.append(len(indices))
            return [self[i] for i in indices]

    asked: list[int] = []
    take(iter(loader(Many(range(10)), 5)), 2)
    assert asked == [5, 5]
