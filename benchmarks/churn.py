"""How much of a training is left when something is killed every ten seconds: Holdfast and torchrun.

    .venv/bin/python benchmarks/churn.py [--quick] [--steps N] [--every S] [--only NAME ...]
        [--small]

The training and the contestants are those of benchmarks/restart.py: two ranks, 40 million
parameters, about a quarter of a second a step. Each has a job of its own until `--steps` steps are
done; a random rank is killed `--every` seconds, first after that time and ten steps, or as soon
after it as the job trains again. The ideal is the median step of the job until its first kill,
times the steps; `committed_percent` is the ideal divided by the time that the steps have taken.
Where the rest went, for each kill: `gap_s` from the kill to the first step of the next attempt,
less one step; `again_s` for the step that was under way and those done again; `slow_s` is what is
left, for steps that took longer than the ideal, because workers that stand by are started beside
them or the machine was slower than before. A
job that comes to no new step for two minutes (it may repeat some all the time, where a restart
takes longer than `--every`), or has taken `--limit` seconds, is given up, with what it has done.
`--small` as in benchmarks/restart.py.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import psutil

from kills import Step, judge, newest
from restart import CONTESTANTS, RESTARTS, SMALL, Contestant, agent_of, running, steps_of
from table import Row, report

NAMES = ("holdfast", "in_process", "torchrun", "torchrun_own_store")
CALM_STEPS = 10  # before the first kill, whatever the time
START_S, SILENT_S, POLL_S = 120.0, 120.0, 0.02


def main() -> None:
    args = _arguments()
    if args.small:
        os.environ |= SMALL
    rows = {name: row(_without_cap(CONTESTANTS[name]), args) for name in args.only}
    title = f"{args.steps} steps, a kill every {args.every:g} s"
    report(title, rows, as_json=args.json, note="committed_percent: ideal time / time taken")


def _without_cap(contestant: Contestant) -> Contestant:
    """As many restarts as there are kills."""
    given = [word for word in contestant.command if word != f"--max-restarts={RESTARTS}"]
    program, script = given[:-1], given[-1]
    return replace(contestant, command=[*program, "--max-restarts", "1000", script])


def row(contestant: Contestant, args: argparse.Namespace) -> Row:
    """One job, to its last step."""
    chance = random.Random(args.seed)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        with running(contestant, Path(folder)) as (process, path):
            kills = _churn(contestant, process, path, args, chance)
            steps = steps_of(path)
    return _judged(steps, kills, args.steps)


def _churn(
    contestant: Contestant,
    process: "subprocess.Popen[bytes]",
    path: Path,
    args: argparse.Namespace,
    chance: random.Random,
) -> list[float]:
    """Kill until the steps are done; when that was."""
    kills: list[float] = []
    began = time.time()
    steps, due, killed = steps_of(path), None, -1
    while process.poll() is None and not _done(steps, args.steps):
        if _given_up(steps, began, args.limit):
            break
        if due is None and len(steps) > 2 * CALM_STEPS:
            due = steps[0].at + args.every
        trains = bool(steps) and steps[-1].attempt > killed and steps[-1] in newest(steps)
        if due is not None and time.time() >= due and trains:
            victim = chance.choice(newest(steps)[-2:])
            killed = victim.attempt
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):  # it ends by itself
                os.kill(
                    agent_of(victim.pid) if contestant.loses_nodes else victim.pid, signal.SIGKILL
                )
            kills.append(time.time())
            print(f"kill {len(kills)} at step {victim.number}", file=sys.stderr, flush=True)
            due = time.time() + args.every
        time.sleep(POLL_S)
        steps = steps_of(path)
    return kills


def _given_up(steps: list[Step], began: float, limit_s: float) -> bool:
    """Whether it has come to no new step for long, or has taken too long."""
    now, furthest = time.time(), max((step.number for step in steps), default=0)
    new = min((step.at for step in steps if step.number == furthest), default=None)
    silent = now - began > START_S if new is None else now - new > SILENT_S
    return silent or now - began > limit_s


def _done(steps: list[Step], wanted: int) -> bool:
    return any(step.number >= wanted and step.rank == 0 for step in steps[-8:])


def _judged(steps: list[Step], kills: list[float], wanted: int) -> Row:
    if len(steps) <= 2 * CALM_STEPS:
        return dict.fromkeys(
            (
                "kills",
                "steps",
                "step_s",
                "took_s",
                "committed_percent",
                "gap_s",
                "again_s",
                "slow_s",
            )
        )
    first = kills[0] if kills else float("inf")
    calm = [step.at for step in steps if step.rank == 0 and step.at < first]
    step_s = median(b - a for a, b in pairwise(calm))
    reached = max((step.number for step in steps if step.rank == 0), default=0)
    took_s = max(step.at for step in steps) - calm[0]
    gap_s, again_s = _lost(steps, kills, step_s)
    lost_s = took_s - (min(reached, wanted) - 1) * step_s
    slow_s = lost_s - gap_s - again_s
    per_kill = {"gap_s": gap_s, "again_s": again_s, "slow_s": slow_s}
    return {
        "kills": len(kills),
        "steps": min(reached, wanted),
        "step_s": round(step_s, 3),
        "took_s": round(took_s, 1),
        "committed_percent": round(100 * (min(reached, wanted) - 1) * step_s / took_s, 1),
        **{name: round(sum_s / max(1, len(kills)), 3) for name, sum_s in per_kill.items()},
    }


def _lost(steps: list[Step], kills: list[float], step_s: float) -> tuple[float, float]:
    """Seconds of all kills: without a step, and for steps that were under way or are done again."""
    gap_s = again_s = 0.0
    for killed_at in kills:
        before = [step for step in steps if step.at < killed_at]
        cost = judge(steps, max(step.attempt for step in before), killed_at)
        if cost.took_s is not None and cost.steps_lost is not None:
            gap_s += cost.took_s - step_s
            last = max(step.at for step in before)
            again_s += min(killed_at - last, step_s) + cost.steps_lost * step_s
    return gap_s, again_s


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Steps that are done under kill after kill")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--limit", type=float, default=1800.0, metavar="SECONDS")
    parser.add_argument("--quick", action="store_true", help="60 steps")
    parser.add_argument("--small", action="store_true", help="2.9 instead of 40 M parameters")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=list(NAMES))
    parser.add_argument("--json", action="store_true", help="one JSON line at the end")
    args = parser.parse_args()
    if args.quick:
        args.steps = 60
    return args


if __name__ == "__main__":
    main()
