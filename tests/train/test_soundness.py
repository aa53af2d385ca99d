"""Numbers that are not finite: noted at their step, kept out of snapshots, not gone on from."""

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoint.arena import Arena, StatePart
from holdfast.events import Quantity
from holdfast.messages import WorkerReport
from holdfast.page import RECORD_COUNT, Page
from holdfast.train import progress
from holdfast.train.progress import ProgressReporter
from tests.more import examples
from tests.train.alone import Job, Script
from tests.train.cluster import Cluster
from tests.train.test_progress import one_step

FLOATS = st.none() | st.floats(allow_nan=True, allow_infinity=True)


@pytest.fixture
def page() -> Iterator[Page]:
    """A new page, as the agent maps it."""
    page = Page(Page.create())
    yield page
    page.close()


@given(FLOATS, FLOATS)
@settings(max_examples=examples(200), deadline=None)
def test_what_was_logged_is_read_back_and_nothing_is_told_apart_from_nan(
    loss: float | None, norm: float | None
) -> None:
    page = Page(Page.create())
    reporter = ProgressReporter(page, 0)
    reporter.log(loss, norm, 0, {})
    reporter.step_done(1, 0.1)
    report = page.report(0, 1, 0.0)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=WorkerReport)
    (record,) = page.records(0)[0]
    page.close()
    for given_value, *found in (
        (loss, record.loss, report.loss, sent.loss),
        (norm, record.grad_norm, report.grad_norm, sent.grad_norm),
    ):
        for one in found:
            assert (one is None) == (given_value is None)
            if one is not None and given_value is not None:
                assert one == given_value or (math.isnan(one) and math.isnan(given_value))


def test_the_first_bad_step_stays_noted_however_many_steps_follow(page: Page) -> None:
    reporter = ProgressReporter(page, 0)
    for step in range(1, 2 * RECORD_COUNT):
        reporter.log(math.nan if step % 7 == 0 else 1.0, None, 0, {})
        reporter.step_done(step, 0.001)
    broke = page.report(0, 1, time.monotonic()).broke
    assert broke is not None
    assert (broke.step, broke.what, broke.value) == (7, Quantity.LOSS, "nan")
    assert 0 <= broke.ago_s < 300


def test_a_new_page_says_that_nothing_was_logged_and_nothing_broke(page: Page) -> None:
    report = page.report(0, 1, 0.0)
    assert (report.loss, report.grad_norm, report.broke, report.spike) == (None,) * 4


def test_a_spike_is_noted_with_what_is_usual(page: Page) -> None:
    reporter = ProgressReporter(page, 0)
    for step in range(1, 60):
        reporter.log(60.0 if step == 50 else 2.0 + step / 100, None, 0, {})
        reporter.step_done(step, 0.1)
    spike = page.report(0, 1, 0.0).spike
    assert spike is not None
    assert (spike.step, spike.what, spike.value) == (50, Quantity.LOSS, 60.0)
    assert 2.0 < spike.usual < 2.5
    assert page.report(0, 1, 0.0).broke is None


def logging_nan(job: Job, first: int, last: int = 99) -> Iterator[int]:
    """The turns of a new attempt; the loss that is logged is NaN from one turn to another."""
    for number in job.loop():
        bad = first <= number <= last
        job.state._progress.log(math.nan if bad else 1.0, None, 0, {})
        yield number


def test_no_snapshot_is_taken_while_the_loss_is_not_finite_and_again_after_it(page: Page) -> None:
    job = Job(one_step)
    job.page = page
    for _ in logging_nan(job, 5, 7):
        pass
    assert job.whole == [1, 2, 3, 4, 5, 9, 10, 11, 12]


def test_an_end_with_numbers_that_are_not_finite_is_not_waited_for(page: Page) -> None:
    job = Job(one_step)
    job.page = page
    for _ in logging_nan(job, 10):
        pass
    assert job.whole[-1] == 10 and job.snapshots.step == 10


def test_who_ignores_nan_gets_snapshots_of_it(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = ProgressReporter.__init__.__kwdefaults__ or {}
    monkeypatch.setitem(defaults, "on_nan", "ignore")
    job = Job(one_step)
    job.page = page
    for _ in logging_nan(job, 5):
        pass
    assert job.whole == list(range(1, 13))


class Lagging:
    """An event of a GPU: its numbers have arrived only when somebody waits for them."""

    waited = False

    def query(self) -> bool:
        return self.waited

    def synchronize(self) -> None:
        self.waited = True


def test_numbers_on_a_gpu_are_noted_when_they_arrive_and_spoil_one_snapshot_at_most(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(step: int, tokens: int, names: tuple[str, ...], given: list[Any]) -> progress._Pending:
        values = torch.tensor([float(given[0]), 0.0], dtype=torch.float64)
        return progress._Pending(step, 0.0, tokens, values, names, Lagging(), (1,))

    monkeypatch.setattr(progress, "_on_gpu", lambda value: isinstance(value, torch.Tensor))
    monkeypatch.setattr(progress, "_send", send)
    monkeypatch.setattr(
        "holdfast.train.snapshots.Snapshotter.waits", lambda _self, _flags: False
    )  # as beside training
    job = Job(one_step)
    job.page = page
    for number in job.loop():
        job.state._progress.log(torch.tensor(math.nan if number >= 5 else 1.0), None, 0, {})
    assert job.whole == [1, 2, 3, 4, 5, 6]
    broke = page.report(0, 1, 0.0).broke
    assert broke is not None and broke.step == 6


def poisoned(script: Script, turn: int, x: torch.Tensor) -> Any:
    """The step of turn 8 makes a parameter NaN; nobody has logged anything."""
    loss = one_step(script, turn, x)
    if turn == 8:
        with torch.no_grad():
            script.net.second.bias[1] = torch.nan
    return loss


def test_a_snapshot_that_holds_nan_is_not_gone_on_from_after_a_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The loss is NaN a step after the parameters are: the state of step 9 lies below step 10."""
    job = Job(poisoned)
    job.run(until=9)
    monkeypatch.setenv("HOLDFAST_RESTORE_BELOW", "10")
    job.turn = one_step
    job.run(until=10)
    assert job.restored == [0, 8]
    assert "model.second.bias contains NaN" in caplog.text


def test_what_an_attempt_left_that_had_bad_numbers_is_looked_at_ever_after(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(poisoned)
    job.run(until=9)
    monkeypatch.setenv("HOLDFAST_BAD_STEPS", f"[[{job.attempt},10]]")
    job.turn = one_step
    job.run(until=10)
    assert job.restored == [0, 8]
    assert "model.second.bias contains NaN" in caplog.text


def test_a_restart_for_another_reason_looks_at_nothing(caplog: pytest.LogCaptureFixture) -> None:
    job = Job(poisoned)
    job.run(until=9)
    job.run(until=10)
    assert job.restored == [0, 9] and "NaN" not in caplog.text


def test_all_ranks_keep_their_snapshots_when_the_loss_of_one_is_nan(tmp_path: Path) -> None:
    two = Cluster(tmp_path, nodes=2, local=1)
    two.env["NAN"] = "1:4"
    two.finish()
    kept = []
    for rank in (0, 1):
        found = (cell.header() for cell in Arena(two.arenas[rank]).cells(StatePart.SHARED))
        kept.append({header.step for header in found if header})
    noted = [page.report(rank, 1, 0.0).broke for rank, page in enumerate(two.attempts[0].pages)]
    two.close()
    assert kept[0] == kept[1] and 4 in kept[0] and max(kept[0]) <= 5
    assert noted[0] is None
    assert noted[1] is not None and noted[1].step == 5
