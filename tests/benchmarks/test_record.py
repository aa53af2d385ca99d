"""The benchmark of the record runs to its end, and no object is larger than Kubernetes allows."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_quick_run_ends_with_one_json_object() -> None:
    command = [sys.executable, "benchmarks/record.py", "--quick", "--json"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    rows = json.loads(output.splitlines()[-1])
    assert set(rows) == {"250 nodes", "100 incidents", "journal of 0.6 MB"}
    assert all(row["again_bytes"] > 0 and row["largest_bytes"] < 1 << 20 for row in rows.values())
