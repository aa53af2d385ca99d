"""What a script prints of its progress is found in any output, and never at the agent's expense."""

import math
import os
import time
from collections.abc import Iterator

import pytest

from holdfast.agent import printed_steps
from holdfast.agent.printed_steps import LINE_BYTES, LINES_AT_ONCE, PrintedSteps
from holdfast.events import Milestone, Quantity
from holdfast.messages import WorkerReport
from holdfast.page import Page
from holdfast.spec.progress import ProgressPatterns

STEP, LOSS = r"step (\d+)", r"loss=(?P<loss>\S+)"


class Reading:
    """A page, and output that is read for it."""

    def __init__(self, page: Page, step: str | None = STEP, loss: str | None = LOSS) -> None:
        self.page = page
        patterns = ProgressPatterns(step_pattern=step, loss_pattern=loss)
        self.sink = PrintedSteps(patterns, page)

    def after(self, *parts: str) -> tuple[int | None, float | None]:
        """The step and the loss once these have been printed."""
        for part in parts:
            self.sink.write(part.encode("latin1"))
        return self.report.printed_step, self.report.printed_loss

    @property
    def report(self) -> WorkerReport:
        """As the controller hears of it."""
        return self.page.report(0, 1, time.monotonic())


@pytest.fixture
def page() -> Iterator[Page]:
    fd = Page.create()
    made = Page(fd)
    yield made
    made.close()
    os.close(fd)


def test_the_newest_step_and_loss_are_found_wherever_the_output_is_cut(page: Page) -> None:
    read = Reading(page)
    assert read.after("hello\n") == (None, None)
    assert read.report.milestones == {}
    assert read.after("step 1\nst") == (1, None)
    assert list(read.report.milestones) == [Milestone.STEPPED]
    assert read.after("ep 2 lo", "ss=0.5\nnothing\n") == (2, 0.5)
    assert read.after("step 0 loss=0\n") == (0, 0.0)
    assert read.after("step 3\rstep 4 loss=1,234.5\r") == (4, 1234.5)
    assert read.after("step 5 loss=nan") == (4, 1234.5), "the line has no end yet"
    read.sink.close()
    step, loss = read.after()
    assert step == 5 and loss is not None and math.isnan(loss)


def test_its_age_is_that_of_the_last_step_that_was_another(page: Page) -> None:
    read = Reading(page)
    read.after("step 1\n")
    at = time.monotonic() - read.report.printed_step_ago_s
    read.after("step 1\n")
    assert time.monotonic() - read.report.printed_step_ago_s == pytest.approx(at, abs=1e-3)
    read.after("step 2\n")
    assert time.monotonic() - read.report.printed_step_ago_s > at


def test_what_is_no_number_is_passed_over(page: Page) -> None:
    read = Reading(page, step=r"step (\S+)")
    assert read.after("step one loss=?\n", "step inf\n", "step -1\n", "step 1e99\n") == (None, None)
    assert read.after("step 7\nstep x\n") == (7, None)
    assert read.after("\xff\xfe step \xff\n") == (7, None)


@pytest.mark.parametrize(
    ("step", "said", "at"),
    [
        (STEP, "step 6 loss=1\nstep 7 loss=NaN\nstep 8 loss=1\nstep 9 loss=inf\n", 7),
        (STEP, "step 6\nloss=nan\n", 6),
        (None, "loss=2\nloss=1\nloss=nan\n", 3),
        (STEP, "loss=nan\n", 1),
    ],
)
def test_the_first_loss_that_is_not_finite_breaks_the_attempt_at_its_step(
    page: Page, step: str | None, said: str, at: int
) -> None:
    read = Reading(page, step=step)
    read.after(said)
    broke = read.report.broke
    assert broke is not None and (broke.step, broke.what) == (at, Quantity.LOSS)


def test_finite_losses_and_what_no_pattern_finds_break_nothing(page: Page) -> None:
    read = Reading(page, loss=r"loss=([0-9.]+)")
    read.after("step 1 loss=1e9 loss=0\n", "step 2 loss=nan\n", "nan inf\n")
    assert read.report.broke is None


def test_only_the_beginning_of_a_line_counts_and_only_the_newest_lines(page: Page) -> None:
    read = Reading(page)
    assert read.after("x" * LINE_BYTES + " step 1\n") == (None, None)
    assert read.after(*["x" * 65_536] * 10, " step 1\n") == (None, None)
    assert read.after("step 2\n" + "y\n" * LINES_AT_ONCE) == (None, None)
    assert read.after("step 3\n" + "y\n" * (LINES_AT_ONCE - 1)) == (3, None)


def test_a_pattern_that_backtracks_without_end_is_given_up(
    page: Page, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printed_steps, "BUDGET_S", 0.02)
    read = Reading(page, step=r"(?:(?:a+)+)+ step (\d+)")
    assert read.after("a" * 900 + "\n", "a step 1 loss=2\n") == (None, None)
    assert "take too long and are not used any more" in capfd.readouterr().err
