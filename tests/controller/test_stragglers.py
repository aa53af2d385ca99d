"""A rank that is slow is told; its node is given up only where the job asks for that."""

import pytest

from holdfast.actions import AnyAction, Fence, StartAttempt
from holdfast.controller import Phase
from holdfast.events import NodeLost, NodeLostReason, StragglersFound
from holdfast.slow_ranks import SlowBy, Straggler
from tests.controller.test_controller import World, kinds, only, running

TEXT = "it computes longer than the others: its work, or its machine"


def found(
    world: World, *ranks: int, cause: SlowBy = SlowBy.ITSELF, attempt: int | None = None
) -> list[AnyAction]:
    slow = (Straggler(rank=rank, share=0.15, cause=cause, text=TEXT) for rank in ranks)
    event = StragglersFound(attempt=attempt or world.state.attempt, stragglers=tuple(slow))
    return world.tell(event)


def training(policy: str = "tell", spares: int = 0) -> World:
    world = running(stragglers=policy)
    for spare in world.state.spares[spares:]:
        world.tell(NodeLost(node=spare, reason=NodeLostReason.PROCESS))
    return world


def notes(world: World) -> list[str]:
    """But for the loss of a spare."""
    return [note.text for note in world.state.notes if not note.text.startswith("spare c was lost")]


def test_a_slow_rank_is_noted_once_with_what_explains_it_and_trains_on() -> None:
    world = training()
    assert found(world, 1) == [] and found(world, 1) == []
    assert notes(world) == [f"rank 1 on b is slow: all others wait for it 15% of the time; {TEXT}"]
    assert world.state.phase is Phase.RUNNING and not world.state.incidents
    found(world)
    assert notes(world)[1:] == ["no rank is slow any more"] and not world.state.stragglers


def test_news_of_another_attempt_is_ignored() -> None:
    world = training()
    assert found(world, 1, attempt=7) == [] and not world.state.stragglers


def test_its_node_is_replaced_by_a_spare_where_the_job_asks_for_it() -> None:
    world = training("replace", spares=1)
    assert kinds(found(world, 1)) == ["StopAttempt"]
    (incident,) = world.state.incidents
    assert (incident.cause, incident.rank, incident.node) == ("straggler", 1, "b")
    orders = world.all_stopped()
    assert only(orders, Fence).node == "b" and "is slow" in only(orders, Fence).reason
    assert only(orders, StartAttempt).attempt == 2 and world.state.ranks[1] == "c"
    assert world.state.stragglers == ()


@pytest.mark.parametrize("cause", [SlowBy.INPUT, SlowBy.WORK, SlowBy.SAVES, SlowBy.GARBAGE])
def test_a_node_that_is_not_to_blame_is_not_replaced(cause: SlowBy) -> None:
    world = training("replace", spares=1)
    assert found(world, 1, cause=cause) == []
    assert world.state.phase is Phase.RUNNING


def test_without_a_spare_a_slow_node_is_better_than_none() -> None:
    world = training("replace")
    assert found(world, 1) == [] and world.state.phase is Phase.RUNNING


def stage(times: float) -> Straggler:
    text = f"stage 1 of the pipeline (rank 1) computes {times:.2f} times as long as the others"
    return Straggler(rank=1, share=0.3, cause=SlowBy.STAGE, text=text)


def test_a_slow_stage_is_noted_once_in_a_job_and_nothing_follows_from_it() -> None:
    world = training("replace", spares=1)
    for told in ((stage(1.4),), (), (stage(1.5),)):
        event = StragglersFound(attempt=world.state.attempt, stragglers=told)
        assert world.tell(event) == []
    assert len(notes(world)) == 1 and "stage 1 of the pipeline" in notes(world)[0]
    assert world.state.incidents == [] and world.state.phase is Phase.RUNNING


def test_a_rank_of_a_slow_stage_is_judged_by_itself() -> None:
    world = training("replace", spares=1)
    slow = Straggler(rank=1, share=0.15, cause=SlowBy.ITSELF, text=TEXT)
    world.tell(StragglersFound(attempt=1, stragglers=(stage(1.4),)))
    orders = world.tell(StragglersFound(attempt=1, stragglers=(slow, stage(1.4))))
    assert orders and world.state.phase is Phase.RECOVERING
    assert world.state.incidents[-1].cause == "straggler"
