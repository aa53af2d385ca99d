"""When the next attempt's workers are made: never while recovery needs the machine."""

from typing import Any

from holdfast.agent.node_attempt import NodeAttempt
from holdfast.agent.warm_up import AFTER_START_S, AFTER_STOP_S, WarmUp


def attempt(**state: Any) -> NodeAttempt:
    order: Any = None
    return NodeAttempt(order, **state)


def test_a_script_that_reports_steps_is_up_with_its_first_one() -> None:
    warm_up = WarmUp(reports_steps=True)
    warm_up.attempt_started(0.0)
    assert not warm_up.take_due(attempt(), 1e9)
    assert warm_up.take_due(attempt(trains=True), 0.1)


def test_any_other_script_is_taken_to_be_up_after_a_moment() -> None:
    warm_up = WarmUp(reports_steps=False)
    warm_up.attempt_started(0.0)
    assert not warm_up.take_due(attempt(), AFTER_START_S - 0.1)
    assert warm_up.take_due(attempt(), AFTER_START_S)


def test_it_is_done_once_for_each_attempt() -> None:
    warm_up = WarmUp(reports_steps=True)
    assert not warm_up.take_due(None, 0.0), "nobody has used up what is warm"
    warm_up.attempt_started(0.0)
    assert warm_up.take_due(attempt(trains=True), 1.0)
    assert not warm_up.take_due(attempt(trains=True), 2.0)


def test_nothing_is_made_while_an_attempt_is_being_stopped() -> None:
    warm_up = WarmUp(reports_steps=False)
    warm_up.attempt_started(0.0)
    assert not warm_up.take_due(attempt(stop_at=1.0, trains=True), 1e9)


def test_after_a_stop_the_next_attempt_comes_first() -> None:
    warm_up = WarmUp(reports_steps=True)
    warm_up.attempt_stopped(10.0)
    stopped = attempt(stop_at=1.0, stopped=True, trains=True)
    assert not warm_up.take_due(stopped, 10.0 + AFTER_STOP_S / 2)
    assert warm_up.take_due(stopped, 10.0 + AFTER_STOP_S)
