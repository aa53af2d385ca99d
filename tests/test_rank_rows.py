"""Rows of ranks are put together as if each rank had been counted."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.events import in_rows
from holdfast.rank_rows import LOOSE, JoinedRows


@given(st.lists(st.sets(st.integers(0, 40))))
def test_it_is_as_if_each_rank_had_been_counted(sets: list[set[int]]) -> None:
    found = JoinedRows(())
    for one in sets:
        found.add(in_rows(one))
    assert found.rows() == in_rows(rank for one in sets for rank in one)


def test_rows_that_touch_are_not_kept_apart_and_others_are_all_kept() -> None:
    together, apart = JoinedRows(()), JoinedRows(())
    for number in range(20 * LOOSE):
        together.add(((number, number),))
        apart.add(((2 * number, 2 * number),))
    assert together.rows() == ((0, 20 * LOOSE - 1),) and len(together._rows) <= LOOSE
    assert len(apart.rows()) == 20 * LOOSE
