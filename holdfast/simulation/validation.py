"""The simulator against what is known: closed formulas, and what operators of large jobs published.

Everything here is a table of questions with known answers, run by tests with few seeds and by
`benchmarks/simulation.py --validation` with more. A simulator that agrees where formulas hold may
be asked where they do not.
"""

import itertools
import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from holdfast.goodput.formulas import (
    DAY_S,
    daly_s,
    expected_ettr,
    optimal_interval_s,
    per_1000_node_days,
)
from holdfast.simulation.failures import faults
from holdfast.simulation.plan import Plan
from holdfast.simulation.result import Interval, interval
from holdfast.simulation.sweep import (
    Axis,
    Question,
    Task,
    answer,
    plan_of,
    question,
    run_all,
    sweep,
)

FLOOR_S = 10.0  # shortest interval of the grid
VALID_TO = 0.17  # share lost to faults up to which its square, which the formula drops, is small
CLUSTERS = ((1200, 6.50), (2048, 3.79), (12_800, 6.50))
COSTS = ((1200.0, 60.0), (600.0, 10.0), (180.0, 1.0), (60.0, 0.04), (20.0, 0.02))
BARE = (
    *("failures.mix=plain", "cluster.rack_losses_per_1000_days=0", "spares=0"),
    *("cluster.switch_losses_per_1000_days=0", "times.teardown_s=0", "times.start_s=0"),
    *("times.rendezvous_s=0", "times.rendezvous_s_per_1000_nodes=0", "times.first_step_s=0"),
    *("times.schedule_s=0", "times.image_s=0", "times.warm_s=0", "checkpoint.restore_s=0"),
    *("checkpoint.copy_s=0", "remote.interval_s=31536000", "policy.max_restarts=1000000"),
)
"""Settings that leave nothing but what the formulas know: rate, loss of an incident, saves."""


class GridCell(NamedTuple):
    """One combination of the grid, the formula's answer and the simulator's."""

    nodes: int
    rate: float
    lost_s: float
    save_s: float
    interval_s: float
    expected: float | None
    wasted: float  # share of time lost to faults, to first order
    found: Interval

    @property
    def valid(self) -> bool:
        """Whether the formula can be trusted here."""
        return self.expected is not None and self.wasted <= VALID_TO

    @property
    def error(self) -> float:
        """Simulated less expected."""
        return self.found.mean - (self.expected or 0.0)


class Optimum(NamedTuple):
    """The best interval found by a sweep, and Daly's; seconds."""

    save_s: float
    mttf_s: float
    found_s: float
    daly_s: float


def grid(seeds: int, fault_count: float) -> list[GridCell]:
    """The check grid of the expected ETTR at the best interval, `fault_count` in a world."""
    rows = [(*cluster, *cost) for cluster in CLUSTERS for cost in COSTS]
    asked = [_at_best_interval(*row, seeds, fault_count) for row in rows]
    results = iter(run_all([Task(q, seed) for q in asked for seed in range(seeds)]))
    ettrs = [[r.ettr for r in itertools.islice(results, seeds)] for _ in rows]
    return [
        _cell(*row, plan_of(q), interval(found))
        for row, q, found in zip(rows, asked, ettrs, strict=True)
    ]


def _at_best_interval(
    nodes: int, rate: float, lost_s: float, save_s: float, seeds: int, fault_count: float
) -> Question:
    best_s = max(FLOOR_S, optimal_interval_s(nodes, per_1000_node_days(rate), save_s))
    return bare(nodes, rate, lost_s, save_s, best_s, seeds, fault_count)


def _cell(
    nodes: int, rate: float, lost_s: float, save_s: float, plan: Plan, found: Interval
) -> GridCell:
    each = per_1000_node_days(rate)
    interval_s = plan.memory.steps * plan.scenario.step_s
    return GridCell(
        nodes=nodes,
        rate=rate,
        lost_s=lost_s,
        save_s=save_s,
        interval_s=interval_s,
        expected=expected_ettr(nodes, each, lost_s, save_s, interval_s),
        wasted=nodes * each * (lost_s + interval_s / 2),
        found=found,
    )


def optimum(save_s: float, mttf_s: float, lost_s: float, seeds: int, fault_count: float) -> Optimum:
    """Search the best interval from twice Young's: three sweeps, each centred on the last answer.

    Around its minimum the lost share is a parabola in the logarithm of the interval; five points an
    octave wide give its vertex. All points meet the same faults.
    """
    rate = 1000 * DAY_S / mttf_s
    best_s = 2 * math.sqrt(2 * save_s * mttf_s)
    for _ in range(3):
        asked = bare(1, rate, lost_s, save_s, best_s, seeds, fault_count)
        offsets = [math.log(2) * x / 2 for x in (-2, -1, 0, 1, 2)]
        intervals = tuple(best_s * math.exp(x) for x in offsets)
        points = sweep(asked, [Axis("checkpoint.interval_s", intervals)])
        best_s *= math.exp(_vertex(offsets, [1 - p.summary.ettr.mean for p in points]))
    return Optimum(save_s, mttf_s, best_s, daly_s(save_s, mttf_s))


def _vertex(offsets: Sequence[float], lost: Sequence[float]) -> float:
    """The lowest point of the parabola through points that lie evenly around zero."""
    squares = [x * x for x in offsets]
    spread = [square - fmean(squares) for square in squares]
    slope = sum(x * y for x, y in zip(offsets, lost, strict=True)) / sum(squares)
    curve = sum(x * y for x, y in zip(spread, lost, strict=True)) / sum(x * x for x in spread)
    edge = max(offsets)
    return max(-edge, min(edge, -slope / (2 * curve))) if curve > 0 else math.copysign(edge, -slope)


def bare(
    nodes: int,
    rate: float,
    lost_s: float,
    save_s: float,
    interval_s: float,
    seeds: int,
    fault_count: float,
) -> Question:
    """A job with nothing but faults, a fixed loss for each, and saves; as long as so many take."""
    days = fault_count / (nodes * rate / 1000)
    numbers = {
        "nodes": nodes,
        "days": days,
        "seeds": seeds,
        "step_s": min(1.0, interval_s / 10),
        "failures.rate_per_1000_node_days": rate,
        "times.detection_s": lost_s,
        "checkpoint.save_s": save_s,
        "checkpoint.interval_s": interval_s,
    }
    return question("rsc1-8k", [*BARE, *(f"{key}={value!r}" for key, value in numbers.items())])


class Bracket(NamedTuple):
    """A published ETTR, and the same faults met the stock way and by Holdfast."""

    name: str
    published: float
    stock: Interval
    holdfast: Interval

    @property
    def holds(self) -> bool:
        """Whether the published figure lies between the two."""
        return self.stock.high < self.published < self.holdfast.low


PUBLISHED = (("llama3-16k", 0.90), ("byterobust-9600", 0.97))


def bracket(name: str, published: float, seeds: int) -> Bracket:
    """Both ways through the worlds of a shipped scenario, which has the publisher's inputs."""
    asked = question(name, [f"seeds={seeds}"])
    return Bracket(
        name,
        published,
        stock=answer(asked, way="torchrun")[1].ettr,
        holdfast=answer(asked)[1].ettr,
    )


def standby_days(nodes: int, per_machine_day: float, seed: int, days: int) -> list[int]:
    """How many machines fail on each of `days` days, drawn as in every world."""
    asked = question(
        "byterobust-9600",
        [
            f"nodes={nodes}",
            f"failures.rate_per_1000_node_days={1000 * per_machine_day!r}",
            "cluster.rack_losses_per_1000_days=0",
            "cluster.switch_losses_per_1000_days=0",
            "spares=0",
        ],
    )
    failed: list[set[int]] = [set() for _ in range(days)]
    for fault in faults(plan_of(asked), seed):
        day = int(fault.at // DAY_S)
        if day >= days:
            break
        failed[day].add(fault.where)
    return [len(places) for places in failed]
