"""A group gives up quietly in the loop, raises everywhere else, and can be formed anew."""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllgatherOptions,
    HashStore,
    PrefixStore,
    ReduceScatterOptions,
)

from holdfast.train import pairs
from holdfast.train.surviving_group import AttemptBrokenError, GroupPlace, SurvivingGroup

SUM = dist.AllreduceOptions()
Pair = tuple[SurvivingGroup, SurvivingGroup]


class Attempt:
    """Who knows how it is: a test."""

    def __init__(self) -> None:
        self.broken, self.in_loop = False, True
        self.errors: list[Exception] = []
        self.recorded: list[str] = []
        self.number = 1
        self._hash = HashStore()

    def store(self) -> Any:
        return PrefixStore(f"attempt-{self.number}", self._hash)

    def break_up(self, error: Exception) -> None:
        self.broken = self.broken or self.in_loop
        self.errors.append(error)

    def record(self, _group: Any, name: str, _given: Any, _options: Any) -> None:
        self.recorded.append(name)


def both(pair: Pair, act: Callable[[SurvivingGroup, int], Any]) -> list[Any]:
    """What both ranks do at once."""
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(act, pair, (0, 1)))


@pytest.fixture
def attempt() -> Attempt:
    return Attempt()


@pytest.fixture
def pair(attempt: Attempt) -> Iterator[Pair]:
    def make(rank: int) -> SurvivingGroup:
        return SurvivingGroup(attempt, "7", (0, 1), GroupPlace(rank, 2, timedelta(seconds=60)))

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(make, (0, 1))
    yield first, second
    for group in (first, second):
        group.shutdown()


def total(group: SurvivingGroup, rank: int) -> float:
    value = torch.tensor([rank + 1.0])
    group.allreduce([value], SUM).wait()
    return value.item()


def test_a_whole_group_does_what_gloo_does(attempt: Attempt, pair: Pair) -> None:
    def gathered(group: SurvivingGroup, rank: int) -> list[float]:
        out = torch.zeros(2)
        work = group._allgather_base(out, torch.tensor([rank + 1.0]), AllgatherOptions())
        assert work.get_future().wait() is not None
        return out.tolist()

    assert both(pair, total) == [3.0, 3.0]
    assert both(pair, gathered) == [[1.0, 2.0]] * 2
    assert not attempt.broken and len(attempt.recorded) == 4
    assert pair[0].size() == 2 and pair[1].rank() == 1 and pair[0].group_name == "7"


def test_a_barrier_is_one_as_the_script_asks_for_it(attempt: Attempt, pair: Pair) -> None:
    """`dist.barrier()` gives its options by name, and nothing else."""

    def meet(group: SurvivingGroup, _rank: int) -> Any:
        assert group.barrier(opts=dist.BarrierOptions()).wait()
        return group.barrier(opts=dist.BarrierOptions()).get_future().wait()

    assert both(pair, meet) == [None, None]
    attempt.broken = True
    assert meet(pair[0], 0) is None


def test_what_waits_for_a_peer_that_is_gone_ends_and_counts_as_finished(
    attempt: Attempt, pair: Pair
) -> None:
    value = torch.tensor([5.0])
    work = pair[0].allreduce([value], SUM)
    future = pair[0].allreduce([torch.tensor([6.0])], SUM).get_future()
    pair[1].close_connections()
    assert work.wait() and future.wait()[0].item() == 6.0
    assert attempt.broken and "gloo/transport" in str(attempt.errors[0])


def test_later_operations_of_a_broken_attempt_are_finished_at_once(
    attempt: Attempt, pair: Pair
) -> None:
    attempt.broken = True
    group, own = pair[0], torch.tensor([1.0, 2.0])
    assert total(group, 4) == 5.0
    out, half = torch.zeros(4), torch.zeros(1)
    assert group._allgather_base(out, own, AllgatherOptions()).wait()
    assert group._reduce_scatter_base(half, own, ReduceScatterOptions()).wait()
    assert (out.tolist(), half.tolist()) == ([1.0, 2.0, 1.0, 2.0], [1.0])
    outs = [torch.zeros(2), torch.zeros(2)]
    assert group.allgather([outs], [own], AllgatherOptions()).is_completed()
    assert [one.tolist() for one in outs] == [[1.0, 2.0]] * 2
    assert attempt.recorded == []


def test_outside_of_the_loop_and_in_our_own_group_it_is_told(attempt: Attempt, pair: Pair) -> None:
    attempt.in_loop = False
    work = pair[0].allreduce([torch.ones(1)], SUM)
    pair[0].close_connections()
    with pytest.raises(RuntimeError, match="gloo/transport"):
        work.wait()
    assert not attempt.broken
    attempt.in_loop = attempt.broken = pair[0].private = True
    with pytest.raises(AttemptBrokenError):
        total(pair[0], 0)


def test_a_mistake_of_the_script_is_raised_and_breaks_nothing(attempt: Attempt, pair: Pair) -> None:
    with pytest.raises((RuntimeError, ValueError)):
        pair[0].allreduce([torch.ones(1).to_sparse(), torch.ones(2)], SUM)
    assert not attempt.broken and both(pair, total) == [3.0, 3.0]


def test_the_same_object_works_again_on_the_store_of_the_next_attempt(
    attempt: Attempt, pair: Pair
) -> None:
    pair[1].close_connections()
    assert total(pair[0], 0) == 1.0 and attempt.broken
    attempt.broken, attempt.number = False, 2
    both(pair, lambda group, _rank: group.form())
    assert both(pair, total) == [3.0, 3.0]


def test_only_connections_are_closed_and_only_those_that_are_still_the_same() -> None:
    before = pairs.sockets()
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    found = pairs.since(before)
    assert set(found) == {client.fileno(), server.fileno()}, "who listens is left alone"
    number = client.fileno()
    client.close()
    other = socket.create_connection(listener.getsockname())
    assert other.fileno() == number, "the descriptor is used again"
    pairs.close(found)
    assert server.recv(1) == b""
    other.sendall(b"x")
    for sock in (other, server, listener):
        sock.close()
