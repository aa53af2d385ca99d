"""A collective that one rank left out: the attempt cannot go on, and is stopped."""

import pytest

from holdfast.actions import AnyAction, StartAttempt, StopAttempt
from holdfast.controller import Phase
from holdfast.events import CollectivesShifted, Ranks
from tests.controller.test_controller import World, kinds, only, running


def shifted(
    world: World, ranks: Ranks = ((1, 1),), by: int = -1, attempt: int = 1
) -> list[AnyAction]:
    event = CollectivesShifted(
        attempt=attempt, group="default_pg", agreed=216, step=340, compared=2, ranks=ranks, by=by,
        ago_s=6.2,
    )  # fmt: skip
    return world.tell(event)


def test_the_attempt_stops_and_starts_again_and_the_rank_is_named_with_the_step() -> None:
    world = running()
    stop = only(shifted(world), StopAttempt)
    assert stop.reason == (
        "Rank 1 has entered 1 collective fewer than the others in group default_pg since optimizer "
        "step 217 of this attempt; since then, those of different steps are paired and "
        "gradients are wrong"
    )
    (incident,) = world.state.incidents
    assert (incident.cause, incident.rank, incident.node) == ("collective-skipped", 1, "b")
    assert incident.detected_at - incident.started_at == pytest.approx(6.2)
    assert "saved in the last 6 s may be wrong" in incident.actions[0].reason
    assert only(world.all_stopped(), StartAttempt).attempt == 2


def test_where_it_cannot_be_told_who_was_wrong_nobody_is_blamed() -> None:
    world = running()
    stop = only(shifted(world, ranks=(), by=-2), StopAttempt)
    assert stop.reason.startswith("One rank has entered 2 collectives fewer than another in group")
    assert world.state.incidents[0].rank is None
    assert only(world.all_stopped(), StartAttempt).attempt == 2


def test_news_of_another_attempt_is_ignored() -> None:
    world = running()
    assert shifted(world, attempt=7) == []
    assert world.state.phase is Phase.RUNNING and not world.state.incidents


def test_a_rank_that_entered_one_too_many_is_named_as_that() -> None:
    actions = shifted(running(), by=1)
    assert kinds(actions) == ["StopAttempt"]
    assert only(actions, StopAttempt).reason.startswith("Rank 1 has entered 1 collective more than")
