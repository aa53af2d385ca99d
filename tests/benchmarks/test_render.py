"""The benchmark of rendering runs every engine at both sizes, and its last line is JSON."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.spec.cluster import ENGINES
from render import Run, row, run
from tests.more import long

ROOT = Path(__file__).parents[2]


@long
@pytest.mark.parametrize("mode", ["managed", "plain"])
def test_quick_run_ends_with_one_json_object(mode: str) -> None:
    command = [sys.executable, "benchmarks/render.py", "--quick", "--json", "--mode", mode]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    rows = json.loads(output.splitlines()[-1])
    assert set(rows) == set(ENGINES)
    for found in rows.values():
        assert found["n"] == 2
        assert 0 < found["small_cpu_s"] <= found["worst_s"] * 2
        assert found["worst_s"] == max(found["small_s"], found["large_s"])


def test_a_process_that_fails_is_no_figure() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        run("render", "/nowhere/job.yaml")


def test_the_row_has_the_medians_and_the_slowest() -> None:
    found = row([Run(3.0, 1.0), Run(1.0, 1.0), Run(2.0, 0.5)], [Run(9.0, 4.0)])
    assert found == {
        "n": 4,
        "small_s": 2.0,
        "large_s": 9.0,
        "small_cpu_s": 1.0,
        "large_cpu_s": 4.0,
        "worst_s": 9.0,
    }
