"""How fast worlds are lived through, and how well the simulator agrees with what is known.

    .venv/bin/python benchmarks/simulation.py [--quick] [--json] [--nodes N] [--days D] [--worlds W]
    .venv/bin/python benchmarks/simulation.py --validation [--quick] [--json]

One core. `controller` handles the facts of a world of 12,500 nodes (100,000 GPUs at the failure
rate of RSC-1) again, with the invariants watched after each and every entry encoded as a line of
the journal. `world` is the whole: faults, machines and training simulated, the ledger kept as well.
Time is processor time of this process, so that a busy machine does not count; `wall_s` is not.
`swarm` is 1,000 hostile worlds of one day and 16 nodes with all referees, on two cores; of it only
`wall_s` is known, so run it while the machine does nothing else.

With `--validation` the tables of docs/guides/capacity.md: ETTR against the closed formula, the best
checkpoint interval of a sweep against Daly's, published standbys, published ETTRs.
"""

import argparse
import os
import resource
import time
from statistics import fmean, median

import msgspec

from holdfast.actions import Entry
from holdfast.controller import Controller
from holdfast.controller.invariants import Watch
from holdfast.simulation import capacity, swarm, validation
from holdfast.simulation.plan import Plan
from holdfast.simulation.sweep import plan_of, question
from table import Row, report

MIB = 1 << 20
NOTE = """`controller`: handle, invariants and journal; `world`: everything, ledger included;
`swarm`: hostile worlds of one day and 16 nodes, not of the size above, on up to two cores."""
STANDBYS = {128: 2, 256: 2, 512: 3, 1024: 4}


def main() -> None:
    args = _arguments()
    if args.validation:
        _validate(args.quick, args.json)
        return
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:2])
    hostile = swarmed(args.worlds or (100 if args.quick else 1000))
    os.sched_setaffinity(0, cores[:1])
    days, rounds = (30, 1) if args.quick else (args.days, args.rounds)
    asked = question("moon-100k", [f"nodes={args.nodes}", f"days={days}"])
    plan = plan_of(asked)
    worlds = [world(plan, seed) for seed in range(rounds)]
    report(
        f"{days} days of {args.nodes:,} nodes ({args.nodes * 8:,} GPUs), model, one core",
        {
            "world": _middle(worlds),
            "controller": _middle([handled(plan) for _ in range(rounds)]),
            "swarm": hostile,
        },
        as_json=args.json,
        note=NOTE,
    )


def world(plan: Plan, seed: int) -> Row:
    """One world lived through."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = capacity.run(plan, seed)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {
        "n": result.events,
        "incidents": result.incidents,
        "events_per_s": round(result.events / cpu),
        "cpu_s": round(cpu, 2),
        "wall_s": round(wall, 2),
        "memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB),
    }


def handled(plan: Plan) -> Row:
    """The facts of a world handled again by a fresh controller."""
    lines = bytearray()
    result = capacity.run(plan, 0, lines.extend)
    decoder, encoder = msgspec.json.Decoder(Entry), msgspec.json.Encoder()
    entries = [decoder.decode(line) for line in bytes(lines).splitlines()]
    controller, watch, journal = Controller(plan.limits()), Watch(), bytearray()
    wall, cpu = time.perf_counter(), time.process_time()
    for entry in entries:
        actions = tuple(controller.handle(entry.event, entry.at))
        watch.check(controller.state)
        again = Entry(entry.seq, entry.at, entry.event, actions, controller.choices)
        encoder.encode_into(again, journal, -1)
        journal += b"\n"
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    assert journal == lines, "the same facts gave another journal"
    return {
        "n": len(entries),
        "incidents": result.incidents,
        "events_per_s": round(len(entries) / cpu),
        "cpu_s": round(cpu, 2),
        "wall_s": round(wall, 2),
        "memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB),
    }


def swarmed(worlds: int) -> Row:
    """Hostile worlds, watched by the referees."""
    wall = time.perf_counter()
    told = list(swarm.swarm(0, worlds, hours=24.0, nodes=16))
    wall = time.perf_counter() - wall
    return {
        "n": sum(world.entries for world in told),
        "wall_s": round(wall, 2),
        "worlds": len(told),
        "fouls": sum(bool(world.foul) for world in told),
        "cores": len(os.sched_getaffinity(0)),
    }


def _middle(rows: list[Row]) -> Row:
    """The row with the median speed."""
    speeds = [float(row["events_per_s"] or 0) for row in rows]
    middle = sorted(speeds)[len(speeds) // 2]
    assert median(speeds) > 0
    return rows[speeds.index(middle)]


# ── validation ────────────────────────────────────────────────────────────────────────────────


def _validate(quick: bool, as_json: bool) -> None:
    seeds, faults = (2, 300) if quick else (6, 1500)
    report("ETTR at the best interval, model and formula", _grid(seeds, faults), as_json=as_json)
    optima = [validation.optimum(300.0, h * 3600.0, 600.0, seeds, 2 * faults) for h in (24, 6)]
    report(
        "Best interval for a save of 5 min, seconds",
        {
            f"a fault in {optimum.mttf_s / 3600:g} h": {
                "sweep": round(optimum.found_s),
                "daly": round(optimum.daly_s),
                "off_percent": round(100 * (optimum.found_s / optimum.daly_s - 1), 2),
            }
            for optimum in optima
        },
        as_json=as_json,
    )
    report("Machines that fail on a day at 0.12 %", _standbys(40_000), as_json=as_json)
    report("Published ETTR between the stock way and Holdfast", _brackets(seeds), as_json=as_json)


def _grid(seeds: int, faults: int) -> dict[str, Row]:
    cells = validation.grid(seeds, faults)
    return {
        f"{cell.nodes} nodes at {cell.rate:g}, {cell.lost_s:g} s lost, save {cell.save_s:g} s": {
            "formula": None if cell.expected is None else round(cell.expected, 4),
            "model": round(cell.found.mean, 4),
            "confidence": round(cell.found.half, 4),
            "error_points": None if cell.expected is None else round(100 * cell.error, 2),
            "valid": "yes" if cell.valid else "no",
        }
        for cell in cells
    }  # fmt: skip


def _standbys(days: int) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for nodes, standbys in STANDBYS.items():
        failed = validation.standby_days(nodes, 0.0012, seed=1, days=days)
        rows[f"{nodes} machines"] = {
            "published_standbys": standbys,
            "days_covered": round(fmean(count <= standbys for count in failed), 4),
            "with_one_less": round(fmean(count < standbys for count in failed), 4),
        }
    return rows


def _brackets(seeds: int) -> dict[str, Row]:
    found = [validation.bracket(name, ettr, seeds) for name, ettr in validation.PUBLISHED]
    return {
        bracket.name: {
            "stock": round(bracket.stock.mean, 4),
            "published": bracket.published,
            "holdfast": round(bracket.holdfast.mean, 4),
        }
        for bracket in found
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a shorter world, once")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--validation", action="store_true", help="compare with what is known")
    parser.add_argument("--nodes", type=int, default=12_500)
    parser.add_argument("--days", type=float, default=90)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worlds", type=int, help="how many are in the swarm")
    return parser.parse_args()


if __name__ == "__main__":
    main()
