"""The benchmarks of saving and copying run the real thing, and their last line is JSON."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import checkpoint
from tests.more import long

ROOT = Path(__file__).parents[2]


def row(name: str, parameters: int, saves: int) -> dict[str, Any]:
    return dict(checkpoint.row([checkpoint.measured(name, parameters, saves)]))


@long
def test_contestants_save_and_what_keeps_one_from_it_is_told() -> None:
    memory = row("holdfast", 3_000_000, 4)
    assert memory["n"] == 2 and memory["why"] is None
    assert memory["stall"] > 0 and memory["load"] > 0 and memory["durable"] is None
    missing = row("no_such_contestant", 1, 1)
    assert missing["n"] == 0 and "no_such_contestant" in missing["why"]


@long
def test_what_is_written_to_disk_is_durable_after_training_has_gone_on() -> None:
    durable = row("holdfast_durable", 3_000_000, 4)
    assert durable["why"] is None and durable["durable_s"] > durable["stall_s"] > 0


def test_copies_arrive() -> None:
    command = [sys.executable, "benchmarks/peers.py", "--json", "--mib", "8", "--rounds", "2"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    rows = json.loads(output.splitlines()[-1])
    assert rows.keys() == {"socket", "holdfast"}
    assert all(row["n"] == 2 and row["gb_per_s"] > 0 for row in rows.values())
