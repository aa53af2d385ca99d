"""The benchmark of the ladder: every way meets the same faults, and its last line is JSON."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import ladder

ROOT = Path(__file__).parents[2]


def test_all_ways_meet_the_same_faults_and_the_ladder_loses_less_than_a_queue() -> None:
    words = ("--json", "--nodes", "512", "--worlds", "1", "--days", "20")
    command = [sys.executable, "benchmarks/ladder.py", *words]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "simulated" in output and "Model results" in output
    rows = json.loads(output.splitlines()[-1])
    ways = {name.partition(",")[0]: row for name, row in rows.items()}
    assert set(ways) == {"ladder", "leave at once", "in place", "requeue"}
    assert ways["ladder"]["incidents"] > 5
    assert ways["ladder"]["ettr_percent"] > ways["requeue"]["ettr_percent"]
    assert ways["ladder"]["replaced"] <= ways["leave at once"]["replaced"]
    assert ways["ladder"]["gave_up"] == 0


def test_the_plot_has_a_line_for_each_way_and_says_that_it_is_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(ladder, "DRAWN", (16, 32))
    ladder._draw(tmp_path, 1.0, 1)
    drawn = (tmp_path / "ladder.svg").read_text()
    assert all(f"<!-- {way} -->" in drawn for way in ladder.WAYS) and "(model result)" in drawn
