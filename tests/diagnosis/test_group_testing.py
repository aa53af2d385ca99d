"""Bad nodes are found by the groups that fail: every single one, every pair, and no good one."""

import itertools
from collections.abc import Callable, Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.diagnosis.group_testing import Group, Located, TryGroups, next_step, shape

SHAPES = [  # nodes, nodes of a replica; in the last two groups are larger than there are of them
    (4, 1), (5, 1), (7, 1), (9, 1), (12, 1), (16, 1), (30, 1), (8, 2), (16, 2), (24, 2), (32, 4),
    (36, 3), (64, 4), (6, 3), (12, 4),
]  # fmt: skip


def names(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


def search(
    nodes: list[str], unit: int, fails: Callable[[Group], bool]
) -> tuple[Located, list[TryGroups]]:
    """Do what is said until something is found; the rounds that it took."""
    failed: dict[Group, bool] = {}
    rounds = []
    while isinstance(step := next_step(nodes, unit, failed), TryGroups):
        rounds.append(step)
        tried = [node for group in step.groups for node in group]
        assert len(tried) == len(set(tried)), "at the same time no node is in two groups"
        assert set(tried) <= set(nodes)
        new = {group: fails(group) for group in step.groups}
        assert not new.keys() & failed.keys(), "nothing is tried twice"
        failed |= new
        assert len(rounds) < 100
    return step, rounds


def found(nodes: int, unit: int, bad: Collection[str]) -> tuple[Located, list[TryGroups]]:
    return search(names(nodes), unit, lambda group: bool(set(group) & set(bad)))


@pytest.mark.parametrize(("nodes", "unit"), SHAPES)
def test_every_single_bad_node_is_found(nodes: int, unit: int) -> None:
    size, count = shape(nodes, unit)
    for bad in names(nodes):
        located, rounds = found(nodes, unit, [bad])
        assert (located.nodes, located.sure) == ((bad,), True)
        if size <= count:
            assert len(rounds) == 2, "two phases are enough"


@pytest.mark.parametrize(("nodes", "unit"), SHAPES)
def test_every_pair_of_bad_nodes_is_found_or_honestly_in_doubt(nodes: int, unit: int) -> None:
    size, _ = shape(nodes, unit)
    for bad in itertools.combinations(names(nodes), 2):
        located, rounds = found(nodes, unit, bad)
        assert set(bad) <= set(located.nodes)
        if located.sure:
            assert set(located.nodes) == set(bad)
            assert len(rounds) <= 6
        else:
            assert nodes - len(located.nodes) < size - 1, "too few good ones to tell them apart"


@pytest.mark.parametrize(("nodes", "unit"), [(16, 1), (30, 1), (24, 2), (64, 4), (36, 3)])
def test_where_there_are_groups_enough_no_pair_stays_in_doubt(nodes: int, unit: int) -> None:
    for bad in itertools.combinations(names(nodes), 2):
        located, rounds = found(nodes, unit, bad)
        assert located.sure and len(rounds) <= 3


def test_groups_are_whole_replicas_and_as_large_as_can_be_told_apart() -> None:
    """For 12 pipelines of 2 nodes, say: at most as many nodes in a group as there are groups."""
    for nodes, unit in SHAPES[:-2]:
        size, count = shape(nodes, unit)
        assert size <= count and size % unit == 0
        _, rounds = found(nodes, unit, [])
        sizes = {len(group) for one in rounds for group in one.groups}
        assert sizes <= ({size} if unit > 1 else {size, size - 1, nodes % size or size})
    assert (shape(24, 2), shape(64, 4), shape(16, 1)) == ((4, 6), (8, 8), (4, 4))


def test_a_fault_that_does_not_come_again_blames_nobody() -> None:
    located, _ = found(16, 1, [])
    assert located == Located((), True, "no group failed: the fault did not recur at this size")


def test_a_fault_that_comes_once_is_no_proof() -> None:
    first = iter([True])
    located, _ = search(names(16), 1, lambda _group: next(first, False))
    assert not located.sure and set(located.nodes) == {"n0", "n1", "n2", "n3"}


@pytest.mark.parametrize("nodes", [1, 3])
def test_what_cannot_be_divided_says_so(nodes: int) -> None:
    located = next_step(names(nodes), nodes, {})
    assert isinstance(located, Located) and not located.sure
    assert "cannot be divided" in located.text


@pytest.mark.parametrize(("nodes", "unit"), [(7, 2), (4, 0), (0, 1), (2, 4)])
def test_half_a_replica_is_refused(nodes: int, unit: int) -> None:
    with pytest.raises(ValueError, match="whole replicas"):
        shape(nodes, unit)


@given(st.data())
def test_no_good_node_is_ever_said_to_be_bad_for_sure(data: st.DataObject) -> None:
    nodes, unit = data.draw(st.sampled_from(SHAPES))
    bad = data.draw(st.sets(st.sampled_from(names(nodes)), max_size=5))
    located, _ = found(nodes, unit, bad)
    if located.sure:
        assert set(located.nodes) == bad
    else:
        assert bad <= set(located.nodes)


@given(st.data())
def test_whatever_groups_answer_the_search_ends(data: st.DataObject) -> None:
    """Faults that come and go."""
    nodes, unit = data.draw(st.sampled_from(SHAPES))
    located, _ = search(names(nodes), unit, lambda _group: data.draw(st.booleans()))
    assert set(located.nodes) <= set(names(nodes)) and located.text
