"""Faults drawn from a seed: when, what kind, and where, before anybody knows who trains there.

Each process (members, spares, racks, switches, storms) has its own stream of random numbers, named
by the seed, so that changing one number of a scenario leaves the others' faults as they are: two
ways compared under one seed meet the same faults. Faults of single nodes come as a Poisson process
over the places of the job; the world finds out which node stands there, and whether any does.
"""

import heapq
import random
from bisect import bisect_right
from collections.abc import Iterator
from enum import StrEnum
from itertools import accumulate
from typing import NamedTuple

from holdfast.goodput.formulas import DAY_S
from holdfast.simulation.plan import Plan
from holdfast.simulation.scenario import Cause, measured


class Scope(StrEnum):
    """Whom a fault strikes."""

    MEMBER = "member"  # the node with one rank
    SPARE = "spare"
    RACK = "rack"
    SWITCH = "switch"
    STORM = "storm"  # each node with some probability
    DRILL = "drill"  # the lowest node ranks


class Fault(NamedTuple):
    """One thing that breaks. `where` is a node rank, spare, rack, switch or number of nodes."""

    at: float
    scope: Scope
    name: str
    shows: str
    detection_s: float
    where: int = 0
    stays: bool = False
    share: float = 0.0  # of the nodes, in a storm


def faults(plan: Plan, seed: int) -> Iterator[Fault]:
    """All faults of one world in order of time, without end."""
    cluster, nodes = plan.scenario.cluster, plan.scenario.nodes
    racks = -(-plan.machines // cluster.nodes_per_rack)
    switches = -(-racks // cluster.racks_per_switch)
    rack_rate = cluster.rack_losses_per_1000_days / 1000 / DAY_S
    switch_rate = cluster.switch_losses_per_1000_days / 1000 / DAY_S
    return heapq.merge(
        _singles(plan, seed, Scope.MEMBER, nodes),
        _singles(plan, seed, Scope.SPARE, plan.spares),
        _groups(plan, seed, Scope.RACK, racks, rack_rate),
        _groups(plan, seed, Scope.SWITCH, switches, switch_rate),
        _storms(plan, seed),
        _drills(plan),
    )


def _singles(plan: Plan, seed: int, scope: Scope, count: int) -> Iterator[Fault]:
    """Faults of single nodes: causes by their weights, places drawn evenly."""
    names, causes = list(plan.mix.causes), list(plan.mix.causes.values())
    bounds = list(accumulate(cause.weight for cause in causes))
    fixed, step_s = plan.scenario.times.detection_s, plan.scenario.step_s
    rng, delays = random.Random(f"{seed}/{scope}"), random.Random(f"{seed}/{scope}/detection")
    for at in _moments(rng, plan.fault_rate * count):
        kind = bisect_right(bounds, rng.random() * bounds[-1], hi=len(causes) - 1)
        cause = causes[kind]
        where, stays = int(rng.random() * count), rng.random() < cause.stays
        detection_s = _measured(cause, step_s, delays) if fixed is None else fixed
        yield Fault(at, scope, names[kind], cause.shows, detection_s, where, stays)


def _measured(cause: Cause, step_s: float, rng: random.Random) -> float:
    if cause.detection_s != "measured":
        return cause.detection_s
    known, kind = measured(), cause.measured_as or cause.shows
    return max(rng.choice(known.seconds[kind]), known.steps.get(kind, 0.0) * step_s)


def _groups(plan: Plan, seed: int, scope: Scope, count: int, rate: float) -> Iterator[Fault]:
    rng = random.Random(f"{seed}/{scope}")
    detection_s = plan.scenario.cluster.group_detection_s
    for at in _moments(rng, rate * count):
        yield Fault(at, scope, f"{scope}-lost", "node", detection_s, int(rng.random() * count))


def _storms(plan: Plan, seed: int) -> Iterator[Fault]:
    """Reclaims of many nodes at once: how often and how large, see data/mixes/spot.yaml."""
    storms = plan.mix.storms
    rng = random.Random(f"{seed}/storm")
    for at in _moments(rng, storms.per_day / DAY_S):
        share = rng.uniform(*storms.share)
        yield Fault(at, Scope.STORM, "storm", "node", storms.detection_s, share=share)


def _drills(plan: Plan) -> Iterator[Fault]:
    for loss in sorted(plan.scenario.losses, key=lambda loss: loss.at_h):
        detection_s = plan.scenario.cluster.group_detection_s
        yield Fault(loss.at_h * 3600, Scope.DRILL, "drill", "node", detection_s, loss.nodes)


def _moments(rng: random.Random, rate: float) -> Iterator[float]:
    """The times of a Poisson process; none where the rate is zero."""
    at = 0.0
    while rate > 0:
        at += rng.expovariate(rate)
        yield at
