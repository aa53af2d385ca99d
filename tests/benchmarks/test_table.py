"""A benchmark's result reads well and ends with one JSON object."""

import json

import pytest

from table import Row, cell, report, summary, table

ROWS: dict[str, Row] = {
    "holdfast": {"n": 12, "median_s": 0.1579, "steps_lost_max": 0},
    "torchrun": {"n": 12, "median_s": None, "steps_lost_max": None},
}


def test_columns_are_aligned() -> None:
    lines = table(ROWS)
    assert [line.split() for line in lines] == [
        ["n", "median_s", "steps_lost_max"],
        ["holdfast", "12", "0.158", "0"],
        ["torchrun", "12", "–", "–"],
    ]
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.00041234, "0.000412"), (73434.5, "73,434"), (73434, "73,434")],
)
def test_figures_are_short(value: float | None, text: str) -> None:
    assert cell(value) == text


def test_last_line_is_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    report("title", ROWS, as_json=True, note="a note")
    *_, last = capsys.readouterr().out.splitlines()
    assert json.loads(last) == ROWS


def test_without_json_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    report("title", ROWS, as_json=False)
    assert "{" not in capsys.readouterr().out


def test_summary_of_nothing_is_nothing() -> None:
    assert summary([]) == {"median_s": None, "worst_s": None}
    assert summary([3.0, 1.0, 2.0]) == {"median_s": 2.0, "worst_s": 3.0}
