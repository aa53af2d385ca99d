"""Elastic training against waiting, and a pool of spares against spares of each job. Simulated:
model results, not measurements.

    .venv/bin/python benchmarks/policies.py [--quick] [--json] [--plots FOLDER]

`elastic`: a job of 64 nodes loses one; another one comes after a time that nobody knows, drawn from
a log-normal distribution (sigma 1) around the given mean. Each way is charged what the loss costs,
in seconds of the whole job: `wait` for the node, `shrink` at once, the `break-even` of the
production policy (`controller/policies/shrink.py`, also for growing back) without knowledge, the
`default`, which is the same and expects what the last node took, and `oracle`, which knows. A
change of the size, and a restart, cost 30 s each.

`spares`: five jobs of 64 nodes lose nodes at 6.5 per 1,000 node-days (RSC-1), and a machine is back
after a mean time. Spares of a job are warm: a loss costs 10 s. Those of the pool start as pods with
the image already there: 55 s. Who finds no spare waits for the next machine that is back: its own
with spares of its own, anybody's with a pool. `ettr_percent` counts only these losses.
"""

import argparse
import heapq
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from holdfast.controller.policies import shrink
from table import Row, report

NODES, CHANGE_S = 64, 30.0
ARRIVALS_S = (10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0)
SIGMA = 1.0
WAYS = ("wait", "shrink", "break-even", "default", "oracle")

JOBS, RATE_S = 5, 6.5 / 1000 / 86_400
WARM_S, COLD_S = 10.0, 55.0
REPAIRS_S = {"back in 1 h": 3600.0, "back in 24 h": 86_400.0}
OWN, POOL = range(4), (1, 2, 3, 4, 5, 6, 8, 10, 12)
NOTE = "Model results; a line's inputs are in the first lines of benchmarks/policies.py."


def main() -> None:
    args = _arguments()
    episodes, days = (2_000, 300) if args.quick else (20_000, 3_650)
    lost = {way: [lost_s(way, mean_s, episodes) for mean_s in ARRIVALS_S] for way in WAYS}
    rows: dict[str, Row] = {}
    for number, mean_s in enumerate(ARRIVALS_S):
        found = {way: lost[way][number] for way in WAYS}
        rows[f"a node comes after {mean_s:g} s"] = {k: round(v, 1) for k, v in found.items()}
    report("Lost seconds of the whole job for each lost node (simulated)", rows, as_json=False)
    shares = {name: _of_spares(repair_s, days) for name, repair_s in REPAIRS_S.items()}
    pools: dict[str, Row] = {
        f"{name}, {kind}, {spares} machines": {"ettr_percent": round(100 * ettr, 3)}
        for name, found in shares.items()
        for kind, line in found.items()
        for spares, ettr in line
    }
    report(f"{days} days of {JOBS} jobs (simulated)", pools, as_json=False, note=NOTE)
    if args.json:
        print(json.dumps(rows | pools))
    if args.plots is not None:
        _draw(args.plots, lost, shares)


# ── a node is lost, and another one comes some day ──


def lost_s(way: str, mean_s: float, episodes: int) -> float:
    """What one lost node costs on average."""
    dice = random.Random(f"arrivals {mean_s}")  # the same for all ways
    middle = math.log(mean_s) - SIGMA**2 / 2
    costs, last_s = [], None
    for _ in range(episodes):
        arrives_s = dice.lognormvariate(middle, SIGMA)
        costs.append(cost_s(way, arrives_s, last_s if way == "default" else None))
        last_s = arrives_s
    return fmean(costs)


def cost_s(way: str, arrives_s: float, expected_s: float | None) -> float:
    """Of one loss after which a node comes so much later."""
    waits = arrives_s + CHANGE_S
    even_s = shrink.patience_s(shrink.break_even_s(NODES, 1, CHANGE_S), expected_s)
    match way:
        case "wait":
            return waits
        case "shrink":
            return _short_s(0.0, arrives_s)
        case "break-even" | "default":
            return waits if arrives_s <= even_s else _short_s(even_s, arrives_s)
        case _:
            return min(waits, _short_s(0.0, arrives_s))


def _short_s(waited_s: float, arrives_s: float) -> float:
    """Shrink after so long, and grow back when the node is there, and the policy lets it."""
    runs_at = waited_s + CHANGE_S
    grow_s = shrink.grow_after_s(NODES - 1, 1, CHANGE_S, 0, 3600.0)
    short_s = max(arrives_s, waited_s + grow_s) - runs_at
    return waited_s + 2 * CHANGE_S + max(0.0, short_s) / NODES


# ── spares ──


class PoolJob(NamedTuple):
    """Whose spares it may use, and what a replacement costs."""

    pool: int
    start_s: float


def _of_spares(repair_s: float, days: float) -> dict[str, list[tuple[int, float]]]:
    """Mean ETTR over the number of machines that are kept, for both ways."""
    own = [PoolJob(job, WARM_S) for job in range(JOBS)]
    shared = [PoolJob(0, COLD_S)] * JOBS
    return {
        "spares of each job": [(JOBS * k, ettr(own, k, repair_s, days)) for k in OWN],
        "one pool": [(k, ettr(shared, k, repair_s, days)) for k in POOL],
    }


def ettr(jobs: list[PoolJob], spares: int, repair_s: float, days: float) -> float:
    """Share of the time in which a job trains; `spares` for each pool."""
    dice, end = random.Random(f"spares {repair_s}"), days * 86_400
    free = {job.pool: spares for job in jobs}
    waiting: dict[int, list[tuple[int, float]]] = {job.pool: [] for job in jobs}
    backs: list[tuple[float, int]] = []
    lost = 0.0
    for at, number in _losses(dice, end):
        while backs and backs[0][0] <= at:
            back_at, pool = heapq.heappop(backs)
            lost += _returned(jobs, waiting[pool], free, pool, back_at)
        job = jobs[number]
        heapq.heappush(backs, (at + dice.expovariate(1 / repair_s), job.pool))
        if free[job.pool]:
            free[job.pool] -= 1
            lost += job.start_s
        else:
            waiting[job.pool].append((number, at))
    return max(0.0, 1 - lost / (end * len(jobs)))


def _losses(dice: random.Random, end: float) -> Iterator[tuple[float, int]]:
    """When which job loses a node."""
    at = 0.0
    while (at := at + dice.expovariate(RATE_S * NODES * JOBS)) < end:
        yield at, dice.randrange(JOBS)


def _returned(
    jobs: list[PoolJob],
    waiting: list[tuple[int, float]],
    free: dict[int, int],
    pool: int,
    at: float,
) -> float:
    """A machine is back: for whoever has waited longest, else it is a spare. What was lost."""
    if not waiting:
        free[pool] += 1
        return 0.0
    number, since = waiting.pop(0)
    return at - since + jobs[number].start_s


# ── pictures ──


def _draw(
    folder: Path,
    lost: dict[str, list[float]],
    shares: dict[str, dict[str, list[tuple[int, float]]]],
) -> None:
    from holdfast.simulation.plots import draw_lines

    lines = {way: list(zip(ARRIVALS_S, lost[way], strict=True)) for way in WAYS}
    words = ("mean time until a node comes, s", "lost seconds of the whole job")
    draw_lines(folder / "elastic.svg", f"A node of {NODES} is lost", words, lines, log=True)
    found = {
        f"{kind}, {name}": [(float(k), 100 * ettr) for k, ettr in line]
        for name, ways in shares.items()
        for kind, line in ways.items()
    }
    words = (f"machines kept as spares for {JOBS} jobs", "ETTR, %")
    title = f"{JOBS} jobs of {NODES} nodes"
    draw_lines(folder / "pool.svg", title, words, found, log=False)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Simulated: elastic, and spares")
    parser.add_argument("--quick", action="store_true", help="a tenth of it")
    parser.add_argument("--json", action="store_true", help="one JSON line at the end")
    parser.add_argument("--plots", type=Path, help="draw elastic.svg and pool.svg there")
    return parser.parse_args()


if __name__ == "__main__":
    main()
