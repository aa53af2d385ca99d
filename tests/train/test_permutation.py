"""The order of samples is a true permutation, made point by point, and looks random."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.train.permutation import combine, permute

patient = settings(deadline=None)  # other tests may share the machine


@patient
@given(st.integers(1, 5000), st.integers(0, (1 << 64) - 1))
def test_every_sample_comes_exactly_once(count: int, key: int) -> None:
    assert sorted(permute(np.arange(count), count, key)) == list(range(count))


@patient
@given(st.integers(1, 1 << 40), st.integers(0, 1 << 64), st.data())
def test_a_point_does_not_depend_on_which_others_are_asked(
    count: int, key: int, data: st.DataObject
) -> None:
    places = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=20))
    together = permute(places, count, key).tolist()
    assert together == [permute([place], count, key).item() for place in places]
    assert all(0 <= sample < count for sample in together)


def test_orders_of_different_keys_and_neighbours_have_nothing_in_common() -> None:
    count = 20_000
    orders = [permute(np.arange(count), count, combine(0, epoch)) for epoch in range(6)]
    for order in orders:
        assert (order == np.arange(count)).sum() < 12
        correlation = np.corrcoef(order[:-1], order[1:])[0, 1]
        assert abs(correlation) < 0.03
    for a, b in itertools.pairwise(orders):
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.03


def test_combined_numbers_make_different_keys() -> None:
    keys = {combine(a, b, c) for a in range(-5, 20) for b in range(20) for c in range(20)}
    assert len(keys) == 25 * 20 * 20
    assert combine(1, 2) != combine(2, 1)
