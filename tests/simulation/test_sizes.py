"""Sizes that change: the two referees, and that worlds have what they look at."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.choose import Snapshot
from holdfast.checkpoint.key import Key
from holdfast.simulation import memory
from holdfast.simulation.memory import BATCH, NodeMemory, ResumedFrom, WrittenPart
from holdfast.simulation.resumption import Samples, WholeSnapshots
from tests.simulation.test_world import lived, quiet

OLD, NEW = Key(1, 8), Key(1, 10)


def held(*ranks: Sequence[WrittenPart]) -> list[NodeMemory]:
    return [NodeMemory(frozenset(own), frozenset(own)) for own in ranks]


def parts(key: Key, *ranks: int, size: int) -> list[WrittenPart]:
    return [WrittenPart(key, rank, size) for rank in ranks]


def test_the_newest_snapshot_of_any_size_is_put_together_from_its_parts() -> None:
    """Of three ranks two are left: what all three have written is still there, on two of them."""
    there = held(parts(OLD, 0, size=3), parts(OLD, 1, 2, size=3))
    found = ResumedFrom(Snapshot(OLD, 3), None)
    assert memory.restorable(there, 1) == found
    assert not WholeSnapshots().resumed(2, found, there)


@pytest.mark.parametrize(
    ("found", "foul"),
    [
        (ResumedFrom(Snapshot(NEW, 3), None), "nobody has the part of rank 2"),
        (ResumedFrom(Snapshot(Key(1, 4), 2), None), "not from (8, 1, 3)"),
        (None, "starts from step 0 beside (8, 1, 3)"),
    ],
)
def test_what_lacks_a_part_and_what_is_older_than_necessary_is_a_foul(
    found: ResumedFrom | None, foul: str
) -> None:
    older = parts(Key(1, 4), 0, 1, size=2)
    there = held(
        [*parts(OLD, 0, 1, size=3), *parts(NEW, 0, size=3), *older],
        [*parts(OLD, 2, size=3), *parts(NEW, 1, size=3)],
    )
    assert memory.restorable(there, 1) == ResumedFrom(Snapshot(OLD, 3), None)
    assert foul in WholeSnapshots().resumed(2, found, there)


@given(st.booleans(), st.lists(st.tuples(st.integers(1, 7), st.integers(1, 9)), max_size=6))
def test_over_any_sequence_of_sizes_no_sample_is_lost_or_used_twice(
    keeps: bool, lives: list[tuple[int, int]]
) -> None:
    referee, key, used = Samples(6, keeps), None, 0
    for attempt, (ranks, steps) in enumerate(lives, 1):
        whole = BATCH * (6 if keeps else ranks)
        assert not referee.resumed(attempt, key, memory.dealt([used] * ranks, whole))
        used += steps * whole
        key = Key(attempt, (key.step if key is not None else 0) + steps)


@pytest.mark.parametrize(
    "dealt",
    [
        [range(24, 36), range(36, 47)],  # one is lost
        [range(24, 36), range(35, 48)],  # one is used twice
        [range(24, 36), range(37, 49)],
        [range(12), range(12, 24)],  # the whole step again
    ],
)
def test_samples_that_are_lost_or_used_twice_are_a_foul(dealt: list[range]) -> None:
    referee = Samples(6, keeps=True)
    assert not referee.resumed(1, None, memory.dealt([0, 0, 0], 24))
    assert "ranks of attempt 2 take" in referee.resumed(2, Key(1, 1), dealt)


def test_ranks_that_are_at_different_places_are_a_foul() -> None:
    referee = Samples(2, keeps=False)
    assert not referee.resumed(1, None, memory.dealt([0, 0], 8))
    assert referee.resumed(2, Key(1, 3), memory.dealt([24, 16], 8))


def test_a_size_that_grows_goes_on_from_where_it_was_with_the_state_of_another_size() -> None:
    """Rare snapshots: what is gone on from is the one that the attempt has ended with."""
    hard = quiet(rates={"node_deaths": 30.0}, total_steps=0, snapshot_every=50, step_s=5.0)
    limits = msgspec.structs.replace(
        hard.limits, node_count=3, min_nodes=1, spare_count=0, in_process=True, replicas=True
    )
    world = lived(msgspec.structs.replace(hard, limits=limits, hours=8.0))
    assert world.control is not None
    incidents = world.control.state.incidents
    grown = [one for one in incidents if one.cause == "resized" and one.ended_at is not None]
    assert grown
    # resharded from memory: no step is done again, but where a node was lost on the way
    assert min(one.steps_lost for one in grown) == 0
