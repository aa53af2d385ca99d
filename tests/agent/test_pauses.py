"""Time in which a node did not run is told apart from time in which only its agent did not."""

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agent.pauses import LEAST_S, Pauses
from holdfast.page import Page, StepRecord

STEP_S = 0.5


@pytest.fixture
def page() -> Iterator[Page]:
    fd = Page.create()
    page = Page(fd)
    yield page
    page.close()
    os.close(fd)


def do(page: Page, step: int, step_s: float = STEP_S) -> None:
    page.step_done(step, step_s, StepRecord(step, 0.0, step_s, None, 0))


def paused_s(
    page: Page, late_s: float, steps: int, slept_s: float = 0.0, step_s: float = STEP_S
) -> float:
    """After so many steps between two looks."""
    worker: Any = SimpleNamespace(id=1, page=page)
    do(page, 10, step_s)
    pauses = Pauses(slept_s=0.0)
    pauses.look([worker], 100.0, slept_s=0.0)
    for step in range(11, 11 + steps):
        do(page, step, late_s)
    pauses.look([worker], 100.0 + late_s, slept_s=slept_s)
    return page.progress(0.0).paused_s


@pytest.mark.parametrize(("steps", "found_s"), [(0, 30.0), (1, 30.0), (3, 29.0)])
def test_a_worker_that_did_nothing_meanwhile_was_stopped(
    page: Page, steps: int, found_s: float
) -> None:
    assert paused_s(page, 30.0, steps) == pytest.approx(found_s)


@pytest.mark.parametrize(
    ("late_s", "steps", "step_s"),
    [
        (30.0, 60, STEP_S),  # only the agent was stopped
        (30.0, 35, STEP_S),  # slower than usual
        (LEAST_S - 1.0, 0, STEP_S),  # a busy machine
        (30.0, 1, 20.0),  # its steps are too long to tell
        (30.0, 0, 0.0),  # no step is known
    ],
)
def test_a_worker_that_may_have_worked_was_not(
    page: Page, late_s: float, steps: int, step_s: float
) -> None:
    assert paused_s(page, late_s, steps, step_s=step_s) == 0.0


def test_a_machine_that_slept_is_known_by_its_clocks(page: Page) -> None:
    """No time has passed by the clock that stands still meanwhile."""
    assert paused_s(page, 0.05, 1, slept_s=3600.0) == pytest.approx(3600.0)


def test_a_worker_that_was_not_there_before_was_not_stopped(page: Page) -> None:
    worker: Any = SimpleNamespace(id=2, page=page)
    pauses = Pauses(slept_s=0.0)
    pauses.look([], 100.0, slept_s=0.0)
    pauses.look([worker], 200.0, slept_s=0.0)
    assert page.progress(0.0).paused_s == 0.0
