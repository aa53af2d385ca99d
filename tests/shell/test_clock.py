"""The controller's clock."""

import time

import pytest

from holdfast.shell.clock import Clock


def test_a_wall_clock_that_was_set_back_does_not_make_a_new_controller_wait_longer() -> None:
    seen = time.time() + 7200
    clock = Clock(seen)
    assert seen <= clock.now() < seen + 60


def test_it_is_wall_time_otherwise() -> None:
    assert abs(Clock(time.time() - 7200).now() - time.time()) < 60


@pytest.mark.parametrize("set_by_s", [-7200.0, 28_800.0])
def test_how_far_the_wall_clock_was_set_or_went_on_in_a_sleep_is_told_and_decides_nothing(
    monkeypatch: pytest.MonkeyPatch, set_by_s: float
) -> None:
    clock, began, wall = Clock(), time.time(), time.time
    assert clock.wall_ahead_s() is None
    monkeypatch.setattr(time, "time", lambda: wall() + set_by_s)
    assert clock.wall_ahead_s() == pytest.approx(set_by_s, abs=1.0)
    assert abs(clock.now() - began) < 60
