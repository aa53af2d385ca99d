"""A spare counts once its workers only need their ranks; until then it is taken if there is no
other."""

import pytest

from holdfast.actions import AnyAction, AssignRank, StartAttempt, StopAttempt
from holdfast.controller import Phase
from holdfast.controller.conditions import sound_spares
from holdfast.controller.policies.situation import Rung
from holdfast.events import (
    DeadlinePassed,
    HealthChanged,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    NodeLostReason,
    NodeReady,
    Severity,
)
from holdfast.status import Alternative
from tests.controller.test_controller import World, kinds, only, running


def add(world: World, name: str, *, warm: bool = False) -> list[AnyAction]:
    """A node has come; its workers only need their ranks, or are not ready."""
    actions = world.tell(NodeJoined(node=name, name=name, address="127.0.0.1", workers=1))
    ready = NodeReady(node=name, store=world.store(), instrumented=True, warm=warm)
    return actions + world.tell(ready)


def becomes_warm(world: World, name: str) -> list[AnyAction]:
    store = world.state.nodes[name].store
    assert store is not None
    return world.tell(NodeReady(node=name, store=store, instrumented=True))


def trains() -> World:
    """On nodes a and b, and nobody waits."""
    world = running()
    world.tell(NodeLost(node="c", reason=NodeLostReason.PROCESS))
    return world


def lost(world: World, name: str) -> list[AnyAction]:
    world.tell(NodeLost(node=name, reason=NodeLostReason.PROCESS))
    return world.recover(cause="node-lost", rank=None)


def test_the_first_attempt_waits_for_nobody_to_be_warm() -> None:
    world = World()
    world.tell(JobSubmitted())
    assert add(world, "a") == []
    assert kinds(add(world, "b")) == ["AssignRank", "AssignRank", "StartAttempt"]
    add(world, "c")
    assert world.state.spares == ["c"] and sound_spares(world.state) == 0
    becomes_warm(world, "c")
    assert world.state.spares == ["c"] and sound_spares(world.state) == 1
    assert world.state.nodes["a"].warm, "it trains"


def test_a_member_is_left_for_a_spare_once_that_is_warm() -> None:
    world = trains()
    add(world, "d")
    fault = HealthChanged(
        node="b", condition="xid-79", severity=Severity.FATAL, detail="GPU lost", advice="reboot"
    )
    assert world.tell(fault) == [] and world.state.phase is Phase.RUNNING
    assert "GPU lost" in only(becomes_warm(world, "d"), StopAttempt).reason


def test_of_two_spares_the_warm_one_is_taken_though_the_other_waits_longer() -> None:
    world = trains()
    add(world, "d")
    add(world, "e", warm=True)
    assert only(lost(world, "b"), AssignRank).node == "e"


@pytest.mark.parametrize("warm", [True, False])
def test_where_there_is_no_other_it_is_taken_and_that_is_said(warm: bool) -> None:
    world = trains()
    add(world, "d", warm=warm)
    world.state.sizing.arrival_s = 120.0
    took = only(lost(world, "b"), AssignRank)
    assert took.node == "d" and ("its workers were not ready yet" in took.reason) is not warm
    replace = weighed(world)
    assert ("the workers of 1 node are not ready yet" in replace.why) is not warm
    assert (replace.cost_s > 100) is not warm, "it is waited for like one that was asked for"


def weighed(world: World) -> Alternative:
    """What it was expected to cost that another node takes the rank."""
    choice = world.state.incidents[-1].choices[-1]
    return next(one for one in choice.alternatives if one.step == Rung.REPLACE)


def test_a_job_neither_stops_to_be_more_nor_starts_with_more_before_that_one_is_warm() -> None:
    world = running(min_nodes=1)
    lost(world, "c")
    lost(world, "b")
    world.tell(DeadlinePassed(), after_s=60.0)
    assert world.state.size == 1
    world.train(step=20, restored=10)
    assert add(world, "d") == []
    world.kill("a", 0)
    start = only(world.recover(), StartAttempt)
    assert start.node_count == 1
    world.train(step=30, restored=20)
    world.now += 3600.0
    assert "from 1 to 2 nodes" in only(becomes_warm(world, "d"), StopAttempt).reason
