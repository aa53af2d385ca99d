"""A machine that fails its checks before it trains is replaced, and is in nobody's way."""

from holdfast.actions import AnyAction, AskNodes, EndJob, Fence, Outcome
from holdfast.controller import Phase
from holdfast.events import JobSubmitted, NodeJoined, NodeReady, NodeUnfit
from tests.controller.test_controller import World, kinds, only, running


def unfit(world: World, node: str) -> list[AnyAction]:
    world.tell(NodeJoined(node=node, name=node, address="127.0.0.1", workers=1))
    return world.tell(NodeUnfit(node=node, why="memory: 1 of 64 blocks"))


def test_a_node_that_fails_its_checks_is_replaced_and_never_gets_a_rank() -> None:
    world = World()
    world.tell(JobSubmitted())
    actions = unfit(world, "a")
    fence = only(actions, Fence)
    assert (fence.node, fence.blamed) == ("a", True)
    assert fence.reason == "a failed its checks: memory: 1 of 64 blocks"
    assert only(actions, AskNodes).count == 1
    world.tell(NodeReady(node="a", store=world.store()))
    assert "a" not in world.state.nodes and world.state.unfit == 1
    world.add("b")
    assert world.state.unfit == 0


def test_nodes_that_fail_their_checks_one_after_the_other_end_a_job_that_waits_for_them() -> None:
    world = World()
    world.tell(JobSubmitted())
    actions = [action for node in "abc" for action in unfit(world, node)]
    assert only(actions, EndJob).outcome is Outcome.GAVE_UP
    assert "failed its checks" in world.state.why


def test_spares_that_fail_their_checks_do_not_end_a_job_that_trains() -> None:
    world = running()
    for node in "def":
        assert "EndJob" not in kinds(unfit(world, node))
    assert world.state.phase is Phase.RUNNING
    assert world.tell(NodeUnfit(node="a", why="late")) == [], "a member trains already"
