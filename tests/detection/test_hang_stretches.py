"""What is no step is learned apart: the way to the loop, the first step, waits for data, saves."""

import pytest

from holdfast.detection.hang import BEGIN_MIN_S, BEGIN_S, FLOOR_S, PAUSES, STORAGE_FLOOR_S
from holdfast.events import Milestone
from tests.detection.test_hang import JOINED, Job


def slow_to_begin() -> Job:
    """The first attempt took 25 s up to its loop, and hardly any time from there."""
    job = Job()
    job.begin(1, JOINED - {Milestone.RESTORED})
    job.pass_by(25.0)
    job.reached = dict.fromkeys(job.reached, JOINED)
    job.tell()
    job.trains(20)
    job.begin(2, JOINED - {Milestone.RESTORED})
    return job


def test_a_later_attempt_is_given_less_for_its_first_step_where_only_the_way_there_is_long() -> (
    None
):
    job = slow_to_begin()
    job.pass_by(BEGIN_S - 30.0)
    assert job.suspicions == [], "four times what it took"
    job.reached = dict.fromkeys(job.reached, JOINED)
    job.pass_by(BEGIN_MIN_S + 1.0)
    assert job.suspicions[0].ago_s == pytest.approx(BEGIN_MIN_S, abs=1.0)


def test_but_not_while_one_rank_is_still_on_its_way() -> None:
    job = slow_to_begin()
    job.reached[1] = JOINED
    job.pass_by(BEGIN_S - 30.0)
    assert job.suspicions == []


def test_nor_less_than_storage_is_given_where_it_waits_for_its_first_data() -> None:
    job = slow_to_begin()
    job.reached = dict.fromkeys(job.reached, JOINED)
    job.phase = dict.fromkeys(job.phase, "data")
    job.pass_by(STORAGE_FLOOR_S - 1.0)
    assert job.suspicions == []


@pytest.mark.parametrize(("waits_for", "other"), [("data", "snapshot"), ("snapshot", "data")])
def test_who_has_waited_for_long_is_given_longer_for_that_and_for_nothing_else(
    waits_for: str, other: str
) -> None:
    job = Job()
    job.trains(100)
    job.phase = dict.fromkeys(job.phase, waits_for)
    job.pass_by(50.0)
    job.phase = dict.fromkeys(job.phase, "step")
    job.tell()
    job.trains(100)
    job.suspicions.clear()
    job.phase = dict.fromkeys(job.phase, waits_for)
    job.pass_by(PAUSES * 50.0 - 1.0)
    assert job.suspicions == []
    job.phase = dict.fromkeys(job.phase, other)
    job.pass_by(STORAGE_FLOOR_S + 1.0)
    assert job.suspicions[0].ago_s == pytest.approx(STORAGE_FLOOR_S, abs=0.5)
    job.phase = dict.fromkeys(job.phase, "step")
    job.trains(100)
    job.suspicions.clear()
    job.pass_by(FLOOR_S + 1.0)
    assert job.suspicions[0].ago_s < FLOOR_S + 0.5


def test_a_wait_for_data_between_two_reports_makes_no_step_longer() -> None:
    job = Job()
    job.phase = dict.fromkeys(job.phase, "data")
    job.trains(100)
    job.data_wait_s += 20.0
    job.now += 20.0
    job.advance(0.05)
    job.tell()
    job.trains(100)
    job.phase = dict.fromkeys(job.phase, "step")
    job.tell()
    job.pass_by(FLOOR_S + 1.0)
    assert job.suspicions and job.suspicions[-1].ago_s < FLOOR_S + 1.0
    job.trains(100)
    job.suspicions.clear()
    job.phase = dict.fromkeys(job.phase, "data")
    job.pass_by(STORAGE_FLOOR_S - 0.5)
    assert job.suspicions == []
