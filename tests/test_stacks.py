"""Stacks of ranks that stand at the same place are one; however many come, few are held."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.events import each_of, in_rows
from holdfast.stacks import (
    LEFT_OUT,
    MAX_FRAMES,
    MAX_GROUPS,
    StackGroup,
    ThreadStack,
    in_words,
    joined,
    shortened,
)


def group(*ranks: int, at: str = "step", state: str = "sleeping") -> StackGroup:
    thread = ThreadStack(name="MainThread", pid=ranks[0], frames=("main", at))
    return StackGroup(ranks=in_rows(ranks), threads=(thread,), state=state)


def test_the_same_stack_is_one_group_and_the_rarest_comes_first() -> None:
    together = joined([group(0, 1), group(2, at="read"), group(3, 5)])
    assert [one.ranks for one in together] == [((2, 2),), ((0, 1), (3, 3), (5, 5))]
    assert [one.count for one in together] == [1, 4]
    assert together[1].threads[0].pid == 0, "the example is the lowest rank"


def test_another_state_or_reason_is_another_group() -> None:
    lost = StackGroup(ranks=((7, 7),), why="the process has ended")
    assert len(joined([group(0), group(1, state="stopped"), lost])) == 3


@given(st.lists(st.tuples(st.sets(st.integers(0, 50), min_size=1), st.sampled_from("abc"))))
def test_no_rank_is_lost_or_doubled_in_whatever_order_groups_come(
    said: list[tuple[set[int], str]],
) -> None:
    taken: set[int] = set()
    groups = []
    for ranks, at in said:
        if fresh := ranks - taken:
            groups.append(group(*sorted(fresh), at=at))
            taken |= fresh
    one_by_one: tuple[StackGroup, ...] = ()
    for found in groups:
        one_by_one = joined([*one_by_one, found])
    assert one_by_one == joined(groups)
    assert sorted(rank for one in one_by_one for rank in each_of(one.ranks)) == sorted(taken)


def test_of_very_many_places_the_rarest_are_kept() -> None:
    many = [group(*range(10 * n, 10 * n + 2), at=str(n)) for n in range(2 * MAX_GROUPS)]
    kept = joined([*many, group(10**6, at="alone")])
    assert len(kept) == MAX_GROUPS and kept[0].ranks == ((10**6, 10**6),)


def test_of_a_deep_stack_both_ends_are_kept() -> None:
    frames = [str(n) for n in range(1_000)]
    short = shortened(frames)
    assert len(short) == MAX_FRAMES and LEFT_OUT in short
    assert (short[0], short[-1]) == ("0", "999")
    assert shortened(frames[:MAX_FRAMES]) == tuple(frames[:MAX_FRAMES])


def test_ranks_in_words() -> None:
    assert in_words(in_rows([0, 1, 2, 7])) == "0-2, 7"
    assert in_words(in_rows(range(0, 100, 2)), most=2) == "0, 2, ..."
