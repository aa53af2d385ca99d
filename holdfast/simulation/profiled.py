"""Nodes of which a rank is profiled: slower for as long as that takes, which is nobody's fault."""

from collections.abc import Callable
from typing import Protocol

from holdfast.profiles import ProfileTaken, RankProfile, TakeProfile
from holdfast.simulation.environment import Environment
from holdfast.simulation.ground_truth import GroundTruth
from holdfast.simulation.runs import NodeWorkers
from holdfast.simulation.slowness import Slow

TIMES = 1.5  # as long does a step take that is recorded


class Profiled(Protocol):
    """A node."""

    node: str
    run: NodeWorkers | None
    slow: Slow | None


def profile(
    order: TakeProfile,
    node: Profiled,
    env: Environment,
    truth: GroundTruth,
    tell: Callable[[ProfileTaken], None],
) -> None:
    """Do as it is told; the answer comes once the steps are over. A node that is slow as it is
    becomes no slower."""
    run, slow = node.run, None
    if run is None or run.group.attempt != order.attempt:
        tell(_taken(order, node, "its worker has ended"))
        return
    if node.slow is None:
        place = order.ranks[0] - run.ranks[0]
        slow = node.slow = Slow(TIMES, place, starved=False, since=env.now, profiled=True)
        truth.change_pace(run.group)

    def over() -> None:
        if slow is not None and node.slow is slow:
            node.slow = None
            truth.change_pace(run.group)
        tell(_taken(order, node, "" if run is node.run and run.alive else "its worker ended"))

    env.after((order.steps + 1) * env.hardship.step_s * TIMES, over)


def _taken(order: TakeProfile, node: Profiled, why: str) -> ProfileTaken:
    found = (RankProfile(rank=r, node=node.node, why=why, steps=order.steps) for r in order.ranks)
    return ProfileTaken(id=order.id, found=tuple(found))
