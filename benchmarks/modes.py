"""Replicas against restarts of the whole job. Simulated: model results, not measurements.

    .venv/bin/python benchmarks/modes.py [--quick] [--json] [--plots FOLDER] [--nodes N ...]
        [--days D] [--worlds W]

The production controller in both: `whole job` is `recovery.mode: processes`, `replicas` is
`recovery.mode: replicas` with 16 nodes in each, which is about what a model of 400 billion
parameters needs. `kept`: workers that live keep their processes; `warm`: they are replaced by warm
ones, as those of sharded models are today. How replicas are modelled stands in
`simulation/capacity.py`; the faults are the same for all, world by world: the mix and the rate of
Llama 3's 54 days. ETTR counts a step without some of the replicas as that much less of a step.

`auto` spares are as many as the rule of a scenario gives; with none, each lost node takes six
minutes to be replaced. Times are `cautious`, those of the scenario (docs/guides/capacity.md), or
`measured`: what docs/measurements/recovery-*.md have of two processes on two cores, whatever the
size, and the delays of mix llama3-measured until a fault is seen. The phases below add up to what
was measured, less one step: 0.35 s for a worker that is replaced by a warm one, 1.05 s for a node
and its spare, 0.15 s for replicas that go on without a lost one.
"""

import argparse
from pathlib import Path
from statistics import fmean

from holdfast.goodput import Bucket
from holdfast.simulation import capacity
from holdfast.simulation.result import Result
from holdfast.simulation.sweep import plan_of, question
from ladder import SCENARIO, lost_s
from table import Row, report

EACH = 16
REPLICAS = f"replicas.nodes_each={EACH}"
MODES: dict[str, tuple[str, ...]] = {
    "whole job": (),
    "replicas, kept": (REPLICAS,),
    "replicas, warm": (REPLICAS, "replicas.kept=false"),
}
SPARES = {"auto": "spares=auto", "none": "spares=0"}
TIMES: dict[str, tuple[str, ...]] = {
    "cautious": (),
    "measured": (
        "failures.mix=llama3-measured",
        "times.teardown_s=0.1",
        "times.start_s=0.02",
        "times.rendezvous_s=0.05",
        "times.rendezvous_s_per_1000_nodes=0",
        "times.first_step_s=0.08",
        "checkpoint.restore_s=0.1",
        "checkpoint.restore_peer_s=0.8",
        "replicas.park_steps=0",  # all of it is less one step
    ),
}
DRAWN_SPARES = (0, 1, 2, 3, 4)
NOTE = f"Model results, scenario {SCENARIO}; ETTR of each mode is the mean over its worlds."


def main() -> None:
    args = _arguments()
    days, worlds = (2.0, 1) if args.quick else (args.days, args.worlds)
    rows: dict[str, Row] = {}
    for nodes in args.nodes:
        for times in TIMES:
            for spares, setting in SPARES.items():
                for mode in MODES:
                    settings = (*TIMES[times], setting)
                    name = f"{mode}, {nodes:,} nodes, {times}, spares {spares}"
                    rows[name] = row([lived(mode, nodes, days, w, settings) for w in range(worlds)])
    title = f"{days:g} days, {worlds} worlds each (simulated)"
    report(title, rows, as_json=args.json, note=NOTE)
    for nodes in args.nodes if args.plots is not None else ():
        _draw(args.plots, nodes, days, worlds)


def row(results: list[Result]) -> Row:
    """One mode through its worlds."""
    horizon_s = sum(results[0].buckets.values())
    degraded_s = fmean(result.buckets.get(Bucket.DEGRADED, 0.0) for result in results)
    return {
        "n": len(results),
        "ettr_percent": round(100 * fmean(result.ettr for result in results), 2),
        "worst_percent": round(100 * min(result.ettr for result in results), 2),
        "stops": round(fmean(result.incidents for result in results)),
        "lost_s_per_stop": round(fmean(map(lost_s, results)), 1),
        "degraded_percent": round(100 * degraded_s / horizon_s, 2),
        "gave_up": sum(result.outcome is not None for result in results),
    }


def lived(mode: str, nodes: int, days: float, seed: int, settings: tuple[str, ...] = ()) -> Result:
    """One world in one mode."""
    asked = [f"nodes={nodes}", f"days={days:g}", *settings, *MODES[mode]]
    return capacity.run(plan_of(question(SCENARIO, asked)), seed)


def _draw(folder: Path, nodes: int, days: float, worlds: int) -> None:
    from holdfast.simulation.plots import draw_lines

    lines = {}
    for mode in MODES:
        points = []
        for spares in DRAWN_SPARES:
            found = [lived(mode, nodes, days, w, (f"spares={spares}",)) for w in range(worlds)]
            points.append((float(spares), 100 * fmean(result.ettr for result in found)))
        lines[mode] = points
    title = f"{nodes:,} nodes, replicas of {EACH}, cautious times"
    draw_lines(
        folder / f"modes-{nodes}.svg", title, ("spares of the job", "ETTR, %"), lines, log=False
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Simulated: replicas against whole jobs")
    parser.add_argument("--quick", action="store_true", help="two days, one world")
    parser.add_argument("--json", action="store_true", help="one JSON line at the end")
    parser.add_argument("--plots", type=Path, help="draw modes-NODES.svg there")
    parser.add_argument("--nodes", type=int, nargs="+", default=[2048, 12_800])
    parser.add_argument("--days", type=float, default=10.0)
    parser.add_argument("--worlds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
