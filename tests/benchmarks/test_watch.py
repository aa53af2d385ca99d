"""The benchmark of the watch runs to its end with both clients, and its last line is JSON."""

import json
import subprocess
import sys
from pathlib import Path

from tests.more import long
from watch import pod

ROOT = Path(__file__).parents[2]


def test_a_pod_is_about_as_big_as_a_real_one() -> None:
    assert 4_000 < len(json.dumps(pod(0))) < 12_000


@long
def test_quick_run_ends_with_one_json_object() -> None:
    command = [sys.executable, "benchmarks/watch.py", "--quick", "--json", "--pods", "600"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    rows = json.loads(output.splitlines()[-1])
    assert set(rows) == {"holdfast", "lightkube"}
    assert all(row["n"] == 600 and row["list_cpu_s"] > 0 for row in rows.values())
