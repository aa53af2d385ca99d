"""How long `holdfast render` takes, the whole process, for a small job and a large one.

    .venv/bin/python benchmarks/render.py [--quick] [--json] [--rounds N] [--mode plain]

Every engine renders a job of 2 nodes with 1 GPU each and one of 512 nodes with 8 GPUs each. A round
runs all of them once, in turn, so that a machine that gets busier meanwhile is no engine's fault.
`_s` is wall time, what one waits for; `_cpu_s` processor time, which others on the machine hardly
change. The promise: at most 0.4 s of wall time, whatever the size.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from holdfast.drivers.kubernetes.manifests.checks.frameworks import PLAIN
from holdfast.spec.cluster import ENGINES, Engine
from table import Row, report

SIZES = {"small": (2, 1), "large": (512, 8)}  # nodes, GPUs of each


class Run(NamedTuple):
    """One process."""

    wall_s: float
    cpu_s: float


def main() -> None:
    args = _arguments()
    rounds = 1 if args.quick else args.rounds
    report(
        f"holdfast render --mode {args.mode}: 2 × 1 GPU (small), 512 × 8 GPUs (large)",
        measure(args.mode, rounds),
        as_json=args.json,
        note=f"Median of {rounds} runs each; worst_s is the slowest of both sizes.",
    )


def measure(mode: str, rounds: int) -> dict[str, Row]:
    """A row for each engine."""
    runs: dict[tuple[Engine, str], list[Run]] = {}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        for _ in range(rounds):
            for engine in ENGINES:
                for size in SIZES:
                    file = job_file(Path(folder), engine, mode, size)
                    found = run("render", str(file), "--engine", engine, "--mode", mode)
                    runs.setdefault((engine, size), []).append(found)
    return {engine: row(runs[engine, "small"], runs[engine, "large"]) for engine in ENGINES}


def job_file(folder: Path, engine: Engine, mode: str, size: str) -> Path:
    """The job of this size, for this engine."""
    nodes, gpus = SIZES[size]
    framework = "pytorch" if mode == "managed" else PLAIN[engine][0]
    lines = ["name: run", "image: registry.example/train:1", "script: train.py"]
    lines += [f"nodes: {nodes}", f"resources: {{gpus: {gpus}}}", f"framework: {framework}"]
    lines += ["schedule: {cron: '0 3 * * *'}"] if engine == "cronjob" else []
    file = folder / f"{engine}-{size}.yaml"
    file.write_text("\n".join(lines) + "\n")
    return file


def run(*words: str) -> Run:
    """One `holdfast` with these words. Raises CalledProcessError if it fails."""
    command = [sys.executable, "-m", "holdfast.cli", *words]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    took = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Run(took, used.ru_utime + used.ru_stime)


def row(small: list[Run], large: list[Run]) -> Row:
    """Medians of both sizes, and the slowest run."""
    return {
        "n": len(small) + len(large),
        "small_s": round(median(one.wall_s for one in small), 4),
        "large_s": round(median(one.wall_s for one in large), 4),
        "small_cpu_s": round(median(one.cpu_s for one in small), 4),
        "large_cpu_s": round(median(one.cpu_s for one in large), 4),
        "worst_s": round(max(one.wall_s for one in (*small, *large)), 4),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one round, under a minute")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mode", choices=("managed", "plain"), default="managed")
    return parser.parse_args()


if __name__ == "__main__":
    main()
