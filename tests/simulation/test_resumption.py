"""The referee of snapshots that are gone on from in place."""

from collections.abc import Sequence

import pytest

from holdfast.checkpoint.choose import Holding, RestorePlan
from holdfast.checkpoint.key import Key
from holdfast.simulation.memory import NodeMemory, WrittenPart
from holdfast.simulation.resumption import Resumption

OLD, NEW, OTHER = Key(1, 8), Key(1, 10), Key(2, 10)


def holding(own: Sequence[Key], buddy: Sequence[Key] = ()) -> Holding:
    return Holding(frozenset(own), frozenset(own), frozenset(buddy))


def memory(*parts: WrittenPart) -> NodeMemory:
    return NodeMemory(frozenset(parts), frozenset(parts))


def plan(
    key: Key, private: tuple[int, ...] = (0, 1), shared: tuple[int, ...] = (0, 1)
) -> RestorePlan:
    return RestorePlan(key, shared, private)


def test_going_on_from_the_newest_whole_snapshot_is_no_foul() -> None:
    both = [holding([OLD, NEW]), holding([OLD, NEW])]
    assert not Resumption().resumed(2, plan(NEW), both, 1)
    torn = [holding([OLD, NEW]), holding([OLD])]
    assert not Resumption().resumed(2, plan(OLD), torn, 1)
    assert not Resumption().resumed(1, None, [holding([]), holding([])], 1)


def test_a_part_may_come_from_the_neighbour() -> None:
    """Rank 1 has lost everything: rank 0 has its part, and the shared one is the same anywhere."""
    held = [holding([NEW], buddy=[NEW]), holding([])]
    assert not Resumption().resumed(2, plan(NEW, private=(0, 0), shared=(0, 0)), held, 1)


def test_a_snapshot_that_is_not_whole_is_a_foul() -> None:
    held = [holding([OLD, NEW]), holding([OLD])]
    assert "resumes from (10, 1), not from (8, 1)" in Resumption().resumed(2, plan(NEW), held, 1)


def test_parts_of_two_attempts_are_no_whole_snapshot() -> None:
    held = [holding([OLD, NEW]), holding([OLD, OTHER])]
    assert "resumes from (10, 2), not from (8, 1)" in Resumption().resumed(3, plan(OTHER), held, 1)


def test_an_older_snapshot_than_necessary_is_a_foul() -> None:
    held = [holding([OLD, NEW]), holding([OLD, NEW])]
    assert "not from (10, 1)" in Resumption().resumed(2, plan(OLD), held, 1)
    assert "resumes from None" in Resumption().resumed(2, None, held, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        plan(NEW, private=(0, 0), shared=(0, 1)),  # rank 1 has no shared part
        plan(NEW, private=(0, 1), shared=(0, 0)),  # nor a private one
    ],
)
def test_a_giver_that_has_nothing_is_a_foul(wrong: RestorePlan) -> None:
    held = [holding([NEW], buddy=[NEW]), holding([])]
    assert "rank 1 of attempt 2 is sent to ranks" in Resumption().resumed(2, wrong, held, 1)


def test_a_private_part_of_somebody_else_is_a_foul() -> None:
    """Rank 2 has a private part of this name, but neither rank 0's own nor its neighbour's."""
    held = [holding([], buddy=[]), holding([NEW], buddy=[NEW]), holding([NEW], buddy=[NEW])]
    wrong = RestorePlan(NEW, (1, 1, 2), (2, 1, 2))
    assert "rank 0 of attempt 2" in Resumption().resumed(2, wrong, held, 1)
