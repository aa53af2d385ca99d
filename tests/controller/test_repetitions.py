"""Groups of nodes repeat a step where a machine may be bad that nobody names, or somebody asks."""

import pytest

from holdfast.actions import AnyAction, CheckNodes, EndJob, Fence, Outcome, StartAttempt
from holdfast.controller import Controller, Phase
from holdfast.controller.policies.ladder import NAMELESS
from holdfast.controller.repetitions import STEPS
from holdfast.digests import StepsToRepeat
from holdfast.events import (
    CheckpointCommitted,
    ControllerResumed,
    DeadlinePassed,
    NodesChecked,
    RepetitionRequested,
)
from tests.controller.test_controller import World, kinds, only, running
from tests.controller.test_corruption import differ, restarted
from tests.controller.test_hangs import judged
from tests.controller.test_numerics import broke, stopped
from tests.controller.test_skipping import started

TOLD = "b fails in every group of 1 it was tried in"
BAD = {"b": TOLD}


def saved(world: World, step: int, tier: str = "shared") -> None:
    attempt = world.state.attempt
    world.tell(
        CheckpointCommitted(node="a", tier=tier, attempt=attempt, step=step, seconds=1.0, bytes=1)
    )


def ready(tier: str = "shared", **limits: float | str) -> World:
    """It trains, and can be gone on from step 8 by any node."""
    world = running(**{"group_tests": True, **limits})
    saved(world, 8, tier)
    return world


def hang(world: World) -> list[AnyAction]:
    """All wait at one place, some steps after the last time."""
    world.tell(judged(world, ranks=(), summary="All ranks hung"))
    return world.all_stopped()


def hang_often(world: World, times: int = NAMELESS) -> list[AnyAction]:
    actions: list[AnyAction] = []
    for number in range(times):
        actions = hang(world)
        if number < times - 1:
            world.train(step=20 + number, restored=10)
    return actions


def answer(world: World, found: dict[str, str] | None = None, told: str = TOLD) -> list[AnyAction]:
    attempt = world.state.attempt
    return world.tell(NodesChecked(found=found or {}, attempt=attempt, told=told))


def test_the_third_hang_that_names_nobody_has_groups_repeat_a_step() -> None:
    world = ready()
    assert "CheckNodes" not in kinds(hang_often(world, NAMELESS - 1))
    world.train(step=30, restored=10)
    order = only(hang(world), CheckNodes)
    assert order.nodes == ("a", "b") and order.attempt == world.state.attempt
    assert order.repeat == StepsToRepeat(step=8 + STEPS)
    assert order.reason == "hang 3 times within 3600 s; no machine is identified as the cause"
    assert world.state.incidents[-1].choices[-1].step == "replay"


def test_who_fails_in_its_groups_is_left_for_the_spare_and_the_story_says_why() -> None:
    world = ready()
    hang_often(world)
    actions = answer(world, BAD)
    fence = only(actions, Fence)
    assert fence.node == "b" and TOLD in fence.reason and fence.blamed
    assert only(actions, StartAttempt).attempt == NAMELESS + 1
    assert world.state.ranks == {0: "a", 1: "c"}
    incident = world.state.incidents[-1]
    assert incident.cause == "hardware-fault" and f"repeated: {TOLD}" in incident.evidence[-1]
    assert [one.step for one in incident.choices] == ["replay", "replace"]


def test_where_groups_show_nobody_training_goes_on_and_it_is_not_done_again_soon() -> None:
    world = ready()
    hang_often(world)
    assert kinds(answer(world, told="no group failed")) == ["StartAttempt"]
    world.train(step=40, restored=10)
    assert kinds(hang(world)) == ["StartAttempt"]
    world.now += 3600.0
    for step in (50, 60, 70):
        world.train(step=step, restored=10)
        actions = hang(world)
    assert kinds(actions) == ["CheckNodes"]


def test_what_groups_show_after_the_checks_of_machines_found_nothing_is_acted_upon() -> None:
    """One verdict has waited for both; the job waited for ever when the first one took it."""
    world = ready(checks="spares")
    world.tell(NodesChecked(found={"c": ""}))
    actions = hang(world)
    while "CheckNodes" not in kinds(actions):
        world.tell(DeadlinePassed(), after_s=60.0)
        world.train(step=10, restored=10)
        actions = hang(world)
    order = only(actions, CheckNodes)
    assert order.repeat is None
    checked = NodesChecked(found=dict.fromkeys(order.nodes, ""), attempt=order.attempt)
    assert only(world.tell(checked), CheckNodes).repeat is not None
    assert only(answer(world, BAD), Fence).node == "b"
    assert world.state.phase is Phase.WAITING and world.state.suspicion is None


def test_a_wish_meanwhile_does_not_keep_the_verdict_that_waited_for_checks() -> None:
    """Faults of machines would not be counted any more."""
    world = ready(checks="spares")
    world.tell(NodesChecked(found={"c": ""}))
    actions = hang(world)
    while "CheckNodes" not in kinds(actions):
        world.tell(DeadlinePassed(), after_s=60.0)
        world.train(step=10, restored=10)
        actions = hang(world)
    world.state.repeated_at = world.now  # groups have just shown nothing
    order = only(actions, CheckNodes)
    assert world.tell(asked()) == []
    checked = NodesChecked(found=dict.fromkeys(order.nodes, ""), attempt=order.attempt)
    world.tell(checked)
    assert world.state.phase is Phase.WAITING or world.state.start is not None
    assert world.state.suspicion is None and world.state.repeating == asked().wish


def test_where_most_members_would_be_bad_nobody_is() -> None:
    world = ready()
    hang_often(world)
    assert kinds(answer(world, {"a": "x", "b": "x"}, "a, b fail")) == ["StartAttempt"]
    assert world.state.ranks == {0: "a", 1: "b"}


@pytest.mark.parametrize(
    ("limits", "tier"),
    [
        ({"group_tests": False}, "shared"),
        ({"spare_count": 0, "node_count": 3}, "shared"),
        ({"replica_ranks": 2}, "shared"),
        ({"replica_ranks": 0}, "shared"),
        ({}, "local"),
    ],
)
def test_what_is_lacking_for_it_is_not_made_up_for(
    limits: dict[str, float | str], tier: str
) -> None:
    world = ready(tier, **limits)
    assert "CheckNodes" not in kinds(hang_often(world))


def test_a_hang_that_names_a_rank_is_left_to_the_verdicts() -> None:
    world = ready()
    for step in (20, 30, 40):
        world.tell(judged(world))
        actions = world.all_stopped()
        world.train(step=step, restored=10)
    assert kinds(actions) == ["StartAttempt"]


def test_a_loss_that_is_not_finite_again_ends_the_job_only_if_no_machine_is_bad() -> None:
    for found, ends in ((None, True), (BAD, False)):
        world = ready()
        actions: list[AnyAction] = []
        for _ in range(2):
            broke(world, 12)
            actions = stopped(world, 12)
            if kinds(actions) == ["StartAttempt"]:
                world.train(step=11, restored=8)
        order = only(actions, CheckNodes)
        assert order.repeat == StepsToRepeat(step=12), "the step that was bad"
        actions = answer(world, found)
        if ends:
            assert only(actions, EndJob).outcome is Outcome.FAILED
        else:
            assert only(actions, Fence).node == "b"
            start = only(actions, StartAttempt)
            assert start.restore_below is not None and start.restore_below <= 12
            assert TOLD in world.state.incidents[-1].summary


def test_the_third_corruption_without_a_majority_does_so_and_the_story_names_who_is_found() -> None:
    world = ready()
    actions: list[AnyAction] = []
    for step in (10, 20, 30):
        differ(world, step, step - 2, ranks=())
        actions = restarted(world, step)
        if kinds(actions) == ["StartAttempt"]:
            world.train(step=step + 5, restored=step - 2)
    assert only(actions, CheckNodes).repeat == StepsToRepeat(step=29)
    fence = only(answer(world, BAD), Fence)
    assert fence.node == "b" and TOLD in fence.reason
    incident = world.state.incidents[-1]
    assert (incident.cause, incident.node) == ("hardware-fault", "b")
    assert TOLD in incident.summary and "first seen: Parameters of" in incident.summary


def asked(step: int = 7) -> RepetitionRequested:
    return RepetitionRequested(wish=StepsToRepeat(step=step, isolate=False, id="1", by="somebody"))


def test_somebody_asks_and_the_job_stands_still_for_it_and_goes_on() -> None:
    world = ready()
    stop = world.tell(asked())
    assert kinds(stop) == ["StopAttempt"] and world.state.stop is not None
    assert world.state.stop.keeps == "here"
    order = only(world.all_stopped(), CheckNodes)
    assert order.repeat == asked().wish
    assert kinds(answer(world, told="Step 7 equals the first run")) == ["StartAttempt"]
    assert world.state.incidents[-1].cause == "repeated" and world.state.repeating is None
    world.train(step=30, restored=10)
    assert world.state.open_incident is None and world.state.fruitless == 0


def test_steps_before_it_were_progress() -> None:
    """As before a change of the size, or of the version."""
    world = ready()
    for _ in range(2):
        world.kill("b", 1)
        started(world, world.recover())
    assert world.state.fruitless == 1
    world.train(step=30, restored=10)
    world.tell(asked())
    world.all_stopped()
    answer(world, told="Step 7 equals the first run")
    assert world.state.fruitless == 0 and world.state.barren == 0


def test_a_wish_waits_until_nothing_disturbs_it() -> None:
    world = ready()
    world.kill("b", 1)
    assert world.tell(asked()) == []
    assert "StartAttempt" in kinds(world.recover())
    world.train(step=30, restored=10)
    assert world.state.phase is Phase.RECOVERING and world.state.repeating == asked().wish


def test_a_controller_that_comes_back_orders_it_again() -> None:
    world = ready()
    hang_often(world)
    first = world.state.repeating
    world.controller = Controller(world.state.limits, world.state)
    again = only(world.tell(ControllerResumed(existing=("a", "b", "c"))), CheckNodes)
    assert again.repeat == first and again.nodes == ("a", "b")
    assert "Fence" in kinds(answer(world, BAD))


def test_an_answer_to_nobody_changes_nothing() -> None:
    world = ready()
    assert answer(world, BAD) == [] and world.state.phase is Phase.RUNNING
    assert world.state.ranks == {0: "a", 1: "b"}
