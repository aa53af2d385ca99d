"""The controller benchmark handles a real stream, and its last line is JSON."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from fleet import TELEMETRY, record
from holdfast.controller import Controller, Limits, Phase

ROOT = Path(__file__).parents[2]
LIMITS = Limits(node_count=20, spare_count=4, max_restarts=1_000_000)


def test_stream_is_the_same_each_time() -> None:
    assert record(20, 3) == record(20, 3)


def test_stream_is_a_job_that_recovers_from_each_fault() -> None:
    controller = Controller(LIMITS)
    phases: Counter[Phase] = Counter()
    for batch in record(20, 4):
        for event, at in batch:
            controller.handle(event, at)
            phases[controller.state.phase] += 1
    incidents = controller.state.incidents
    assert [i.cause for i in incidents[:4]] == ["worker-killed", "node-lost"] * 2
    assert all(i.ended_at is not None for i in incidents[:4])
    assert all(i.steps_lost == 0 for i in incidents[:4])
    assert controller.state.attempt == 5
    assert phases[Phase.RUNNING] >= 5 * TELEMETRY


def test_quick_run_ends_with_one_json_object() -> None:
    command = [sys.executable, "benchmarks/controller.py", "--quick", "--json", "--nodes", "50"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    rows = json.loads(output.splitlines()[-1])
    assert set(rows) == {"handle", "handle_journal"}
    assert all(row["n"] > 0 and row["events_per_s"] > 0 for row in rows.values())
