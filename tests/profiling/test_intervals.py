"""Arithmetic of stretches of time agrees with counting moments one by one."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from holdfast.profiling.intervals import Span, length, shared, united, without

spans = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12)


def moments(of: list[Span]) -> set[int]:
    return {moment for begin, end in of for moment in range(int(begin), int(end))}


@given(spans)
def test_a_union_has_each_moment_once_in_order_and_apart(some: list[Span]) -> None:
    found = united(some)
    assert moments(found) == moments(some) and length(found) == len(moments(some))
    assert all(a[1] < b[0] for a, b in itertools.pairwise(found))
    assert united(found) == found and united(reversed(some)) == found


@given(spans, spans)
def test_what_two_share_and_what_one_has_alone_make_it_whole(
    some: list[Span], others: list[Span]
) -> None:
    one, other = united(some), united(others)
    assert moments(shared(one, other)) == moments(one) & moments(other)
    assert moments(without(one, other)) == moments(one) - moments(other)
    assert length(shared(one, other)) + length(without(one, other)) == length(one)
    assert shared(one, other) == shared(other, one)
