"""Nodes that have to fetch data before they can start workers."""

import pytest

from holdfast.actions import EndJob, Outcome
from holdfast.events import DeadlinePassed, JobSubmitted, NodeJoined, NodePreparing
from tests.controller.test_controller import World, only


def test_a_node_that_fetches_data_is_waited_for_as_long_as_it_comes_further() -> None:
    world = World(node_wait_s=30.0)
    world.tell(JobSubmitted())
    for node in ("a", "b"):
        world.tell(NodeJoined(node=node, name=node, address=f"10.0.0.{node}", workers=1))
    says = NodePreparing(node="a", what="data set d: 1 of 9 GB fetched", moved=True)
    for _ in range(9):
        assert world.tell(says, after_s=29.0) == []
        assert world.controller.next_deadline() == pytest.approx(world.now + 30.0)
    assert world.state.why == "2 more nodes needed to start (a: data set d: 1 of 9 GB fetched)"
    stands = NodePreparing(node="a", what="data set d: access denied", moved=False)
    assert world.tell(stands, after_s=20.0) == []
    end = only(world.tell(DeadlinePassed(), after_s=10.0), EndJob)
    assert end.outcome is Outcome.GAVE_UP
    assert "data set d: access denied" in end.reason
