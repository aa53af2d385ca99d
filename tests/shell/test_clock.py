"""The controller's clock."""

import time

from holdfast.shell.clock import Clock


def test_a_wall_clock_that_was_set_back_does_not_make_a_new_controller_wait_longer() -> None:
    seen = time.time() + 7200
    clock = Clock(seen)
    assert seen <= clock.now() < seen + 60


def test_it_is_wall_time_otherwise() -> None:
    assert abs(Clock(time.time() - 7200).now() - time.time()) < 60
