"""Whom a collective waits for, by what each rank has entered in each process group."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from holdfast.collectives import Collective, GroupLog, joined_logs
from holdfast.diagnosis.collectives import (
    GROUPS_SHOWN,
    CollectiveFinding,
    Story,
    find,
    last_of_groups,
)
from holdfast.events import in_rows
from holdfast.rank_runs import in_runs

STEP = ["all_reduce float[100]", "all_reduce float[7]"]


def log(
    rank: int, kinds: Sequence[str], *, waits: bool, group: str = "0", members: Sequence[int] = ()
) -> GroupLog:
    """Of a rank that has entered these, and waits in the last."""
    last = len(kinds)
    recent = (Collective(n, 0, waits and n == last, kind) for n, kind in enumerate(kinds, start=1))
    return GroupLog(
        name=group, ranks=in_rows([rank]), members=in_runs(members), recent=tuple(recent)
    )


def found(*logs: GroupLog) -> CollectiveFinding:
    finding = find(joined_logs(logs))
    assert finding is not None
    return finding


def test_the_rank_that_has_not_come_is_named_with_what_the_others_wait_in() -> None:
    others = [log(rank, STEP * 3, waits=True) for rank in (0, 1, 3)]
    finding = found(*others, log(2, (STEP * 3)[:-1], waits=False))
    assert (finding.story, finding.ranks) == (Story.MISSING, (2,))
    assert finding.text == (
        "rank 2 has not entered all_reduce float[7] (number 6 of group 0), in which "
        "ranks 0-1, 3 wait"
    )


def test_a_rank_that_waits_in_its_own_small_group_is_not_the_one_to_blame() -> None:
    """Rank 3 keeps rank 2 from going on, and so both from what ranks 0 and 1 wait in."""
    world, pair = [log(r, STEP, waits=True) for r in (0, 1)], (2, 3)
    behind = [log(r, STEP[:1], waits=False) for r in pair]
    inner = [
        log(2, ["all_gather float[4]"] * 5, waits=True, group="1", members=pair),
        log(3, ["all_gather float[4]"] * 4, waits=False, group="1", members=pair),
    ]
    assert found(*world, *behind, *inner).ranks == (3,)


def test_whoever_enters_something_else_under_the_same_number_is_the_minority() -> None:
    good = [log(rank, STEP * 2, waits=True) for rank in (0, 1)]
    finding = found(*good, log(2, [*STEP, STEP[0], "barrier"], waits=True))
    assert (finding.story, finding.ranks) == (Story.MISMATCH, (2,))
    assert "number 4 of group 0: rank 2 barrier; ranks 0-1 all_reduce float[7]" in finding.text


def test_of_two_ranks_the_one_that_leaves_its_period_is_blamed() -> None:
    usual, other = STEP * 4, [*STEP * 3, STEP[1]]  # it has left one out
    assert found(log(0, usual, waits=True), log(1, other, waits=True)).ranks == (1,)
    assert found(log(0, other, waits=True), log(1, usual, waits=True)).ranks == (0,)


def test_of_two_ranks_without_a_period_nobody_is_blamed() -> None:
    finding = found(log(0, ["barrier"], waits=True), log(1, ["broadcast float[2]"], waits=True))
    assert (finding.story, finding.ranks) == (Story.MISMATCH, ())


def test_ranks_that_wait_for_each_other_in_two_groups_differ_in_order() -> None:
    logs = [
        log(0, STEP, waits=True, group="0"),
        log(1, STEP[:1], waits=False, group="0"),
        log(0, ["barrier"], waits=False, group="1"),
        log(1, ["barrier"] * 2, waits=True, group="1"),
    ]
    finding = found(*logs)
    assert finding.story is Story.ORDER and "the order differs" in finding.text


def test_where_all_have_entered_the_same_no_rank_is_blamed() -> None:
    finding = found(*(log(rank, STEP, waits=True, members=(0, 1)) for rank in (0, 1)))
    assert (finding.story, finding.ranks) == (Story.NOBODY, ())


def test_a_rank_that_could_not_be_asked_is_the_one_that_all_others_wait_for() -> None:
    finding = found(*(log(rank, STEP, waits=True, members=(0, 1, 2)) for rank in (0, 2)))
    assert (finding.story, finding.ranks) == (Story.MISSING, (1,))


def test_of_ranks_that_go_on_nothing_is_said() -> None:
    assert find([log(0, STEP, waits=False), log(1, STEP * 2, waits=False)]) is None
    assert find([]) is None


def test_what_ranks_entered_last_is_told_of_each_group_the_fewest_ranks_first() -> None:
    four = range(4)
    world = [log(rank, STEP * 2, waits=True, members=four) for rank in (0, 2)]
    world.append(log(1, STEP, waits=False, members=four))
    pair = [log(rank, ["barrier"], waits=False, group="1", members=(0, 1)) for rank in (0, 1)]
    assert last_of_groups(joined_logs([*pair, *world])) == (
        "last collective in group 0: rank 1 number 2 all_reduce float[7] (completed); rank 3 none "
        "known; ranks 0, 2 number 4 all_reduce float[7] (not completed)",
        "last collective in group 1: ranks 0-1 number 1 barrier (completed)",
    )
    assert last_of_groups([]) == ()


def test_of_many_groups_and_ranks_a_few_lines_are_told_those_that_differ_first() -> None:
    alike = [log(n, STEP, waits=True, group=f"a{n}", members=(n,)) for n in range(50)]
    apart = [log(n, ["barrier"] * (n + 1), waits=False, group="z") for n in range(50)]
    told = last_of_groups(joined_logs([*alike, *apart]))
    assert len(told) == GROUPS_SHOWN + 1 and max(map(len, told)) < 300
    assert told[0].startswith("last collective in group z: rank 0 number 1 barrier (completed);")
    assert told[0].endswith("47 more ranks at others")
    assert told[-1] == f"last collectives of {51 - GROUPS_SHOWN} more groups are not shown"


@given(st.data())
def test_whatever_ranks_enter_only_ranks_of_the_group_are_blamed_and_not_all(
    data: st.DataObject,
) -> None:
    kinds = st.lists(st.sampled_from([*STEP, "barrier"]), min_size=1, max_size=6)
    logs = [
        log(rank, data.draw(kinds), waits=data.draw(st.booleans()), group=group, members=range(4))
        for group in ("0", "1")
        for rank in data.draw(st.sets(st.integers(0, 3), min_size=1))
    ]
    finding = find(joined_logs(logs))
    if finding is not None and finding.story in (Story.MISSING, Story.MISMATCH):
        assert set(finding.ranks) < set(range(4))
