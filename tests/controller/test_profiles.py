"""Steps that have become slow are profiled once in an attempt and once an hour, and noted."""

import msgspec
import pytest

from holdfast.actions import CheckNodes, Fence, ProfileSteps, StartAttempt
from holdfast.controller import Limits, Phase
from holdfast.controller.profiles import EVERY_S
from holdfast.events import (
    Broken,
    ControllerResumed,
    NodesChecked,
    NumbersBroke,
    Quantity,
    Severity,
    StragglersFound,
)
from holdfast.profiles import StepsProfiled, StepsSlowed
from holdfast.slow_ranks import SlowBy, Straggler
from holdfast.spec import Job
from tests.controller.test_controller import World, only, running


def slow(world: World, step: int = 900, attempt: int | None = None) -> StepsSlowed:
    number = world.state.attempt if attempt is None else attempt
    return StepsSlowed(attempt=number, step=step, slower=0.25, step_s=1.25, usual_s=1.0)


def test_slow_steps_are_noted_and_profiled_and_training_goes_on() -> None:
    world = running()
    assert world.tell(slow(world, attempt=0)) == [] and not world.state.notes
    [order] = world.tell(slow(world))
    assert isinstance(order, ProfileSteps) and order.step == 900
    told = "a profile of rank 3 says data 40%; try first: more workers"
    answer = StepsProfiled(attempt=world.state.attempt, step=900, told=told, rank=3)
    assert world.tell(msgspec.structs.replace(answer, attempt=0)) == []
    assert world.tell(answer) == []
    assert world.state.phase is Phase.RUNNING and not world.state.incidents
    first, second = world.state.notes
    assert first.text == "steps have become 25% slower than usual (1.25 s each, 1 s before)"
    assert (second.rank, second.text) == (3, told)


@pytest.mark.parametrize(
    ("later_s", "attempts_later", "taken"),
    [(0.0, 0, False), (2 * EVERY_S, 0, False), (10.0, 1, False), (EVERY_S + 1, 1, True)],
)
def test_at_most_one_in_an_attempt_and_one_an_hour(
    later_s: float, attempts_later: int, taken: bool
) -> None:
    world = running()
    world.state.profiled = (world.state.attempt - attempts_later, world.state.now - later_s)
    actions = world.tell(slow(world, step=2000))
    assert bool(actions) == taken and len(world.state.notes) == 1, "it is noted all the same"


CRASH = {"cause": "worker-killed", "user_error": False}
FOUND = "network: b sends only 10 MB/s to c, the median between other nodes is 1.00 GB/s"
RANKS = StragglersFound(
    attempt=1, stragglers=(Straggler(rank=1, share=0.5, cause=SlowBy.ITSELF, text="slow"),)
)


def test_links_are_measured_once_that_attempt_has_ended_and_who_is_slow_is_told_and_stays() -> None:
    world = running(checks="spares")
    world.tell(slow(world))
    world.tell(world.exited("b", 1))
    order = only(world.recover(**CRASH), CheckNodes)
    assert (order.nodes, order.attempt) == (("a", "b"), 1)
    assert order.reason == "steps had become slower than usual, and no rank is slow"
    actions = world.tell(NodesChecked(found={"a": "", "b": FOUND}, attempt=1))
    assert only(actions, StartAttempt) and not any(isinstance(one, Fence) for one in actions)
    [told] = world.state.health["b"].values()
    assert (told.condition, told.severity, told.detail) == ("slow-network", Severity.WARN, FOUND)
    assert world.state.incidents[-1].cause == "worker-killed"
    world.train(step=1000)
    world.tell(world.exited("b", 1))
    assert only(world.recover(**CRASH), StartAttempt), "once for a slowdown"


def test_not_before_an_attempt_that_goes_back() -> None:
    """Seed 2000025: the verdict was weighed again, as numbers that were bad for the second time."""
    world = running(checks="spares")
    world.tell(slow(world))
    broke = Broken(step=9, what=Quantity.LOSS, value="nan")
    world.tell(NumbersBroke(attempt=1, rank=0, broke=broke))
    start = only(world.recover(cause="nan", step=9), StartAttempt)
    assert start.restore_below == 9


@pytest.mark.parametrize("checks", ["", "spares"])
def test_not_where_a_rank_is_slow_or_machines_are_not_checked(checks: str) -> None:
    world = running(checks=checks, stragglers="tell")
    world.tell(slow(world))
    if checks:
        world.tell(RANKS)
    world.tell(world.exited("b", 1))
    assert only(world.recover(**CRASH), StartAttempt)


def test_the_job_file_says_whether() -> None:
    job = Job(name="j", script="t.py")
    assert Limits.of(job).profile_slowdown == 0.0
    wanted = job.monitoring.model_copy(update={"profile_slowdown": 0.2})
    assert Limits.of(job.model_copy(update={"monitoring": wanted})).profile_slowdown == 0.2


@pytest.mark.parametrize(("answered", "later"), [(False, False), (True, False), (False, True)])
def test_a_controller_that_begins_again_says_that_nothing_came_of_it(
    answered: bool, later: bool
) -> None:
    world = running()
    world.tell(slow(world))
    if answered:
        number = world.state.attempt
        world.tell(StepsProfiled(attempt=number, step=900, told="found"))
    if later:
        assert world.state.profiled is not None
        world.state.profiled = (world.state.attempt - 1, 0.0)
    before = len(world.state.notes)
    for _ in range(2):
        world.tell(ControllerResumed(existing=tuple(world.state.nodes)))
    noted = [note.text for note in world.state.notes[before:]]
    words = "they could not be profiled: the controller was restarted"
    assert noted == ([] if answered or later else [words])
