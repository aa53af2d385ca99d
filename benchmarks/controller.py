"""How many facts a second the controller handles for a job of 1,000 nodes, with its journal.

    .venv/bin/python benchmarks/controller.py [--quick] [--json] [--nodes N] [--faults N]

The facts of a job are recorded once (benchmarks/fleet.py: 8,000 workers, a fault an hour) and then
handled again by fresh controllers on one core, the way `drive` does it: facts that came together
are handled, written to the journal with what was decided, and made durable with one fsync before
anything takes effect. `handle` is the controller alone; `handle_journal` is the promise.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from fleet import Handled, record
from holdfast.actions import Entry
from holdfast.controller import Controller, Limits
from holdfast.journal import VERSION, Header, Journal
from table import Row, report

Batches = list[list[Handled]]


def main() -> None:
    args = _arguments()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    faults, rounds = (6, 3) if args.quick else (args.faults, args.rounds)
    batches = record(args.nodes, faults)
    limits = Limits(node_count=args.nodes, spare_count=4, max_restarts=1_000_000)
    ways = {"handle": handle_all, "handle_journal": handle_and_journal}
    report(
        f"Facts a second, {args.nodes:,} nodes, {faults} faults, one core",
        {name: measure(way, batches, limits, rounds) for name, way in ways.items()},
        as_json=args.json,
        note="Median of the rounds; a batch is what is handled between two fsyncs.",
    )


def handle_all(batches: Batches, limits: Limits) -> list[float]:
    """Seconds that each batch took; the controller alone."""
    controller = Controller(limits)
    took = []
    for batch in batches:
        start = time.perf_counter()
        for event, at in batch:
            controller.handle(event, at)
        took.append(time.perf_counter() - start)
    return took


def handle_and_journal(batches: Batches, limits: Limits) -> list[float]:
    """Seconds that each batch took, journal, fsync and snapshots of the state included."""
    controller = Controller(limits)
    took = []
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        header = Header(journal=VERSION, holdfast="benchmark", job={}, created_at=0.0)
        journal = Journal.create(Path(folder) / "journal.jsonl", header)
        for batch in batches:
            start = time.perf_counter()
            for event, at in batch:
                actions = tuple(controller.handle(event, at))
                journal.append(Entry(seq=journal.seq + 1, at=at, event=event, actions=actions))
            journal.sync()
            journal.save(controller.state)
            took.append(time.perf_counter() - start)
        journal.close()
    return took


def measure(
    way: Callable[[Batches, Limits], list[float]], batches: Batches, limits: Limits, rounds: int
) -> Row:
    """Events a second and the slowest batch, each the median over the rounds."""
    facts = sum(map(len, batches))
    results = [way(batches, limits) for _ in range(rounds)]
    return {
        "n": facts,
        "rounds": rounds,
        "events_per_s": round(facts / median(map(sum, results))),
        "median_s": round(median(took for result in results for took in result), 6),
        "worst_s": round(median(map(max, results)), 6),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer faults, under a minute")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
