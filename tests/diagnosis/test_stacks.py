"""Where ranks part: a tree of frames, the rarest branch first."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.diagnosis.stacks import Branch, tree
from holdfast.events import each_of, in_rows
from holdfast.stacks import StackGroup, ThreadStack


def group(*frames: str, ranks: range) -> StackGroup:
    thread = ThreadStack(name="MainThread", pid=1, frames=frames)
    return StackGroup(ranks=in_rows(ranks), threads=(thread,))


def test_the_rank_that_the_others_wait_for_is_the_first_branch() -> None:
    waits = group("main", "train", "backward", "all_reduce", ranks=range(1, 512))
    reads = group("main", "train", "read_batch", ranks=range(1))
    found = tree([waits, reads])
    assert found.frames == ("main", "train") and found.ended == ()
    assert [way.frames for way in found.below] == [("read_batch",), ("backward", "all_reduce")]
    assert [way.ended for way in found.below] == [(reads,), (waits,)]


def test_a_stack_that_ends_where_others_go_on_ends_there() -> None:
    short, long = group("main", ranks=range(1)), group("main", "step", ranks=range(1, 2))
    found = tree([short, long])
    assert found.ended == (short,) and found.below[0].ended == (long,)


def test_one_group_is_one_branch_and_none_is_an_empty_one() -> None:
    only = group("main", "step", ranks=range(4))
    assert tree([only]) == Branch(("main", "step"), ((0, 3),), (only,), ())
    assert tree([]) == Branch((), (), (), ())


@given(st.sets(st.lists(st.sampled_from("abc"), min_size=1, max_size=6).map(tuple), min_size=1))
def test_every_group_is_found_below_its_own_frames(stacks: set[tuple[str, ...]]) -> None:
    groups = [group(*frames, ranks=range(n, n + 1)) for n, frames in enumerate(sorted(stacks))]
    found: list[StackGroup] = []

    def walk(branch: Branch, above: tuple[str, ...]) -> None:
        here = above + branch.frames
        for one in branch.ended:
            assert one.frames == here
            found.append(one)
        for way in branch.below:
            assert way.frames
            walk(way, here)
        below = [one for one in groups if one.frames[: len(here)] == here]
        assert set(each_of(branch.ranks)) == {r for one in below for r in each_of(one.ranks)}

    walk(tree(groups), ())
    assert sorted(found, key=lambda one: one.ranks) == groups
