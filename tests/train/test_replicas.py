"""Replicas of parameters are compared bit for bit, and no snapshot of a difference is kept."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoint.arena import Arena, StatePart
from holdfast.digests import ReplicaDigest
from holdfast.train import replicas
from tests.more import examples
from tests.train.cluster import Cluster

Make = Callable[..., Cluster]


def digest(*tensors: torch.Tensor) -> int:
    return replicas._digest(replicas._sums(tensors))


KINDS = (torch.float32, torch.bfloat16, torch.float64, torch.uint8, torch.bool, torch.complex64)


@given(
    st.lists(st.integers(0, 5), max_size=3),
    st.sampled_from(KINDS),
    st.sampled_from(["whole", "transposed", "gaps", "odd place"]),
    st.data(),
)
@settings(max_examples=examples(150), deadline=None)
def test_every_bit_of_every_tensor_counts(
    shape: list[int], kind: torch.dtype, how: str, data: st.DataObject
) -> None:
    made = torch.Generator().manual_seed(1)
    tensor = torch.randint(0, 2, shape, generator=made).to(kind)
    if how == "transposed":
        tensor = tensor.t() if tensor.ndim == 2 else tensor
    elif how == "gaps" and tensor.ndim:
        tensor = tensor.repeat_interleave(2, 0)[::2]
    elif how == "odd place":
        tensor = torch.cat([tensor.flatten()[:1], tensor.flatten()])[1:]
    before = digest(torch.ones(3), tensor)
    assert digest(torch.ones(3), tensor.clone()) == before
    if tensor.numel() == 0:
        return
    flipped = tensor.clone() if tensor.numel() > 1 else tensor.flatten().repeat(1)
    raw = replicas._flat(flipped).view(torch.uint8)  # where it lies
    at, bit = data.draw(st.integers(0, raw.numel() - 1)), data.draw(st.integers(0, 7))
    raw[at] ^= 1 << bit
    assert digest(torch.ones(3), flipped) != before


def test_which_parameter_holds_a_number_counts() -> None:
    one, two = torch.ones(4), torch.zeros(4)
    assert digest(one, two) != digest(two, one)


# ── between ranks ──


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Cluster] = []

    def cluster(local: int, **env: str) -> Cluster:
        folder = tmp_path / str(len(made))
        made.append(Cluster(folder, local=local, env={"HOLDFAST_CHECK_REPLICAS": "2", **env}))
        return made[-1]

    yield cluster
    for one in made:
        one.close()


def told(cluster: Cluster) -> list[ReplicaDigest | None]:
    return [page.report(0, 1, 0.0).replica for page in cluster.attempts[-1].pages]


def kept(cluster: Cluster, rank: int) -> set[int]:
    found = (cell.header() for cell in Arena(cluster.arenas[rank]).cells(StatePart.SHARED))
    return {header.step for header in found if header}


def test_a_flip_is_noticed_on_all_ranks_and_what_was_taken_since_is_thrown_away(
    make: Make,
) -> None:
    calm, two = make(2), make(2, FLIP="1:4")
    calm.finish()
    assert told(calm) == [None, None]
    codes = two.run().exit_codes
    assert all(codes) and "error[replicas-differ]" in two.story()
    first, second = told(two)
    assert first is not None and second is not None
    assert (first.step, first.agreed, first.first, first.count) == (5, 4, 0, 2)
    assert (second.step, second.agreed) == (5, 4) and first.digest != second.digest
    assert max(kept(two, 0)) == max(kept(two, 1)) == 4
    two.env.pop("FLIP")
    two.env["HOLDFAST_RESTORE_BELOW"] = "5"
    assert two.finish().restored == [4, 4]
    assert two.outcome() == calm.outcome()


def test_snapshots_that_are_copied_beside_training_are_compared_as_well(make: Make) -> None:
    two = make(2, FLIP="0:4", LAZY="real")
    two.run()
    assert max(kept(two, 0)) == max(kept(two, 1)) == 4


def test_without_snapshots_in_between_the_next_comparison_finds_it(make: Make) -> None:
    two = make(2, FLIP="1:4", HOLDFAST_SNAPSHOT_EVERY="100", STEPS="12")
    two.run()
    found, _ = told(two)
    assert found is not None and (found.step, found.agreed) == (6, 4)


def test_shards_are_compared_with_those_of_the_other_replica_only(make: Make) -> None:
    calm = make(4, SPLIT="hybrid", STEPS="3")
    calm.finish()
    four = make(4, SPLIT="hybrid", STEPS="3", FLIP="2:1")
    four.run()
    first, other, second, _ = told(four)
    assert first is not None and second is not None and other is None
    assert (first.first, first.count, first.step) == (0, 2, 2)
    assert first.digest != second.digest


def test_who_has_nothing_to_compare_says_so_once_and_trains(make: Make) -> None:
    two = make(2, SPLIT="sharded", STEPS="3")
    two.finish()
    assert two.story().count("recovery.check_replicas_every has no effect") == 1
