"""The benchmark of many agents runs to its end, and its last line is JSON."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.more import long

ROOT = Path(__file__).parents[2]


@long
def test_a_few_agents_are_all_heard_and_nothing_is_left(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/agents.py", "--json", "--agents", "20", "--seconds", "1"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, env=environment
    )
    (row,) = json.loads(done.stdout.splitlines()[-1]).values()
    assert row["n"] == 20
    assert 0 < row["base_mib"] <= row["rss_mib"] < 200
    assert list(tmp_path.iterdir()) == []
