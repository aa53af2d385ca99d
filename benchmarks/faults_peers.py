"""The faults of benchmarks/faults.py under other launchers: when does one notice, and whom does it
name?

    .venv/bin/python benchmarks/faults_peers.py [--under torchrun|nvrx|dlrover] [--python FILE]
        [--only KIND ...] [--wait S] [--json]

The same script, two ranks on one node, `--max-restarts 0`: the launcher ends at the first fault
that it notices, and names the rank and how it ended. Each fault has a job of its own. The time runs
from the moment the script notes before it does harm to the end of the launcher; a fault that has
not ended it after `--wait` seconds is missed (collectives give up after 30 minutes by themselves).
What is done to our own processes has no counterpart and is left out.

`nvrx` is `ft_launcher` of nvidia-resiliency-ext, whose heartbeats the script then sends at each
step; it gives up a rank after 5 s without one, a limit that its users have to know. `--python` is
the interpreter of an environment that has it, and Holdfast, installed. `dlrover` is `dlrover-run
--standalone` of DLRover; what it knows of hangs comes from its timer for GPUs, so without one none
is told. Disks, memory and networks are those of benchmarks/fault_stage.py for it as for us.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from fault_kinds import KINDS
from fault_stage import Stage, enter
from faults import FIRST_STEP, SCRIPTS
from table import Row, report

STORE = "rendezvous port squatted"  # that is a process of ours, and a launcher of others
OURS = tuple(name for name, kind in KINDS.items() if kind.outside or name == STORE)
RANK = 1
START_S = 120.0  # until the fault
HEARTBEAT_S = 5.0
LAUNCHERS = {
    "torchrun": ["-m", "torch.distributed.run"],
    "dlrover": [str(SCRIPTS / "dlrover_run.py")],
    "nvrx": [
        "-m",
        "nvidia_resiliency_ext.fault_tolerance.launcher",
        f"--ft-rank-heartbeat-timeout={HEARTBEAT_S:g}",
        f"--ft-initial-rank-heartbeat-timeout={START_S:g}",
    ],
}
ROOT = re.compile(
    r"Root Cause.*?rank\s*:\s*(?P<rank>\d+).*?exitcode\s*:\s*(?P<status>-?\d+)"
    r"|failed \(exitcode: (?P<status_>-?\d+)\) local_rank: (?P<rank_>\d+)",
    re.DOTALL,
)  # of torchrun, and of ft_launcher


def main() -> None:
    """Run each kind once."""
    parser = argparse.ArgumentParser(description=__doc__)
    theirs = [kind for kind in KINDS if kind not in OURS]
    parser.add_argument("--under", choices=LAUNCHERS, default="torchrun")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", nargs="+", choices=theirs, default=theirs)
    parser.add_argument("--wait", type=float, default=60.0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    enter()
    rows: dict[str, Row] = {}
    for kind in arguments.only:
        with tempfile.TemporaryDirectory(prefix="faults-") as folder:
            stage = Stage(Path(folder))
            try:
                if why := stage.missing.get(KINDS[kind].needs):
                    print(f"{kind} is left out: {why}", file=sys.stderr)
                    continue
                rows[kind] = _suffer(kind, stage, arguments)
            finally:
                stage.close()
        print(kind, rows[kind], file=sys.stderr)
    found = sum(row["noticed"] is True for row in rows.values())
    named = sum(row["right_rank"] is True for row in rows.values())
    ranked = sum(KINDS[kind].has_rank for kind in rows)
    note = f"{found} of {len(rows)} noticed within {arguments.wait:g} s; {named} of {ranked} named."
    report(f"The same faults under {arguments.under}", rows, as_json=arguments.json, note=note)


def _suffer(kind: str, stage: Stage, arguments: argparse.Namespace) -> Row:
    folder = stage.folder
    plan = folder / "plan.json"
    rank = -1 if KINDS[kind].everywhere else RANK
    plan.write_text(json.dumps([{"kind": kind, "rank": rank, "step": FIRST_STEP}]))
    out = folder / "out"
    steps = FIRST_STEP + KINDS[kind].steps
    script = [
        str(SCRIPTS / "faulty.py"),
        "--plan",
        str(plan),
        "--steps",
        str(steps),
        "--place",
        str(folder),
    ]
    process = _start(stage, script, out, arguments)
    try:
        at = _struck(process, folder)
        ended = _ended(process, at + arguments.wait)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):  # workers have sessions of their own
            launcher = psutil.Process(process.pid)
            for one in [*launcher.children(recursive=True), launcher]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
        process.wait()
    noticed = ended is not None and process.returncode != 0
    told = ROOT.search(out.read_text(errors="replace"))
    blamed = (told["rank"] or told["rank_"]) if told else ""
    status = (told["status"] or told["status_"]) if told else ""
    named = noticed and blamed == str(RANK)
    return {
        "noticed": noticed,
        "after_s": round(ended - at, 2) if noticed and ended is not None else None,
        "right_rank": named if KINDS[kind].has_rank else None,
        "exitcode": int(status) if status and noticed else None,
    }


def _start(
    stage: Stage, words: list[str], out: Path, arguments: argparse.Namespace
) -> "subprocess.Popen[bytes]":
    launcher = [arguments.python, *LAUNCHERS[arguments.under], "--standalone"]
    command = [*stage.words, *launcher, "--nproc-per-node", "2", "--max-restarts", "0", *words]
    if arguments.under == "nvrx":
        command.append("--heartbeats")
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
