"""A node that is to be taken away hands its rank over in time, and that is no failure."""

import pytest

from holdfast.actions import AssignRank, Fence, StartAttempt, StopAttempt
from holdfast.controller import Phase
from holdfast.events import (
    Diagnosed,
    HealthChanged,
    NodeLeft,
    NodeLost,
    NodeLostReason,
    Severity,
    StopRequested,
)
from tests.controller.test_controller import World, kinds, only, running
from tests.controller.test_health import change

SPOT = "machine m-1 leaves: its spot instance is reclaimed"


def leaves(node: str = "b", severity: Severity = Severity.LEAVES) -> HealthChanged:
    return HealthChanged(
        node=node, condition="machine-leaving", severity=severity, detail=SPOT, device="spot"
    )


def of_nobody(world: World) -> Diagnosed:
    attempt = world.state.attempt
    return Diagnosed(attempt=attempt, cause="none", summary="", confidence=0.0, rank=None)


def test_a_spare_takes_over_at_the_end_of_a_step_before_the_node_goes() -> None:
    world = running()
    stop = only(world.tell(leaves()), StopAttempt)
    assert stop.keeps == "elsewhere" and stop.grace_s == world.state.limits.stop_grace_s
    actions = [*world.all_stopped(), *world.tell(of_nobody(world))]
    fence = only(actions, Fence)
    assert (fence.node, fence.blamed) == ("b", False), "its machine has done nothing"
    assert only(actions, AssignRank).node == "c"
    assert only(actions, StartAttempt).attempt == 2
    (incident,) = world.state.incidents
    assert (incident.cause, incident.node) == ("node-left", "b") and SPOT in incident.summary
    assert world.state.restarts == [] and world.state.restarts_count == 0


def test_nothing_is_counted_and_nothing_waits_however_often_nodes_are_taken() -> None:
    world = running(max_restarts=1)
    for number in range(6):
        member = world.state.ranks[1]
        world.tell(NodeLeft(node=member))
        assert only(world.recover(cause="peer-lost", rank=0), StartAttempt)
        world.add(f"new-{number}")
    assert world.state.start_deadline is None and world.state.fruitless == 0
    assert world.state.outcome is None and world.state.restarts == []


def test_as_many_hand_over_at_once_as_copies_of_their_state_make_up_for() -> None:
    """Each may have the only copy of what the other alone has; the second one follows."""
    for copies, at_once in ((0, 1), (1, 1), (2, 2)):
        world = running(spare_count=2, copies=copies)
        world.add("d")
        world.tell(leaves("a"))
        world.tell(leaves("b"))
        actions = [*world.all_stopped(), *world.tell(of_nobody(world))]
        assert [a.node for a in actions if isinstance(a, Fence)] == [*"ab"][:at_once]
        world.train(step=11, restored=10)
        assert world.state.phase is (Phase.RUNNING if at_once == 2 else Phase.RECOVERING)


def test_a_spare_that_is_to_go_is_taken_last() -> None:
    world = running(spare_count=2)
    world.add("d")
    world.tell(leaves("c"))
    world.tell(NodeLost(node="b", reason=NodeLostReason.SILENT))
    assert only(world.recover(cause="peer-lost", rank=0), AssignRank).node == "d"


def test_without_a_spare_that_stays_training_goes_on() -> None:
    world = running()
    assert world.tell(leaves("c")) == []
    assert world.tell(leaves("b")) == []
    assert world.state.phase is Phase.RUNNING
    assert "StopAttempt" in kinds(world.add("d")), "until there is one"


def test_an_announcement_that_is_taken_back_costs_nothing() -> None:
    world = running(spare_count=0)
    world.tell(NodeLost(node="c", reason=NodeLostReason.SILENT))
    world.tell(leaves())
    world.tell(leaves(severity=Severity.OK))
    assert world.add("d") == [] and world.state.phase is Phase.RUNNING


def test_a_job_that_never_replaces_nodes_hands_over_all_the_same() -> None:
    world = running(replace_after=0)
    assert world.tell(change("b")) == [], "a fault is stood"
    assert only(world.tell(leaves("a")), StopAttempt).keeps == "elsewhere"


def test_a_fault_is_a_fault_though_the_node_is_to_go() -> None:
    world = running()
    world.tell(change("b"))
    world.tell(leaves("b"))
    actions = world.recover(cause="peer-lost", rank=0)
    assert only(actions, Fence).blamed
    assert world.state.incidents[-1].cause == "hardware-fault"


def test_a_worker_that_fails_on_a_node_that_is_to_go_is_not_explained_by_it() -> None:
    world = running(spare_count=0)
    world.tell(NodeLost(node="c", reason=NodeLostReason.SILENT))
    world.tell(leaves("b"))
    world.kill("b", 1)
    world.recover(cause="device-error", rank=1)
    assert world.state.incidents[-1].cause == "device-error"
    assert len(world.state.restarts) == 1, "that is a failure"


def test_a_rank_that_misses_the_node_before_its_goodbye_is_heard_does_not_make_it_a_failure() -> (
    None
):
    world = running()
    world.tell(world.exited("a", 0))
    world.tell(NodeLeft(node="b", detail="its pod was evicted"))
    world.recover(cause="peer-lost", rank=0)
    (incident,) = world.state.incidents
    assert (incident.cause, incident.node) == ("node-left", "b")
    assert "was removed (planned): it left: its pod was evicted" in incident.summary
    assert world.state.restarts == []


def test_who_leaves_during_another_recovery_changes_nothing_of_its_cause() -> None:
    world = running()
    world.tell(change("b"))
    world.tell(NodeLeft(node="a"))
    world.recover(cause="peer-lost", rank=0)
    assert world.state.incidents[-1].cause == "hardware-fault"
    assert len(world.state.restarts) == 1


def test_an_error_of_the_script_before_the_node_left_stays_one() -> None:
    world = running()
    world.tell(world.exited("a", 0))
    world.tell(NodeLeft(node="b"))
    world.recover(
        cause="worker-exception", rank=0, user_error=True, signature="x@y:1", confidence=1.0
    )
    assert world.state.incidents[-1].cause != "node-left"
    assert len(world.state.restarts) == 1


@pytest.mark.parametrize("planned", [True, False])
def test_a_pod_that_was_taken_without_a_word_is_no_failure_either(planned: bool) -> None:
    world = running()
    world.tell(NodeLost(node="b", reason=NodeLostReason.PROCESS, planned=planned))
    world.recover(cause="peer-lost", rank=0)
    (incident,) = world.state.incidents
    assert incident.cause == ("node-left" if planned else "node-lost")
    assert len(world.state.restarts) == (0 if planned else 1)


def test_a_job_that_is_being_stopped_hands_nothing_over() -> None:
    world = running()
    world.tell(StopRequested(by="x"))
    assert world.tell(leaves()) == []
