"""Copies lie on other nodes, outside the owner's groups where that is possible, spread evenly."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.choose import buddy_of
from holdfast.checkpoint.copy_placement import copy_holders, survival


@given(nodes=st.integers(1, 9), local=st.integers(1, 8), copies=st.integers(0, 3))
def test_without_groups_it_is_the_same_place_on_the_next_nodes(
    nodes: int, local: int, copies: int
) -> None:
    found = copy_holders(nodes * local, local, copies=copies)
    for rank, kept in enumerate(found):
        assert kept == tuple(
            (rank + ahead * local) % (nodes * local)
            for ahead in range(1, min(copies, nodes - 1) + 1)
        )
        if kept:
            assert kept[0] == buddy_of(rank, local, nodes * local)


def grid(tensor: int, pipeline: int, data: int) -> list[tuple[int, ...]]:
    """Groups of a layout in which tensor parallel ranks are neighbours, then pipeline stages."""
    world = range(tensor * pipeline * data)
    place = {r: (r % tensor, r // tensor % pipeline, r // tensor // pipeline) for r in world}
    groups = []
    for axis in range(3):
        rest = {r: tuple(v for a, v in enumerate(place[r]) if a != axis) for r in world}
        for key in set(rest.values()):
            groups.append(tuple(r for r in world if rest[r] == key))
    return groups


@pytest.mark.parametrize(
    ("tensor", "pipeline", "data", "local"),
    [(2, 2, 2, 2), (2, 2, 4, 4), (4, 2, 4, 8), (8, 4, 4, 8), (1, 4, 4, 4), (2, 4, 2, 4)],
)
@pytest.mark.parametrize("copies", [1, 2])
def test_copies_lie_outside_all_groups_of_their_owner(
    tensor: int, pipeline: int, data: int, local: int, copies: int
) -> None:
    groups = grid(tensor, pipeline, data)
    world = tensor * pipeline * data
    found = copy_holders(world, local, groups, copies)
    for rank, kept in enumerate(found):
        nodes = {other // local for other in kept}
        assert len(nodes) == len(kept) and rank // local not in nodes
    shared = [{rank, kept[0]} <= set(group) for rank, kept in enumerate(found) for group in groups]
    assert not any(shared)


@given(st.data())
def test_every_rank_keeps_as_many_copies_as_it_has(data: st.DataObject) -> None:
    nodes, local = data.draw(st.integers(2, 6)), data.draw(st.integers(1, 4))
    ranks = st.lists(st.integers(0, nodes * local - 1), unique=True, max_size=6)
    groups = data.draw(st.lists(ranks, max_size=6))
    copies = data.draw(st.integers(1, 3))
    found = copy_holders(nodes * local, local, groups, copies)
    kept = Counter(other for others in found for other in others)
    assert set(kept.values()) == {min(copies, nodes - 1)}


@pytest.mark.parametrize("copies", [0, 1, 2])
@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 8])
def test_survival_is_never_promised_too_high(nodes: int, copies: int) -> None:
    """Against all sets of losses, by hand."""
    found = copy_holders(nodes, 1, copies=copies)
    holders = [{rank, *kept} for rank, kept in enumerate(found)]
    for losses in range(nodes + 1):
        sets = [set(lost) for lost in itertools.combinations(range(nodes), losses)]
        fine = sum(not any(holder <= lost for holder in holders) for lost in sets)
        bound = survival(nodes, copies, losses)
        assert bound <= fine / len(sets) + 1e-12
        if losses <= copies + 1 and losses < nodes:
            assert bound == pytest.approx(fine / len(sets))
