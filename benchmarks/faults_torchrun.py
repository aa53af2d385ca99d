"""The faults of benchmarks/faults.py under torchrun: when does it notice, and whom does it name?

    .venv/bin/python benchmarks/faults_torchrun.py [--only KIND ...] [--wait S] [--json]

The same script, two ranks on one node, `--max-restarts 0`: torchrun ends at the first fault that it
notices, and names the rank and how it ended. Each fault has a job of its own. The time runs from
the moment the script notes before it does harm to the end of torchrun; a fault that has not ended
it after `--wait` seconds is missed (collectives give up after 30 minutes by themselves). What is
done to our own processes has no counterpart and is left out.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fault_kinds import KINDS
from faults import FIRST_STEP, SCRIPT
from table import Row, report

OURS = tuple(name for name, kind in KINDS.items() if kind.outside)
RANK = 1
START_S = 120.0  # until the fault
ROOT = re.compile(r"Root Cause.*?rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", re.DOTALL)


def main() -> None:
    """Run each kind once."""
    parser = argparse.ArgumentParser(description=__doc__)
    theirs = [kind for kind in KINDS if kind not in OURS]
    parser.add_argument("--only", nargs="+", choices=theirs, default=theirs)
    parser.add_argument("--wait", type=float, default=60.0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows: dict[str, Row] = {}
    for kind in arguments.only:
        with tempfile.TemporaryDirectory(prefix="faults-") as folder:
            rows[kind] = _suffer(kind, Path(folder), arguments.wait)
        print(kind, rows[kind], file=sys.stderr)
    found = sum(row["noticed"] is True for row in rows.values())
    named = sum(row["right_rank"] is True for row in rows.values())
    ranked = sum(KINDS[kind].has_rank for kind in rows)
    note = f"{found} of {len(rows)} noticed within {arguments.wait:g} s; {named} of {ranked} named."
    report("The same faults under torchrun", rows, as_json=arguments.json, note=note)


def _suffer(kind: str, folder: Path, wait_s: float) -> Row:
    plan = folder / "plan.json"
    rank = -1 if KINDS[kind].everywhere else RANK
    plan.write_text(json.dumps([{"kind": kind, "rank": rank, "step": FIRST_STEP}]))
    out = folder / "out"
    process = _start([str(SCRIPT), "--plan", str(plan), "--steps", str(FIRST_STEP + 40)], out)
    try:
        at = _struck(process, folder)
        ended = _ended(process, at + wait_s)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    noticed = ended is not None and process.returncode != 0
    told = ROOT.search(out.read_text(errors="replace"))
    named = noticed and told is not None and int(told[1]) == RANK
    return {
        "noticed": noticed,
        "after_s": round(ended - at, 2) if noticed and ended is not None else None,
        "right_rank": named if KINDS[kind].has_rank else None,
        "exitcode": int(told[2]) if told is not None and noticed else None,
    }


def _start(words: list[str], out: Path) -> "subprocess.Popen[bytes]":
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node", "2", "--max-restarts", "0", *words]
    with open(out, "wb") as file:
        return subprocess.Popen(
            command,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


def _struck(process: "subprocess.Popen[bytes]", folder: Path) -> float:
    """When the script noted that it does harm now (seconds since 1970)."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        for mark in folder.glob("plan.json.0*"):
            if text := mark.read_text():
                return float(text)
        if process.poll() is not None:
            raise SystemExit((folder / "out").read_text(errors="replace"))
        time.sleep(0.005)
    raise SystemExit("the training did not come to its fault")


def _ended(process: "subprocess.Popen[bytes]", until: float) -> float | None:
    while time.time() < until:
        if process.poll() is not None:
            return time.time()
        time.sleep(0.005)
    return None


if __name__ == "__main__":
    main()
