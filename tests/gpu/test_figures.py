"""What was measured is kept as it was measured, with where and when; needs no GPU."""

import json
from datetime import date
from pathlib import Path

import pytest

from tests.gpu import __main__ as make_gpu
from tests.gpu.figures import Figure, append, keep, load, table

WHERE = {"device": "NVIDIA A100-SXM4-80GB", "torch": "2.11.0"}
FIGURES = [
    Figure("restart", "kill to gone", 0.123456, "s"),
    Figure("memory", "a step", 12345, "MiB"),
    Figure("restart", "backend", "nccl", ""),
]


def test_figures_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "figures.jsonl"
    assert load(path) == []
    for figure in FIGURES:
        append(path, figure)
    assert load(path) == FIGURES


def test_the_table_keeps_groups_together() -> None:
    assert table(FIGURES).splitlines()[2:] == [
        "| restart | kill to gone | 0.123 | s |",
        "| restart | backend | nccl |  |",
        "| memory | a step | 12,345 | MiB |",
    ]


def test_both_files_are_named_after_day_and_device(tmp_path: Path) -> None:
    page, record = keep(tmp_path / "new", date(2026, 12, 1), WHERE, "All is well.", FIGURES)
    assert page.name == "gpu-2026-12-01-nvidia-a100-sxm4-80gb.md"
    assert table(FIGURES) in page.read_text() and "- torch: 2.11.0" in page.read_text()
    kept = json.loads(record.read_text())
    assert [Figure(**figure) for figure in kept["figures"]] == FIGURES
    assert (kept["where"], kept["date"], kept["outcome"]) == (WHERE, "2026-12-01", "All is well.")


def test_without_a_gpu_nothing_is_run_and_the_reason_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["gpu"])
    assert make_gpu.main() == 2
    assert "torch.cuda.is_available() is False" in capsys.readouterr().err


def test_what_an_interpreter_lacks_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(make_gpu, "NEEDED", ("json", "no_such_module"))
    monkeypatch.setattr("sys.argv", ["gpu", "--rehearse"])
    assert make_gpu.main() == 2
    assert "lacks no_such_module" in capsys.readouterr().err
