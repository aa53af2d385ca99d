"""The benchmark of many agents runs to its end, and its last line is JSON."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_few_agents_are_all_heard() -> None:
    command = [sys.executable, "benchmarks/agents.py", "--json", "--agents", "20", "--seconds", "1"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (row,) = json.loads(output.splitlines()[-1]).values()
    assert row["n"] == 20
    assert 0 < row["base_mib"] <= row["rss_mib"] < 200
