"""Snapshots are as close as their price allows, and at the same steps on every rank."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.train.cadence import Cadence

patient = settings(deadline=None)  # other tests may share the machine


def taken(cadence: Cadence, total: int, cost_us: int, step_us: int) -> list[int]:
    """The steps that end with a snapshot."""
    last, steps = 0, []
    for step in range(1, total + 1):
        if cadence.due(step, last, total):
            cadence.decide(step, cost_us, step_us)
            last = step
            steps.append(step)
    return steps


def test_cheap_snapshots_are_taken_each_step() -> None:
    assert taken(Cadence(None, 0.05), 50, 100, 50_000) == list(range(1, 51))


def test_dear_snapshots_move_apart_until_their_share_fits() -> None:
    cadence = Cadence(None, 0.05)
    steps = taken(cadence, 1000, 40_000, 100_000)
    assert cadence.every == 8
    later = [b - a for a, b in itertools.pairwise(steps) if a > 30 and b < 1000]
    assert set(later) == {8}


def test_a_job_can_fix_the_distance() -> None:
    assert taken(Cadence(10, 0.05), 35, 10**9, 1) == [1, 11, 21, 31, 35]


@patient
@given(st.integers(1, 300), st.integers(0, 10**6), st.integers(0, 10**6), st.floats(0.001, 1))
def test_the_first_and_the_last_step_always_end_with_one(
    total: int, cost_us: int, step_us: int, share: float
) -> None:
    steps = taken(Cadence(None, share), total, cost_us, step_us)
    assert steps[0] == 1 and steps[-1] == total


def test_unknown_prices_change_nothing() -> None:
    cadence = Cadence(None, 0.05)
    assert (cadence.cost_us, cadence.step_us) == (0, 0)
    cadence.decide(10, 0, 5000)
    assert cadence.every == 1


def test_ranks_meet_about_once_a_second_where_snapshots_are_far_apart() -> None:
    cadence = Cadence(1000, 0.05)
    assert cadence.meet_every == 1
    cadence.decide(4, 10, 20_000)
    assert (cadence.every, cadence.meet_every) == (1000, 50)
    unpriced = Cadence(1000, 0.05)
    unpriced.decide(4, 0, 20_000)
    assert (unpriced.every, unpriced.meet_every) == (1000, 50)
    slow = Cadence(None, 0.05)
    slow.decide(4, 10, 7_000_000)
    assert slow.meet_every == 1


def test_the_first_snapshots_of_an_attempt_do_not_count_as_typical() -> None:
    cadence = Cadence(None, 0.05)
    for cost in (5.0, 5.0, 5.0, 0.001, 0.001, 0.003):
        cadence.took(cost)
    assert cadence.cost_us == 1000
