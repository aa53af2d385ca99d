"""The overhead benchmark counts whole steps and what lies between their own work."""

import pytest

from stalls import WARM_UP, Times, between, lengths, row, step_time


def even(count: int, step_s: float, own_s: float) -> Times:
    """A block of equal steps, of which the warm-up took ten times as long."""
    begins, now = [], 0.0
    for number in range(count):
        begins.append(now)
        now += step_s * (10 if number < WARM_UP else 1)
    return [(began, began + own_s) for began in begins]


def test_step_reaches_to_the_beginning_of_the_next() -> None:
    assert lengths(even(WARM_UP + 4, 0.05, 0.04)) == pytest.approx([0.05] * 3)


def test_between_is_what_is_not_the_own_work() -> None:
    assert between(even(WARM_UP + 4, 0.05, 0.04)) == pytest.approx([0.01] * 3)


def test_step_time_is_not_moved_by_one_bad_block() -> None:
    blocks = [even(40, s, 0.01) for s in (0.050, 0.051, 0.500)]
    assert step_time(blocks) == pytest.approx(0.051)


def test_overhead_is_the_excess_over_plain() -> None:
    found = row([even(40, 0.0505, 0.05)], plain_s=0.05, agent_cpu=0.004)
    assert found["overhead"] == pytest.approx(0.01)
    assert found["between_s"] == pytest.approx(0.0005)
    assert found["between_share"] == pytest.approx(0.0099, rel=0.01)
    assert found["agent_cpu"] == 0.004
