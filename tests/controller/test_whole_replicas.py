"""Replicas of several nodes: one that lacks a node takes no part, the others stay as they are."""

import pytest

from holdfast.actions import AnyAction, AssignRank, StartAttempt, StopAttempt
from holdfast.events import (
    AttemptStopped,
    JobSubmitted,
    NodeLost,
    NodeLostReason,
    NodeReady,
    ScaleRequested,
)
from tests.controller.test_controller import World, kinds, only

GROUPS = {
    "node_count": 4,
    "spare_count": 0,
    "min_nodes": 2,
    "copies": 1,
    "in_process": True,
    "replicas": True,
    "nodes_each": 2,
}


def training(count: int = 4, **limits: float | str) -> World:
    world = World(**{**GROUPS, "node_count": count, **limits})
    world.tell(JobSubmitted())
    for number in range(count):
        world.add("abcdefgh"[number])
    world.train(step=10)
    return world


def lose(world: World, *names: str) -> list[AnyAction]:
    """Lose these nodes, and let the attempt be stopped; what follows."""
    for node in names:
        world.tell(NodeLost(node=node, reason=NodeLostReason.PROCESS))
    world.tell(AttemptStopped(attempt=world.state.attempt, store=world.store()))
    return world.verdict()


def ranks(world: World) -> str:
    """The members, in the order of their ranks."""
    return "".join(node for _, node in sorted(world.state.ranks.items()))


@pytest.mark.parametrize(
    ("lost", "left"), [("a", "cd"), ("b", "cd"), ("c", "ab"), ("d", "ab"), ("ab", "cd")]
)
def test_without_a_node_its_replica_takes_no_part_and_the_other_stays_as_it_is(
    lost: str, left: str
) -> None:
    world = training()
    assert only(lose(world, *lost), StartAttempt).node_count == 2
    assert ranks(world) == left, "and its nodes are at the places they had"


def test_of_three_replicas_the_last_takes_the_place_of_the_first() -> None:
    world = training(6)
    assert only(lose(world, "a"), StartAttempt).node_count == 4
    assert ranks(world) == "efcd"
    moved = {a.node: a.node_rank for a in world.tell(NodeReady(node="b", store=world.store()))
             if isinstance(a, AssignRank)}  # fmt: skip
    assert not moved, "one node is not enough to grow by"


def test_a_replica_that_is_whole_again_takes_part_and_what_is_left_of_it_waits_for_that() -> None:
    world = training()
    lose(world, "b")
    world.train(step=12)
    stop = only(world.add("x"), StopAttempt)
    assert stop.park_s and stop.keeps == "here"
    actions = world.tell(AttemptStopped(attempt=2, store=world.store(), parked=2))
    assert only(actions, StartAttempt).node_count == 4
    assert ranks(world) == "cdax"


def test_a_spare_makes_a_replica_whole_at_once() -> None:
    world = training(spare_count=1)
    world.add("s")
    assert only(lose(world, "b"), StartAttempt).node_count == 4
    assert ranks(world) == "ascd"


def test_of_two_replicas_that_lack_a_node_one_is_made_whole() -> None:
    world = training()
    assert only(lose(world, "b", "c"), StartAttempt).node_count == 2
    assert sorted(ranks(world)) == ["a", "d"]


def test_fewer_than_may_train_are_waited_for() -> None:
    world = training()
    assert "StartAttempt" not in kinds(lose(world, "a", "b", "c"))
    assert "StartAttempt" in kinds(world.add("x"))


def test_who_is_unready_is_left_out_with_its_replica_only_if_that_many_can_be_spared() -> None:
    world = training()
    world.kill("b", 1)
    event = AttemptStopped(attempt=1, store=world.store(), unready=("b",))
    assert only(world.tell(event) + world.verdict(), StartAttempt).node_count == 2
    assert ranks(world) == "cd"
    world = training(min_nodes=4, max_nodes=6)
    world.kill("b", 1)
    event = AttemptStopped(attempt=1, store=world.store(), unready=("b",))
    assert only(world.tell(event) + world.verdict(), StartAttempt).node_count == 4


def test_somebody_who_asks_for_a_part_of_a_replica_gets_whole_ones() -> None:
    world = training(6)
    stop = only(world.tell(ScaleRequested(nodes=5, by="a person")), StopAttempt)
    assert world.state.target == 4 and stop.keeps == "elsewhere"
    actions = world.tell(AttemptStopped(attempt=1, store=world.store()))
    assert only(actions, StartAttempt).node_count == 4
    assert ranks(world) == "abcd"
