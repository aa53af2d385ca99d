"""The first steps of an attempt are compared with those before, which its workers do not know."""

import pytest

from holdfast.detection.jump import JumpWatch
from holdfast.detection.numerics import LEARNED_COUNT, NumbersReducer
from holdfast.events import NumbersSpiked, Progress, Quantity, Spike
from holdfast.messages import Report, WorkerReport


def told(attempt: int, step: int, loss: float | None, rank: int = 0) -> Report:
    worker = WorkerReport(rank=rank, pid=1, milestones={}, progress=Progress(step=step), loss=loss)
    return Report(node="n", attempt=attempt, workers=(worker,))


def after(steps: int, loss: float = 2.0) -> NumbersReducer:
    """One that has heard an attempt of so many steps."""
    numbers = NumbersReducer(JumpWatch().observe)
    for step in range(1, steps + 1):
        assert numbers.observe(told(1, step, loss)) == []
    return numbers


def test_a_loss_that_jumps_with_a_new_attempt_is_told_once() -> None:
    numbers = after(100)
    assert numbers.observe(told(2, 90, None)) == []
    spike = Spike(step=91, what=Quantity.LOSS, value=11.0, usual=2.0)
    assert numbers.observe(told(2, 91, 11.0)) == [NumbersSpiked(attempt=2, rank=0, spike=spike)]
    for step in range(92, 92 + LEARNED_COUNT):
        assert numbers.observe(told(2, step, 11.0)) == []


def test_an_attempt_that_goes_on_as_before_is_told_nothing_of() -> None:
    numbers = after(100)
    for step in range(101, 101 + LEARNED_COUNT):
        assert numbers.observe(told(2, step, 2.1)) == []
    assert numbers.observe(told(2, 300, 40.0)) == [], "from here on its workers know themselves"


@pytest.mark.parametrize("first", [1, LEARNED_COUNT // 2])
def test_an_attempt_that_begins_anew_has_nothing_to_be_compared_with(first: int) -> None:
    numbers = after(100, loss=0.01)
    assert numbers.observe(told(2, first, 2.0)) == []


def test_another_rank_has_another_loss_and_a_past_attempt_is_not_heard() -> None:
    numbers = after(100)
    assert numbers.observe(told(2, 101, 50.0, rank=3)) == []
    assert numbers.observe(told(2, 101, 50.0)) != []
    assert numbers.observe(told(1, 102, 50.0)) == []
