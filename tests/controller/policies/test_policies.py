"""Policies are functions: what they answer, and where they refuse to."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.controller.policies import interval, replace, restart
from holdfast.goodput import formulas
from holdfast.spec import spares
from holdfast.spec.job import Nodes


@pytest.mark.parametrize(("nodes", "standbys"), [(128, 2), (256, 2), (512, 3), (1024, 4)])
def test_the_standby_table_of_byterobust_comes_out(nodes: int, standbys: int) -> None:
    assert spares.spares_for(nodes, 0.0012, quantile=0.99) == standbys


@given(st.integers(1, 500), st.floats(0, 0.9), st.floats(0.5, 0.999))
def test_spares_cover_their_quantile_and_one_less_would_not(
    nodes: int, share: float, quantile: float
) -> None:
    found = spares.spares_for(nodes, share, quantile)
    assert _at_most(found, nodes, share) >= quantile - 1e-9
    assert found == 0 or _at_most(found - 1, nodes, share) < quantile + 1e-9


def _at_most(count: int, nodes: int, share: float) -> float:
    terms = (math.comb(nodes, k) * share**k * (1 - share) ** (nodes - k) for k in range(count + 1))
    return math.fsum(terms)


def test_spares_that_nobody_counts_are_reckoned_and_shown() -> None:
    counts = {
        nodes: Nodes(count=nodes, spares="auto").spare_count for nodes in (1, 8, 1024, 12_800)
    }
    assert counts == {1: 1, 8: 1, 1024: 3, 12_800: 10}
    told = Nodes(count=1024, spares="auto").spares_why
    assert told == (
        "auto: 3; of 1,024 nodes 0.277 fail within 60 min, the time until a lost one is replaced, "
        "at 6.5 failures per 1,000 node-days; 3 cover 99.98 % of such times, 2 would cover 99.71 %"
    )
    assert (Nodes(spares=2).spare_count, Nodes(spares=2).spares_why) == (2, "")


def test_spares_for_a_hundred_thousand_nodes_neither_overflow_nor_underflow() -> None:
    assert 560 < spares.spares_for(100_000, 0.005) < 580
    assert spares.spares_for(100_000, 0.0) == 0


@pytest.mark.parametrize("share", [-0.1, 1.0, 2.0])
def test_an_impossible_probability_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="impossible"):
        spares.spares_for(10, share)


def test_the_share_that_fails_in_a_while_is_about_rate_times_time() -> None:
    rate = formulas.per_1000_node_days(1.2)
    assert spares.failed_share(rate, 86_400.0) == pytest.approx(0.0012, rel=1e-3)


def test_the_interval_is_that_of_the_formula_and_never_below_a_step() -> None:
    assert interval.interval_s(10.0, 3600.0) == formulas.young_s(10.0, 3600.0)
    assert interval.interval_s(0.02, 3600.0, step_s=15.0) == 15.0


def test_patience_grows_to_the_window_over_half_the_cap_and_never_beyond_ten_minutes() -> None:
    waits = [restart.patience_s(k, 20, 3600.0) for k in range(10)]
    assert waits == [0.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 360.0, 360.0]
    assert restart.patience_s(5000, 1000, 3600.0) == restart.LAST_BACKOFF_S
    assert restart.patience_s(5000, 0, 3600.0) == restart.LAST_PATIENCE_S


@given(st.integers(20, 1000), st.floats(600.0, 86_400.0))
def test_an_outage_alone_does_not_use_up_the_cap_within_the_window(
    cap: int, window_s: float
) -> None:
    """Unless the wait would be longer than ten minutes."""
    if restart.PATIENT_SHARE * window_s / cap > restart.LAST_PATIENCE_S:
        return
    at = 0.0
    for fruitless in range(cap):
        at += restart.patience_s(fruitless, cap, window_s)
    assert at >= window_s


def test_the_first_device_fault_is_forgiven_and_the_second_within_a_day_is_not() -> None:
    assert not replace.wanted(1, replace.REPLACE_AFTER, spares=1, fruitless=0)
    assert replace.wanted(2, replace.REPLACE_AFTER, spares=1, fruitless=0)
    assert replace.recent([0.0, 90_000.0], now=100_000.0) == [90_000.0]


def test_without_a_spare_a_node_is_replaced_only_when_nothing_works_on_it() -> None:
    assert not replace.wanted(5, 2, spares=0, fruitless=0)
    assert replace.wanted(2, 2, spares=0, fruitless=1)
    assert not replace.wanted(3, 3, spares=0, fruitless=1)
    assert replace.wanted(3, 3, spares=0, fruitless=2)
    assert not replace.wanted(1, 1, spares=0, fruitless=0), "it may have been the only one"
    assert not replace.wanted(5, 0, spares=3, fruitless=9)


def test_the_back_off_grows_to_its_limit_and_stays_there_for_any_number_of_attempts() -> None:
    waits = [restart.backoff_s(n) for n in (0, 1, 2, 3, 8, 9, 2_000, 1_000_000)]
    assert waits == [0.0, 0.0, 0.5, 1.0, 30.0, 30.0, 30.0, 30.0]
