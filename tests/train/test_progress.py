"""What a script logs is on the page with its step, under whatever names, and in `metrics.jsonl`."""

import json
import logging
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.agent.metrics_file import MetricsFile
from holdfast.checkpoint.arena import Cell, CellHeader
from holdfast.page import METRIC_COUNT, RECORD_COUNT, Page, WorkerPhase
from holdfast.train import progress
from holdfast.train.progress import ProgressReporter
from tests.train.alone import Job, Script
from tests.train.workload import Lazy


@pytest.fixture
def page() -> Iterator[Page]:
    """A new page, as the agent maps it."""
    page = Page(Page.create())
    yield page
    page.close()


def step(progress: ProgressReporter, number: int, **metrics: Any) -> None:
    progress.log(None, None, 0, metrics)
    progress.step_done(number, 0.1)


def told(page: Page) -> dict[int, dict[str, float]]:
    return {record.step: dict(record.metrics) for record in page.records(0)[0]}


def test_names_of_the_script_come_with_the_steps_that_logged_them(page: Page) -> None:
    progress = ProgressReporter(page, 0)
    step(progress, 1)
    step(progress, 2, lr=0.5, accuracy=torch.tensor([0.25]))
    progress.log(None, None, 0, {"lr": 7})
    step(progress, 3, lr=np.float32(0.0), **{"eval/loss": True})
    assert told(page) == {
        1: {},
        2: {"lr": 0.5, "accuracy": 0.25},
        3: {"lr": 0.0, "eval/loss": 1.0},
    }


def test_nan_and_infinity_are_values_and_a_value_is_not_repeated(page: Page) -> None:
    progress = ProgressReporter(page, 0)
    step(progress, 1, a=math.nan, b=-math.inf, c=-0.0)
    step(progress, 2)
    first = told(page)[1]
    assert math.isnan(first["a"]) and first["b"] == -math.inf
    assert first["c"] == 0.0 and told(page)[2] == {}


def test_a_lap_of_the_ring_leaves_nothing_of_the_one_before(page: Page) -> None:
    progress = ProgressReporter(page, 0)
    step(progress, 1, early=1.0)
    for number in range(2, RECORD_COUNT + 2):
        step(progress, number)
    step(progress, RECORD_COUNT + 2, late=2.0)
    found = told(page)
    assert found.pop(RECORD_COUNT + 2) == {"late": 2.0}
    assert not any(found.values())


def test_names_without_room_are_left_out_and_that_is_said_once(
    page: Page, caplog: pytest.LogCaptureFixture
) -> None:
    progress = ProgressReporter(page, 0)
    with caplog.at_level(logging.WARNING):
        for number in range(1, 4):
            step(progress, number, **{f"m{n}": n for n in range(METRIC_COUNT + number)})
    assert told(page)[3] == {f"m{n}": float(n) for n in range(METRIC_COUNT)}
    assert caplog.text.count("are ignored") == 1
    assert f"m{METRIC_COUNT} and other new names" in caplog.text


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("", 1.0, "invalid name of a metric: ''"),
        ("two words", 1.0, "invalid name of a metric"),
        ("x" * 64, 1.0, "at most 63"),
        ("a", torch.zeros(2), "has shape (2,)"),
        ("a", "high", "is a str, a metric must be a number"),
        ("a", None, "is a NoneType"),
        ("a", 10**400, "is a int, a metric must be a number"),
        ("a", torch.zeros(1, dtype=torch.complex64), "is a torch.complex64 on cpu"),
        ("a", torch.zeros(1, device="meta"), "on meta"),
    ],
)
def test_what_cannot_be_kept_is_an_error_also_without_a_page(
    name: str, value: Any, words: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        ProgressReporter(None, 0).log(None, None, 0, {name: value})


@pytest.mark.parametrize(
    ("loss", "grad_norm", "tokens", "words"),
    [
        ("x", None, 0, "loss is a str"),
        (torch.ones(2), None, 0, "loss has shape (2,)"),
        (None, [1], 0, "grad_norm is a list"),
        (None, None, 10**30, "tokens cannot be 1000"),
        (None, None, -5, "tokens cannot be -5"),
        (None, None, math.nan, "tokens is a float"),
        (None, None, torch.ones(2), "tokens is a Tensor"),
    ],
)
def test_a_number_of_the_step_that_is_none_is_an_error_where_it_is_logged(
    page: Page, loss: Any, grad_norm: Any, tokens: Any, words: str
) -> None:
    progress = ProgressReporter(page, 0)
    progress.log(1.0, None, 7, {})
    with pytest.raises(ValueError, match=re.escape(words)):
        progress.log(loss, grad_norm, tokens, {})
    progress.step_done(1, 0.1)
    (record,) = page.records(0)[0]
    assert (record.loss, record.tokens) == (1.0, 7)


def test_a_line_has_them_apart_from_the_numbers_of_every_step(page: Page, tmp_path: Path) -> None:
    progress = ProgressReporter(page, 0)
    progress.log(2.5, None, 7, {"step": 1.5, "bad": math.inf})
    progress.step_done(4, 0.1)
    step(progress, 5)
    MetricsFile(tmp_path / "metrics.jsonl").append(3, page.records(0)[0])
    with_metrics, without = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert with_metrics.pop("at") > 0
    assert with_metrics == {
        "attempt": 3,
        "step": 4,
        "loss": 2.5,
        "grad_norm": None,
        "tokens": 7,
        "metrics": {"step": 1.5, "bad": None},
        "not_finite": {"bad": "inf"},
    }
    assert "metrics" not in without


class Late:
    """An event of a GPU that lags behind: nothing has arrived unless somebody waits for it."""

    def __init__(self) -> None:
        self.waited = False

    def query(self) -> bool:
        return self.waited

    def synchronize(self) -> None:
        self.waited = True


@pytest.mark.parametrize("beside", [True, False])
def test_what_a_step_has_logged_on_a_gpu_is_told_before_its_snapshot_is_whole(
    page: Page, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    """A worker that dies in between does the step again and tells it again; the other way round
    it would not be told at all."""
    said: list[tuple[str, int]] = []

    def send(step: int, tokens: int, names: tuple[str, ...], given: list[Any]) -> progress._Pending:
        values = torch.tensor([float(given[0]), math.nan], dtype=torch.float64)
        return progress._Pending(step, 0.0, tokens, values, names, Late(), (1,))

    monkeypatch.setenv("LAZY", "stream")
    monkeypatch.setattr(progress, "_on_gpu", lambda value: isinstance(value, torch.Tensor))
    monkeypatch.setattr(progress, "_send", send)
    monkeypatch.setattr(Page, "record", lambda _, record: said.append(("told", record.step)))
    commit = Cell.commit

    def whole(cell: Cell, header: CellHeader, checksum: int | None = None) -> None:
        said.append(("whole", header.step))
        commit(cell, header, checksum)

    monkeypatch.setattr(Cell, "commit", whole)
    job = Job(one_step)
    job.page, job.background = page, Lazy() if beside else None
    for number in job.loop(total=6):
        job.state._progress.log(torch.tensor(1.0 / (1 + number)), None, 0, {})
    assert {n for what, n in said if what == "whole"} == set(range(1, 7))
    late = [n for n in range(1, 7) if said.index(("told", n)) > said.index(("whole", n))]
    assert not late, said


def one_step(script: Script, _: int, x: torch.Tensor) -> Any:
    """A step of the optimizer in every turn."""
    loss = script.net(x).square().mean()
    loss.backward()
    script.optimizers["all"].step()
    script.optimizers["all"].zero_grad()
    return loss


def test_a_section_is_told_by_name_and_then_what_was_done_before(page: Page) -> None:
    progress = ProgressReporter(page, 0)
    progress.phase(WorkerPhase.STEP)

    def now() -> tuple[str, str]:
        report = page.report(0, 1, 0.0)
        return report.phase, report.section

    with progress.section("eval"):
        assert now() == ("section", "eval")
        with progress.section("eval/generate"):
            assert now() == ("section", "eval/generate")
            progress.phase(WorkerPhase.SNAPSHOT)  # is told once the section is over
        assert now() == ("section", "eval")
    assert now() == ("snapshot", "")


def test_a_section_that_raises_is_over_and_a_name_that_does_not_fit_is_refused(page: Page) -> None:
    progress = ProgressReporter(page, 0)
    progress.phase(WorkerPhase.STEP)
    with pytest.raises(KeyError), progress.section("x" * 63):
        raise KeyError
    assert page.report(0, 1, 0.0).phase == "step"
    for name in ("", "two words", "x" * 64, "\n"):
        with pytest.raises(ValueError, match="invalid name of a section"), progress.section(name):
            pass
    mute = ProgressReporter(None, 0)
    with mute.section("eval"):
        mute.phase(WorkerPhase.STEP)
