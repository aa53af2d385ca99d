"""A job that has lost what it had saved makes progress as it makes up for it, and not for ever."""

from collections.abc import Iterable
from itertools import cycle, islice

from holdfast.actions import AnyAction, EndJob, Outcome
from holdfast.events import DeadlinePassed, Milestone, MilestoneReached, Progress, Progressed
from tests.controller.test_controller import World, only, running

APART_S = 400.0  # so that no window is used up
FAR = 1_000


def fallen() -> World:
    """All nodes have lost their memory, and nothing else was saved."""
    world = running()
    assert lost_after(world, 10, restored=None) == []
    assert lost_after(world, FAR, restored=10) == []
    return world


def lost_after(world: World, step: int, restored: int | None) -> list[AnyAction]:
    """An attempt trains up to this step, and a worker is killed; whether the job ends."""
    if restored is not None:
        trains(world, step, restored)
    world.now += APART_S
    world.kill("b", 1, step=step)
    told = world.recover()
    if (deadline := world.state.start_deadline) is not None:
        told += world.tell(DeadlinePassed(), deadline - world.now)
    return [action for action in told if isinstance(action, EndJob)]


def trains(world: World, step: int, restored: int) -> None:
    attempt = world.state.attempt
    for milestone in (Milestone.STARTED, Milestone.ARRIVED, Milestone.JOINED):
        world.tell(MilestoneReached(attempt=attempt, milestone=milestone))
    world.tell(MilestoneReached(attempt=attempt, milestone=Milestone.RESTORED, step=restored))
    world.tell(MilestoneReached(attempt=attempt, milestone=Milestone.FIRST_STEP))
    world.tell(Progressed(attempt=attempt, progress=Progress(step=step)))


def lives(world: World, restored: Iterable[int]) -> tuple[int, list[AnyAction]]:
    """How many attempts there are that go on after these steps, and how the job ends."""
    for count, step in enumerate(restored, 1):
        if end := lost_after(world, step + 5, restored=step):
            return count, end
    return -1, []


def test_who_comes_nearer_each_time_is_not_given_up() -> None:
    world = fallen()
    assert lives(world, range(0, 400, 10)) == (-1, [])
    assert world.state.fruitless <= 1, "and it does not wait"
    assert world.state.max_step == FAR


def test_who_begins_anew_each_time_makes_no_progress() -> None:
    world = fallen()
    count, told = lives(world, [0] * 100)
    end = only(told, EndJob)
    assert end.outcome is Outcome.GAVE_UP and "without progress" in end.reason
    assert count <= world.state.limits.max_restarts


def test_what_is_lost_as_often_as_restarts_are_allowed_is_no_progress() -> None:
    world = fallen()
    count, told = lives(world, islice(cycle([0, 10]), 200))
    assert only(told, EndJob).outcome is Outcome.GAVE_UP
    most = world.state.limits.max_restarts
    assert 2 * most <= count <= 3 * most + 2


def test_the_same_step_again_is_no_progress() -> None:
    world = fallen()
    count, told = lives(world, [FAR - 5] * 100)
    assert only(told, EndJob).outcome is Outcome.GAVE_UP
    assert count <= world.state.limits.max_restarts + 1
