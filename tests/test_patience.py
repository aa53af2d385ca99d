"""Tests wait as long as those that they wait for are kept from running, and no longer."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tests import limit, patience
from tests.patience import ENOUGH_S, LEAST, LOOK_S, Patience, until, waits

SPINS = "import os\nos.sched_setaffinity(0, {int(os.environ['ON'])})\nwhile True: pass"


class Clock:
    """Time of our own, and what the kernel says of who waited for a processor."""

    def __init__(self, share: Mapping[int, float]) -> None:
        """`share` of the time that each thread is ready and gets none."""
        self.now, self._share = 1000.0, share

    def monotonic(self) -> float:
        return self.now

    def waits(self) -> Iterator[tuple[int, float]]:
        yield from ((thread, share * self.now) for thread, share in self._share.items())

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Clock]:
    def make(share: Mapping[int, float]) -> Clock:
        made = Clock(share)
        monkeypatch.setattr(patience, "time", made)
        monkeypatch.setattr(patience, "waits", made.waits)
        return made

    return make


def lasts(clock: Clock, patience: Patience, every_s: float = 0.1) -> float:
    began = clock.now
    while not patience.is_over:
        clock.now += every_s
    return clock.now - began


@pytest.mark.parametrize(
    ("share", "times"), [({}, 1.0), ({1: 0.0, 2: 0.0}, 1.0), ({1: 0.1, 2: 0.75}, 4.0)]
)
def test_time_in_which_somebody_got_no_processor_does_not_count(
    clock: Callable[..., Clock], share: Mapping[int, float], times: float
) -> None:
    took = lasts(clock(share), Patience(100.0))
    assert took == pytest.approx(100.0 * times, abs=2 * LOOK_S * times)


def test_nobody_waits_longer_than_ten_times_as_long(clock: Callable[..., Clock]) -> None:
    assert lasts(clock({1: 1.0}), Patience(100.0)) <= 100.0 / LEAST + 2 * LOOK_S
    own = clock({1: 1.0})
    assert lasts(own, Patience(100.0), every_s=4.0) <= 100.0 / LEAST + 2 * LOOK_S


def test_who_hardly_comes_to_look_has_looked_too_little(clock: Callable[..., Clock]) -> None:
    own = clock({})
    assert 400.0 < lasts(own, Patience(100.0), every_s=1.0) < 600.0


def test_a_condition_is_looked_at_once_more_at_the_end(clock: Callable[..., Clock]) -> None:
    own = clock({})
    assert not until(lambda: False, 3.0)
    assert own.now == pytest.approx(1003.0, abs=0.1)
    answers = iter([False, True])
    assert until(lambda: next(answers), -1.0)


def test_the_kernel_tells_who_below_us_gets_no_processor() -> None:
    if not dict(waits()):
        pytest.skip("this kernel does not count it")
    before, on = dict(waits()), str(min(os.sched_getaffinity(0)))
    spinning = [
        os.posix_spawn(sys.executable, [sys.executable, "-c", SPINS], {**os.environ, "ON": on})
        for _ in range(2)
    ]
    try:
        assert until(lambda: any(dict(waits()).get(pid, 0.0) > 0.05 for pid in spinning))
        assert not set(spinning) & before.keys()
    finally:
        for pid in spinning:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@pytest.mark.parametrize(("share", "least", "most"), [({}, 10, 11), ({1: 0.75}, 35, 45)])
def test_the_limit_of_a_test_counts_alike(
    clock: Callable[..., Clock],
    monkeypatch: pytest.MonkeyPatch,
    share: Mapping[int, float],
    least: int,
    most: int,
) -> None:
    own, handlers, timers = clock(share), [], []
    monkeypatch.setattr(signal, "signal", lambda _, handler: handlers.append(handler))
    monkeypatch.setattr(signal, "setitimer", lambda *how: timers.append(how))
    failed: list[Any] = []
    plugin = SimpleNamespace(timeout_sigalrm=lambda item, _: failed.append(item))
    plugins = SimpleNamespace(getplugin=lambda _: plugin)
    item: Any = SimpleNamespace(config=SimpleNamespace(pluginmanager=plugins))
    assert limit.set_timer(item, SimpleNamespace(timeout=2 * ENOUGH_S, method="signal"))
    (_, every_s, _), look, turns = timers[0], handlers[0], 0
    while not failed:
        own.now += every_s
        look(signal.SIGALRM, None)
        turns += 1
    assert least <= turns <= most and failed == [item]
    assert timers[-1] == (signal.ITIMER_REAL, 0), "it does not come again"
    item.cancel_timeout()
