"""Digests of many ranks become one fact: who has the same, and who is in the minority."""

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.detection.corruption import PATIENCE_S, ReplicasReducer
from holdfast.digests import ReplicaDigest
from holdfast.events import Progress, ReplicasDiffer, each_of
from holdfast.messages import Report, WorkerReport
from tests.more import examples


def report(
    digests: Mapping[int, int | None], *, count: int, first: int = 0, attempt: int = 1
) -> Report:
    """Of these ranks; None: it has noticed nothing."""
    workers = tuple(
        WorkerReport(
            rank=rank,
            pid=1,
            progress=Progress(step=12),
            milestones={},
            replica=None
            if digest is None
            else ReplicaDigest(step=12, agreed=8, digest=digest, first=first, count=count),
        )
        for rank, digest in digests.items()
    )
    return Report(node="n", attempt=attempt, workers=workers)


def told(*reports: Report) -> list[ReplicasDiffer]:
    reducer = ReplicasReducer()
    return [event for one in reports for event in reducer.observe(one, 0.0)]


def test_the_rank_that_differs_from_most_is_named_once_all_have_told() -> None:
    (event,) = told(report({0: 7, 1: None}, count=3), report({1: 9, 2: 7}, count=3))
    assert event == ReplicasDiffer(
        attempt=1, step=12, agreed=8, compared=3, alike=(((0, 0), (2, 2)), ((1, 1),)),
        ranks=((1, 1),),
    )  # fmt: skip


def test_of_two_ranks_none_is_blamed() -> None:
    (event,) = told(report({0: 7, 1: 9}, count=2))
    assert event.ranks == () and event.alike == (((0, 0),), ((1, 1),))


def test_half_of_the_ranks_are_no_majority() -> None:
    (event,) = told(report({0: 7, 1: 9, 2: 7, 3: 9}, count=4))
    assert event.ranks == ()


def test_whoever_has_not_told_is_waited_for_a_while_and_blamed_for_nothing() -> None:
    reducer = ReplicasReducer()
    assert reducer.observe(report({0: 7, 1: 9}, count=4), 5.0) == []
    assert reducer.observe(report({2: 7}, count=4), 5.0 + PATIENCE_S / 2) == []
    (event,) = reducer.observe(report({0: 7}, count=4), 5.0 + PATIENCE_S)
    assert event.ranks == (), "two of four are no majority, whatever the last one has"
    assert [*each_of(event.alike[0])] == [0, 2]


def test_a_group_of_ranks_is_compared_among_itself() -> None:
    """Ranks 0 and 2 hold another shard than ranks 1 and 3, which have told nothing."""
    (event,) = told(report({0: 7, 1: None, 2: 9, 3: None}, count=2))
    assert event.alike == (((0, 0),), ((2, 2),)) and event.compared == 2


def test_ranks_that_noticed_nothing_and_past_attempts_say_nothing() -> None:
    reducer = ReplicasReducer()
    assert reducer.observe(report({0: None, 1: None}, count=2, attempt=2), 0.0) == []
    assert reducer.observe(report({0: 7, 1: 9}, count=2, attempt=1), 9.0) == []
    assert len(reducer.observe(report({0: 7, 1: 9}, count=2, attempt=2), 9.0)) == 1
    assert reducer.observe(report({0: 7, 1: 9}, count=2, attempt=2), 9.0) == []


@given(st.integers(3, 40), st.data())
@settings(max_examples=examples(50), deadline=None)
def test_a_minority_is_blamed_whole_and_nobody_else(count: int, data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=(count - 1) // 2))
    order = data.draw(st.permutations(range(count)))
    reports = [report({rank: rank if rank in bad else 99}, count=count) for rank in order]
    (event,) = told(*reports)
    assert set(each_of(event.ranks)) == bad


@pytest.mark.parametrize("count", [2, 5])
def test_nothing_is_told_before_all_of_them_have(count: int) -> None:
    assert told(report({rank: rank for rank in range(count - 1)}, count=count)) == []
