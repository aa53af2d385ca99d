"""Steps go to a file that another agent may have left in the middle of a line."""

import json
from pathlib import Path

import pytest

from holdfast.agent.metrics_file import BLOCK, MetricsFile, logged_steps
from holdfast.history import CURVE, read_curve
from holdfast.page import StepRecord

STEP = StepRecord(2, 1.0, 0.5, None, 8)


@pytest.mark.parametrize("cut", [b"", b'{"step": 1, "lo', b"x" * BLOCK, b"x" * (3 * BLOCK + 7)])
def test_a_line_that_was_not_finished_is_cut_off_and_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], cut: bytes
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step":1}\n' + cut)
    MetricsFile(path).append(1, [STEP])
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]
    said = "".join(capfd.readouterr())
    assert ("not complete" in said) == bool(cut)
    assert not cut or f"{len(cut)} bytes" in said


def test_a_file_of_nothing_else_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1')
    MetricsFile(path).append(1, [STEP])
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [2]


def test_the_curve_has_the_same_steps_with_what_follows_from_them(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    logged = {"mfu": 0.4, "lr": 1e-4, "aux": 3.0}
    steps = [StepRecord(n, 10.0 + n / 4, 2.5, 0.5, 100, logged) for n in range(3)]
    file.append(1, steps[:2])
    file.append(1, steps[2:])
    file.append(2, [StepRecord(1, 99.0, 2.0, 0.5, 100, logged)])
    found = read_curve(tmp_path / CURVE)
    assert found.step == [0, 1] and found.attempt == [1, 2], "what is to be done again is not shown"
    file.append(2, [StepRecord(2, 99.25, 2.5, 0.5, 100, logged)])
    found = read_curve(tmp_path / CURVE)
    assert found.mean["step_s"] == [None, None, 0.25], "known where the one before it is"
    assert found.mean["tokens_per_s"] == [None, None, 400.0]
    assert found.mean["loss"] == [2.5, 2.0, 2.5]
    assert set(found.mean["mfu"]) == {0.4} and found.mean["lr"][0] == pytest.approx(1e-4)


def test_no_curve_is_drawn_where_nobody_reads_it(tmp_path: Path) -> None:
    MetricsFile(tmp_path / "metrics.jsonl", draws=False).append(1, [STEP])
    assert [one.name for one in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_curve_that_cannot_be_written_hinders_no_line(tmp_path: Path) -> None:
    (tmp_path / CURVE).mkdir()
    MetricsFile(tmp_path / "metrics.jsonl").append(1, [STEP])
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 1


def test_no_number_ends_an_agent(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.append(1, [StepRecord(1, 1.0, 1e39, -1e300, 8)])
    found = read_curve(tmp_path / CURVE)
    assert found.mean["loss"] == [3.402823e38] and found.mean["grad_norm"] == [-3.402823e38]
    for step in (1 << 70, 1 << 71):
        file.append(1, [StepRecord(step, 1.0, 1.0, 1.0, 8)])
    assert "".join(capfd.readouterr()).count(CURVE) == 1, "said once"
    file.append(1, [StepRecord(2, 2.0, 0.5, 0.5, 8)])
    assert read_curve(tmp_path / CURVE).step == [1, 2]


def test_a_file_that_is_too_large_goes_on_as_a_new_one_and_that_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path, draws=False, limit_bytes=300)
    for step in range(1, 8):
        file.append(1, [STEP._replace(step=step)])
    parts = [path.with_name("metrics.jsonl.1"), path]
    kept = [[json.loads(line)["step"] for line in part.read_text().splitlines()] for part in parts]
    assert kept == [[4, 5, 6], [7]] and logged_steps(path, 0, 9).keys() == {4, 5, 6, 7}
    said = "".join(capfd.readouterr())
    assert said.count("kept as metrics.jsonl.1") == 2
    assert said.count("steps of the one before that are dropped") == 1


def test_a_line_that_is_larger_than_a_file_may_be_is_written_all_the_same(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl", draws=False, limit_bytes=10)
    file.append(1, [STEP])
    assert [one.name for one in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_with_another_attempt_it_writes_where_the_others_have_gone_on(tmp_path: Path) -> None:
    """Rank 0 was on another node of this machine, whose agent began a new file."""
    path = tmp_path / "metrics.jsonl"
    one, other = (MetricsFile(path, draws=False, limit_bytes=300) for _ in range(2))
    for step in range(1, 4):
        one.append(1, [STEP._replace(step=step)])
    other.append(2, [STEP._replace(step=4)])
    one.append(3, [STEP._replace(step=5)])
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [4, 5]
