"""The ladder against fixed answers to every fault. Simulated: model results, not measurements.

    .venv/bin/python benchmarks/ladder.py [--quick] [--json] [--plots FOLDER] [--nodes N ...]
        [--days D] [--worlds W]

`ladder` is the production controller with its defaults. `requeue` ends the whole job at every fault
and queues it again, from a remote checkpoint; what that is given for nothing stands in
`simulation/requeue.py`. `in place` restarts and never leaves a node for its devices; `leave at
once` replaces a node at its first device fault. The faults are the same for all, world by world:
the mix and the rate of Llama 3's 54 days, on more nodes than those 2,048 by the same rate for each
node. `replaced` are nodes whose rank another took over, `worst_percent` is the world with the
lowest ETTR.
"""

import argparse
from pathlib import Path
from statistics import fmean

from holdfast.simulation import capacity, requeue
from holdfast.simulation.result import Result
from holdfast.simulation.sweep import plan_of, question
from table import Row, report

SCENARIO = "llama3-16k"
WAYS: dict[str, tuple[str, ...]] = {
    "ladder": (),
    "leave at once": ("policy.replace_after=1",),
    "in place": ("policy.replace_after=0",),
    "requeue": (),
}
DRAWN = (512, 1024, 2048, 4096, 8192, 12_800)
NOTE = f"Model results, scenario {SCENARIO}; ETTR of each way is the mean over its worlds."


def main() -> None:
    args = _arguments()
    days, worlds = (2.0, 1) if args.quick else (args.days, args.worlds)
    rows: dict[str, Row] = {}
    for nodes in args.nodes:
        for way in WAYS:
            rows[f"{way}, {nodes:,} nodes"] = row(way, nodes, days, worlds)
    title = f"{days:g} days, {worlds} worlds each (simulated)"
    report(title, rows, as_json=args.json, note=NOTE)
    if args.plots is not None:
        _draw(args.plots, days, worlds)


def row(way: str, nodes: int, days: float, worlds: int) -> Row:
    """One way through all worlds of a size."""
    results = [lived(way, nodes, days, seed) for seed in range(worlds)]
    ended = sum(result.outcome is not None for result in results)
    return {
        "n": worlds,
        "ettr_percent": round(100 * fmean(result.ettr for result in results), 2),
        "worst_percent": round(100 * min(result.ettr for result in results), 2),
        "incidents": round(fmean(result.incidents for result in results)),
        "lost_s_per_incident": round(fmean(map(lost_s, results)), 1),
        "replaced": round(fmean(result.replaced for result in results)),
        "gave_up": ended,
    }


def lived(way: str, nodes: int, days: float, seed: int) -> Result:
    """One world, one way."""
    settings = [f"nodes={nodes}", f"days={days:g}", *WAYS[way]]
    plan = plan_of(question(SCENARIO, settings))
    return (requeue.run if way == "requeue" else capacity.run)(plan, seed)


def lost_s(result: Result) -> float:
    """What was not productive, for each incident."""
    wasted = sum(result.buckets.values()) - result.buckets.get("productive", 0.0)
    return wasted / max(1, result.incidents)


def _draw(folder: Path, days: float, worlds: int) -> None:
    from holdfast.simulation.plots import draw_lines

    lines = {}
    for way in WAYS:
        means = [
            100 * fmean(lived(way, nodes, days, seed).ettr for seed in range(worlds))
            for nodes in DRAWN
        ]
        lines[way] = list(zip(map(float, DRAWN), means, strict=True))
    words = ("nodes", "ETTR, %")
    draw_lines(folder / "ladder.svg", "Every fault is answered by", words, lines, log=False)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Simulated: the ladder against fixed answers")
    parser.add_argument("--quick", action="store_true", help="two days, one world")
    parser.add_argument("--json", action="store_true", help="one JSON line at the end")
    parser.add_argument("--plots", type=Path, help="draw ladder.svg there, over the size")
    parser.add_argument("--nodes", type=int, nargs="+", default=[2048, 12_800])
    parser.add_argument("--days", type=float, default=10.0)
    parser.add_argument("--worlds", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
