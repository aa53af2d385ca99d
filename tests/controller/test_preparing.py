"""Nodes that have to fetch data before they can start workers."""

from typing import Any

import pytest

from holdfast.actions import EndJob, Fence, Outcome
from holdfast.controller import Phase
from holdfast.controller.state import Node
from holdfast.events import (
    AttemptStopped,
    DeadlinePassed,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    NodeLostReason,
    NodePreparing,
    NodeReady,
    OrdersLost,
)
from tests.controller.test_controller import World, kinds, only, running


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


def test_the_reason_of_a_wait_is_what_was_told_last() -> None:
    """Node a has what b, on the same machine, fetches only now."""
    world = World()
    world.tell(JobSubmitted())
    for node in ("a", "b"):
        world.tell(NodeJoined(node=node, name=node, address=f"10.0.0.{node}", workers=1))
        world.tell(NodePreparing(node=node, what="data set d: 0 of 9 GB fetched", moved=True))
    world.tell(NodePreparing(node="a", what="starting its worker processes", moved=True))
    assert world.state.why.endswith("needed to start (a: starting its worker processes)")
    world.tell(NodePreparing(node="b", what="data set d: 1 of 9 GB fetched", moved=True))
    assert world.state.why.endswith("needed to start (b: data set d: 1 of 9 GB fetched)")


class Counting(dict[str, Node]):
    """Nodes, and how often somebody looked at all of them."""

    looks = 0

    def values(self) -> Any:
        self.looks += 1
        return super().values()


def test_a_node_that_comes_is_not_looked_for_among_all_others() -> None:
    """A job of 12,500 nodes would look 156 million times until it starts."""
    world = World(node_count=100)
    controller = world.controller
    nodes = controller.state.nodes = Counting()
    controller.handle(JobSubmitted(), 1.0)
    for number in range(99):
        name = f"n{number}"
        controller.handle(NodeJoined(node=name, name=name, address="10.0.0.1", workers=1), 1.0)
        controller.handle(NodeReady(node=name, store=world.store()), 1.0)
    assert len(controller.state.spares) == 99 and nodes.looks == 0


def test_a_member_that_opens_no_store_for_rank_0_is_given_up_rather_than_the_job() -> None:
    """Whatever keeps it from that, another node can take the rank."""
    world = running(node_wait_s=30.0)
    world.kill("b", 1)
    world.tell(AttemptStopped(attempt=1, store=None))
    assert kinds(world.verdict()) == []
    actions = world.tell(DeadlinePassed(), after_s=30.0)
    fence = only(actions, Fence)
    assert fence.node == "a" and not fence.blamed
    assert fence.reason == "timed out after 30 s: a opens a rendezvous store"
    assert kinds(actions) == ["Fence", "AskNodes", "AssignRank", "StartAttempt"]
    assert world.state.ranks == {0: "c", 1: "b"}


def waits_for_a_store(**limits: float | str) -> World:
    world = running(node_wait_s=30.0, **limits)
    world.kill("b", 1)
    world.tell(AttemptStopped(attempt=1, store=None))
    assert kinds(world.verdict()) == []
    return world


def test_a_spare_that_fetches_data_does_not_prolong_the_wait_for_a_store() -> None:
    world = waits_for_a_store(spare_count=2)
    due = world.controller.next_deadline()
    world.tell(NodeJoined(node="d", name="d", address="10.0.0.1", workers=1), 10.0)
    world.tell(NodePreparing(node="d", what="data set tokens: 1 GB of 2 GB fetched", moved=True))
    assert world.controller.next_deadline() == due


def test_a_wait_for_a_store_and_one_for_a_node_have_a_whole_time_each() -> None:
    world = waits_for_a_store(spare_count=0)
    for spare in list(world.state.spares):
        world.tell(NodeLost(node=spare, reason=NodeLostReason.PROCESS))
    world.tell(NodeLost(node="b", reason=NodeLostReason.PROCESS), 20.0)
    assert world.controller.next_deadline() == world.now + 30.0
    world.state.nodes["a"].store = None
    world.add("d")
    assert world.state.ranks == {0: "a", 1: "d"}
    assert world.controller.next_deadline() == world.now + 30.0


def test_what_a_job_waited_for_before_lost_orders_are_stopped_is_not_due_meanwhile() -> None:
    """That would end the job, though nodes are there."""
    world = waits_for_a_store()
    assert kinds(world.tell(OrdersLost(node="a", attempt=4))) == ["StopAttempt"]
    assert world.state.phase is Phase.RECOVERING and world.controller.next_deadline() is None
