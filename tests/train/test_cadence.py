"""Snapshots are as close as their price allows, and at the same steps on every rank."""

import itertools
import random

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


def stepped(cadence: Cadence, times: list[float], every: int, extra_s: float) -> None:
    """Steps of these times, each `every`-th longer because a snapshot is copied beside it."""
    for number, step_s in enumerate(times):
        beside = number % every == every - 1
        cadence.stepped(step_s + (extra_s if beside else 0.0), beside=beside)
        if beside:
            cadence.took(0.001)


def test_what_a_copy_beside_a_step_adds_to_it_is_part_of_its_price() -> None:
    cadence = Cadence(None, 0.01)
    stepped(cadence, [0.1] * 60, 2, 0.002)
    assert cadence.cost_us == 3000
    cadence.decide(60, cadence.cost_us, cadence.step_us)
    assert cadence.every == 3


@patient
@given(st.integers(0, 10**6))
def test_a_difference_that_may_be_chance_is_not(seed: int) -> None:
    noise = random.Random(seed)
    cadence = Cadence(None, 0.01)
    stepped(cadence, [noise.gauss(0.1, 0.002) for _ in range(200)], 2, 0.0)
    assert cadence.cost_us < 1000 + 2000, "of a noise of 2 ms a step at most an error is left"
    steady = Cadence(None, 0.01)
    stepped(steady, [noise.gauss(0.1, 0.002) for _ in range(200)], 2, 0.01)
    assert 9_000 < steady.cost_us < 13_000, "and a real difference is not lost in it"


def test_before_steps_have_been_compared_every_second_one_goes_without() -> None:
    cadence = Cadence(None, 0.01)
    stepped(cadence, [0.1] * 6, 1, 0.0)
    cadence.decide(10, cadence.cost_us, cadence.step_us)
    assert cadence.every == 2
    stepped(cadence, [0.1] * 30, 2, 0.0)
    cadence.decide(40, cadence.cost_us, cadence.step_us)
    assert (cadence.every, cadence.cost_us) == (1, 1000)


def test_steps_that_grow_are_not_taken_for_slowed_down() -> None:
    """With a copy beside each of them there is nothing to compare with, whatever was before."""
    cadence = Cadence(1, 0.01)
    cadence.stepped(0.001)
    stepped(cadence, [0.001 * n for n in range(1, 100)], 1, 0.0)
    assert cadence.cost_us == 1000


def test_time_taken_from_training_counts_once() -> None:
    """The thread that copies had to share a core: that is why steps are slower."""
    cadence = Cadence(None, 0.01)
    for number in range(60):
        cadence.stepped(0.103 if number % 2 else 0.1, beside=bool(number % 2))
        if number % 2:
            cadence.took(0.001, 0.002)
    assert cadence.cost_us == 4000
