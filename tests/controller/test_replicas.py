"""Replicas: the others go on at once without a lost node, and take it in when it is back."""

from holdfast.actions import AnyAction, StartAttempt, StopAttempt
from holdfast.controller import Phase
from holdfast.events import (
    AttemptStopped,
    HangJudged,
    JobSubmitted,
    Judgement,
    NodeLost,
    NodeLostReason,
    NodeReady,
)
from tests.controller.test_controller import World, kinds, only

REPLICAS = {
    "node_count": 3,
    "spare_count": 0,
    "min_nodes": 1,
    "copies": 1,
    "in_process": True,
    "replicas": True,
}


def training(**limits: float | str) -> World:
    world = World(**{**REPLICAS, **limits})
    world.submit()
    world.train(step=10)
    return world


def stopped(world: World, *unready: str) -> list[AnyAction]:
    event = AttemptStopped(attempt=world.state.attempt, store=world.store(), unready=unready)
    return world.tell(event) + world.verdict()


def test_the_first_attempt_waits_for_all_of_them() -> None:
    world = World(**REPLICAS)
    world.tell(JobSubmitted())
    assert world.add("a") == [] and world.add("b") == []
    assert only(world.add("c"), StartAttempt).node_count == 3


def test_the_others_go_on_at_once_without_a_lost_node_and_keep_their_processes() -> None:
    world = training()
    stop = only(world.tell(NodeLost(node="b", reason=NodeLostReason.PROCESS)), StopAttempt)
    assert stop.park_s
    start = only(stopped(world), StartAttempt)
    assert (start.attempt, start.node_count) == (2, 2)
    assert set(world.state.ranks.values()) == {"a", "c"}


def test_a_node_whose_workers_are_not_ready_again_is_left_out_and_others_are_not_asked_for() -> (
    None
):
    world = training()
    world.kill("b", 1)
    actions = stopped(world, "b")
    assert only(actions, StartAttempt).node_count == 2
    assert "AskNodes" not in kinds(actions), "it comes back by itself"
    world.train(step=12)
    back = only(world.tell(NodeReady(node="b", store=world.store())), StopAttempt)
    assert back.park_s == back.grace_s and back.keeps == "here", (
        "at the end of a step, and nobody is replaced"
    )
    actions = world.tell(AttemptStopped(attempt=2, store=world.store(), parked=2))
    assert only(actions, StartAttempt).node_count == 3


def test_who_is_ready_in_time_is_not_left_out() -> None:
    world = training()
    world.kill("b", 1)
    assert only(stopped(world), StartAttempt).node_count == 3


def test_more_than_memory_makes_up_for_and_more_than_may_be_missing_are_waited_for() -> None:
    world = training()
    world.kill("b", 1)
    assert only(stopped(world, "b", "c"), StartAttempt).node_count == 3, "copies: 1"
    world = training(min_nodes=3, max_nodes=4)
    world.kill("b", 1)
    assert only(stopped(world, "b"), StartAttempt).node_count == 3


def test_the_node_of_rank_0_can_be_left_out() -> None:
    world = training()
    world.kill("a", 0)
    event = AttemptStopped(attempt=1, store=None, unready=("a",))
    start = only(world.tell(event) + world.verdict(rank=0), StartAttempt)
    assert start.store == world.state.start.store and start.node_count == 2  # type: ignore[union-attr]
    assert "a" not in world.state.ranks.values() and world.state.phase is Phase.STARTING


def test_of_a_replica_that_hangs_the_others_keep_their_processes() -> None:
    world = training()
    hang = {"judgement": Judgement.HANG, "summary": "rank 1 is stopped", "confidence": 0.9}
    known = HangJudged(attempt=1, ago_s=3.0, ranks=((1, 1),), **hang)  # type: ignore[arg-type]
    assert only(world.tell(known), StopAttempt).park_s
    world = training()
    nobody = HangJudged(attempt=1, ago_s=3.0, **hang)  # type: ignore[arg-type]
    assert not only(world.tell(nobody), StopAttempt).park_s, "it may be any of them"
