"""Steps go to a file that another agent may have left in the middle of a line."""

import json
from pathlib import Path

import pytest

from holdfast.agent.metrics_file import BLOCK, MetricsFile
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
