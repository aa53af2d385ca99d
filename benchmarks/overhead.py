"""What Holdfast costs a step: the same steps in a bare loop, under Holdfast, and with snapshots.

    .venv/bin/python benchmarks/overhead.py [--quick] [--json] [--blocks N] [--steps N]

One worker on one thread, steps calibrated to about 50 ms. Each block is a fresh process, and the
contestants take turns. `plain` is `python` and a bare loop. `holdfast` runs below an agent, with
progress, logging and heartbeats, and snapshots only where they cannot be left out (after the first
step and the last); `holdfast_snapshots` takes them as often as `auto` decides. In the processes of
these two, the loop of the library and a bare loop take turns of a few steps, and `overhead` is the
excess of the one's median step over the other's: between processes luck is bigger than that (see
scripts/steady.py). `overhead_mean` compares means, so it counts snapshots that are not taken at
every step. `between_s` is the mean time of a step that is not its own work, `agent_cpu` the share
of one core that the agent used beside both loops.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from stalls import Times, row
from table import report

SCRIPT = Path(__file__).parent / "scripts" / "steady.py"
HOLDFAST = Path(sys.executable).with_name("holdfast")
STEP_S = 0.05
CONTESTANTS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "holdfast": {"every_steps": 1_000_000},
    "holdfast_snapshots": {"every_steps": "auto"},
}


def main() -> None:
    args = _arguments()
    blocks, steps = (2, 40) if args.quick else (args.blocks, args.steps)
    batch = calibrated()
    times: dict[str, list[Times]] = {name: [] for name in CONTESTANTS}
    shares: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    for number in range(blocks):
        for name, snapshots in CONTESTANTS.items():
            print(f"block {number + 1} of {blocks}: {name}", file=sys.stderr, flush=True)
            measured, share = block(snapshots, steps, batch)
            times[name].append(measured)
            shares[name] += [] if share is None else [share]
    report(
        f"What a step costs, {STEP_S * 1000:.0f} ms of work (batch {batch})",
        {name: row(times[name], _loop(name), _mean(shares[name])) for name in CONTESTANTS},
        as_json=args.json,
    )


def _loop(contestant: str) -> str:
    """Which of the loops in a contestant's processes is the contestant."""
    return "plain" if CONTESTANTS[contestant] is None else "holdfast"


def calibrated() -> int:
    """The batch size that makes a step about 50 ms long on this machine."""
    command = [sys.executable, str(SCRIPT), "--calibrate", str(STEP_S)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return int(subprocess.check_output(command, env=environment, text=True))


def block(snapshots: dict[str, Any] | None, steps: int, batch: int) -> tuple[Times, float | None]:
    """Run one block; its times and, under Holdfast, the agent's share of a core."""
    arguments = ["--steps", str(steps), "--batch", str(batch)]
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        folder = Path(name)
        if snapshots is None:
            command = [sys.executable, str(SCRIPT), "--bare", *arguments]
        else:
            command = _job(folder, snapshots, arguments)
        environment = os.environ | {
            "BENCHMARK_TIMES": str(folder / "times.json"),
            "HOLDFAST_HOME": str(folder / "home"),
            "OMP_NUM_THREADS": "1",
        }
        output = folder / "output"
        with output.open("wb") as file:
            process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
        share = _watch(process, folder)
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed:\n{output.read_text()[-4000:]}")
        return json.loads((folder / "times.json").read_text()), share


def _job(folder: Path, snapshots: dict[str, Any], arguments: list[str]) -> list[str]:
    """A job file (JSON is YAML too) and the command that runs it."""
    job = {
        "name": "overhead",
        "script": str(SCRIPT),
        "args": arguments,
        "workers_per_node": 1,
        "snapshots": snapshots,
        "logs": {"terminal": "none"},
    }
    path = folder / "job.yaml"
    path.write_text(json.dumps(job))
    return [str(HOLDFAST), "run", str(path)]


def _watch(process: subprocess.Popen[bytes], folder: Path) -> float | None:
    """Wait for the end of the block; the agent's share of a core while steps were done."""
    looks: list[tuple[float, float]] = []
    try:
        while process.poll() is None:
            cpu_s = _agent_cpu_s(folder)
            if cpu_s is not None:
                looks.append((time.monotonic(), cpu_s))
            time.sleep(0.1)
    finally:
        process.terminate()
        process.wait()
    if len(looks) < 2:
        return None
    (first_at, first_s), (last_at, last_s) = looks[0], looks[-1]
    return (last_s - first_s) / (last_at - first_at)


def _agent_cpu_s(folder: Path) -> float | None:
    """CPU seconds the agent has used, from the first logged step on."""
    home = folder / "home" / "jobs" / "overhead"
    if not (home / "metrics.jsonl").exists():
        return None
    try:
        pid = json.loads((home / "nodes" / "node-0" / "agent.json").read_text())["pid"]
        times = psutil.Process(pid).cpu_times()
    except (OSError, psutil.Error):
        return None
    return float(times.user + times.system)


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two short blocks, under a minute")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--blocks", type=int, default=8, help="of each contestant")
    parser.add_argument("--steps", type=int, default=200, help="of each block")
    return parser.parse_args()


if __name__ == "__main__":
    main()
