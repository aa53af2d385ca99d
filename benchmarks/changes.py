"""How much training a planned change costs: shrink, grow, hot update.

    .venv/bin/python benchmarks/changes.py [--json] [--rounds N] [--small]

The training is that of the restart benchmark (DDP on gloo, 40 million parameters), on two nodes of
one worker each and a spare, with a snapshot at each step. In each round the job is scaled to one
node, back to two, and then updated with another variable, through the command line. What is lost is
the time between the last step of the old attempt and the first one of the new attempt, without the
time of that step (the median of those that follow). Nodes prepare an update while the job trains;
`asked` is the time from the command to the first new step. `step` tells how busy the machine was:
such a step takes about a quarter of a second on two cores where nothing else runs. `--small` trains
2.9 million parameters in steps about as long.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from kills import Step, newest, parse, step_s
from restart import BIN, SCRIPTS, SMALL, Contestant, running, until
from table import Row, report

JOB = Contestant([str(BIN / "holdfast"), "run", str(SCRIPTS / "changing.yaml")])
STEPS = 6  # of each attempt, before the next change
LIMIT_S = 300.0
FULL, SHRUNK = 2, 1


class Change(NamedTuple):
    """What one change cost."""

    lost_s: float
    steps_lost: int
    asked_s: float
    step_s: float  # of the new attempt


def judged(steps: Sequence[Step], attempt: int, asked_at: float) -> Change:
    """The change after this attempt, of which the log has some steps of the next."""
    before = [step for step in steps if step.attempt <= attempt]
    after = [step for step in steps if step.attempt > attempt]
    first = min(after, key=lambda step: step.at)
    gap_s = first.at - max(step.at for step in before)
    done = max(step.number for step in before)
    took_s = step_s(after, float("inf"))
    return Change(gap_s - took_s, done - (first.number - 1), first.at - asked_at, took_s)


def row(changes: Sequence[Change]) -> Row:
    """A line of the table."""
    lost = [change.lost_s for change in changes]
    return {
        "n": len(changes),
        "lost_median_s": round(median(lost), 3),
        "lost_worst_s": round(max(lost), 3),
        "steps_lost_max": max(change.steps_lost for change in changes),
        "asked_median_s": round(median(change.asked_s for change in changes), 3),
        "step_median_s": round(median(change.step_s for change in changes), 3),
    }


def main() -> None:
    args = _arguments()
    if args.small:
        os.environ |= SMALL
    found: dict[str, list[Change]] = {"shrink": [], "grow": [], "hot update": []}
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        running(JOB, Path(folder)) as (process, log),
    ):
        _trains(process, log, 0, FULL)
        for number in range(args.rounds):
            for name, words, ranks in (
                ("shrink", ("scale", "changes", str(SHRUNK)), SHRUNK),
                ("grow", ("scale", "changes", str(FULL)), FULL),
                ("hot update", ("update", "changes", "--set", f"env.ROUND={number}"), FULL),
            ):
                found[name].append(_change(process, log, words, ranks))
                told = found[name][-1]
                print(f"{name}: {told.lost_s:.2f} s lost", file=sys.stderr, flush=True)
    report(
        "A planned change: training lost between two steps",
        {name: row(changes) for name, changes in found.items()},
        as_json=args.json,
        note="Seconds, net of one step. `asked`: from the command to the first new step.",
    )


def _change(
    process: "subprocess.Popen[bytes]", log: Path, words: Iterable[str], ranks: int
) -> Change:
    attempt, asked_at = newest(parse(log.read_text()))[-1].attempt, time.time()
    environment = os.environ | {"HOLDFAST_HOME": str(log.parent / "home")}
    run = subprocess.run(
        [str(BIN / "holdfast"), *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise SystemExit(run.stderr)
    _trains(process, log, attempt + 1, ranks)
    return judged(parse(log.read_text()), attempt, asked_at)


def _trains(process: "subprocess.Popen[bytes]", log: Path, attempt: int, ranks: int) -> None:
    """Wait until each rank has done some steps of this attempt, or of a later one."""

    def does() -> bool:
        steps = newest(parse(log.read_text()))
        late = bool(steps) and steps[0].attempt >= attempt
        counts = [sum(step.rank == rank for step in steps) for rank in range(ranks)]
        return late and min(counts) >= STEPS

    if not until(does, process, LIMIT_S):
        raise SystemExit((log.parent / "output").read_text(errors="replace")[-4000:])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--rounds", type=int, default=6, help="changes of each kind")
    parser.add_argument("--small", action="store_true", help="2.9 instead of 40 M parameters")
    return parser.parse_args()


if __name__ == "__main__":
    main()
