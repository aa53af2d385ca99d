"""Replicas that differ: back to where they were the same; the second time the node is replaced."""

from holdfast.actions import AnyAction, AssignRank, Diagnose, Fence, StartAttempt, StopAttempt
from holdfast.controller import Phase
from holdfast.events import (
    AttemptStopped,
    NodeLost,
    NodeLostReason,
    Progress,
    Progressed,
    Ranks,
    ReplicasDiffer,
)
from tests.controller.test_controller import World, kinds, only, running

ONE: Ranks = ((1, 1),)


def differ(
    world: World, step: int = 10, agreed: int = 8, *, ranks: Ranks = ONE, attempt: int | None = None
) -> list[AnyAction]:
    """Rank 1 is on node b. Two nodes are enough for a story, whatever it says of a majority."""
    event = ReplicasDiffer(
        attempt=attempt or world.state.attempt, step=step, agreed=agreed, compared=3,
        alike=(((0, 0), (2, 2)), ONE), ranks=ranks,
    )  # fmt: skip
    return world.tell(event)


def restarted(world: World, step: int) -> list[AnyAction]:
    """Everything has stopped after this step, and no worker has failed."""
    progress = Progress(step=step)
    stop = AttemptStopped(attempt=world.state.attempt, store=world.store(), progress=progress)
    only(world.tell(stop), Diagnose)
    return world.verdict(cause="node-lost", summary="No worker failed.", rank=None)


def test_the_attempt_stops_and_the_next_one_goes_on_below_the_step_that_differs() -> None:
    world = running()
    stop = only(differ(world), StopAttempt)
    assert "Parameters of rank 1 on b differ from those of ranks 0, 2 after step 10" in stop.reason
    start = only(restarted(world, 14), StartAttempt)
    assert (start.restore_below, start.redo_until) == (9, 8)
    (incident,) = world.state.incidents
    assert (incident.cause, incident.rank, incident.node) == ("corruption", 1, "b")
    assert incident.evidence[1] == "rank 1 on b: differs from all others"
    assert incident.confidence == 0.95
    world.train(step=11, restored=8)
    assert incident.ended_at is not None and incident.steps_lost == 0
    assert world.state.restore_below is None, "training is past the place"


def test_the_node_is_forgiven_once_and_replaced_the_second_time() -> None:
    world = running()
    differ(world)
    assert "Fence" not in kinds(restarted(world, 10))
    world.train(step=20, restored=8)
    differ(world, step=20, agreed=18)
    actions = restarted(world, 20)
    assert only(actions, Fence).node == "b"
    assert only(actions, AssignRank).node == "c"


def test_without_a_majority_nobody_is_blamed_or_replaced() -> None:
    world = running()
    for step in (10, 20, 30):
        stop = only(differ(world, step, step - 2, ranks=()), StopAttempt)
        assert "no majority" in stop.reason
        assert "Fence" not in kinds(restarted(world, step))
        world.train(step=step + 10, restored=step - 2)
    assert {incident.rank for incident in world.state.incidents} == {None}
    sure = {incident.confidence for incident in world.state.incidents}
    assert sure == {0.9}, "they differ for certain"


def test_a_worker_that_failed_because_of_it_is_explained_by_it() -> None:
    """At the end of training the workers raise; the digests of all are known a moment later."""
    world = running()
    world.tell(world.exited("b", 1))
    assert differ(world) == [] and world.state.phase is Phase.RECOVERING
    world.all_stopped()
    actions = world.verdict(
        cause="worker-exception", summary="replicas differ", signature="x@y:1", user_error=True
    )
    assert only(actions, StartAttempt).restore_below == 9
    (incident,) = world.state.incidents
    assert incident.cause == "corruption" and incident.exit_code is None
    assert world.state.last_failure is None, "it is no error of the script"


def test_a_node_that_was_lost_stays_the_cause_and_what_differs_is_not_gone_on_from() -> None:
    world = running()
    world.tell(world.exited("b", 1))
    differ(world, attempt=7)
    assert world.state.restore_below is None, "of another attempt"


def test_what_differs_while_a_node_is_lost_is_not_taken_for_bad_numbers() -> None:
    """Where numbers are bad at the same place again the job ends; bits flip anywhere."""
    world = running()
    world.tell(NodeLost(node="b", reason=NodeLostReason.SILENT))
    assert differ(world, step=10, agreed=8) == []
    restarted(world, 10)
    (incident,) = world.state.incidents
    assert incident.cause == "node-lost"
    assert world.state.last_bad_step is None and world.state.restore_below == 9


def test_steps_since_they_were_the_same_count_as_not_done() -> None:
    world = running()
    differ(world, step=10, agreed=5)
    world.tell(Progressed(attempt=1, progress=Progress(step=12)))
    start = only(restarted(world, 13), StartAttempt)
    assert start.redo_until == 5
