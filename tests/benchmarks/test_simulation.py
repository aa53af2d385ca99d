"""The benchmark of the simulation measures worlds that are well, and its last line is JSON."""

import json
import subprocess
import sys
from pathlib import Path

from tests.more import long

ROOT = Path(__file__).parents[2]


@long
def test_quick_run_ends_with_one_json_object() -> None:
    words = ("--quick", "--json", "--nodes", "25", "--worlds", "3")
    command = [sys.executable, "benchmarks/simulation.py", *words]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    rows = json.loads(output.splitlines()[-1])
    assert set(rows) == {"world", "controller", "swarm"}
    assert rows["world"]["events_per_s"] > 0 < rows["controller"]["events_per_s"]
    swarm = rows["swarm"]
    assert (swarm["worlds"], swarm["fouls"]) == (3, 0)
    assert swarm["n"] > 500 and swarm["wall_s"] > 0
