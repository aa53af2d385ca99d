"""A job continues with another version once its nodes have prepared it, and without one that fails
them."""

import msgspec
import pytest

from holdfast.actions import (
    AnyAction,
    EndJob,
    KeepVersion,
    Outcome,
    PrepareUpdate,
    StartAttempt,
    StopAttempt,
)
from holdfast.controller import Phase, State
from holdfast.controller.updates import AGAIN_S, FORCE_S
from holdfast.events import (
    Broken,
    ControllerResumed,
    DeadlinePassed,
    JobSubmitted,
    NodeLost,
    NodeLostReason,
    NumbersBroke,
    NumbersSpiked,
    Progress,
    Progressed,
    Quantity,
    Spike,
    UpdatePrepared,
    UpdateRequested,
)
from holdfast.versions import FIRST, Version
from tests.controller.test_controller import World, kinds, only

CODE = "a" * 64


def training(**limits: float | str) -> World:
    world = World(**limits)
    world.submit()
    world.train(step=10)
    return world


def ask(world: World, id_: str = "x", **what: object) -> list[AnyAction]:
    wish = {"sets": {"lr": "0.1"}} | what
    return world.tell(UpdateRequested(by="me", id=id_, **wish))  # type: ignore[arg-type]


def prepared(world: World, version: int = 2, **what: object) -> list[AnyAction]:
    told = {"ready_count": 3} | what
    return world.tell(UpdatePrepared(version=version, **told))  # type: ignore[arg-type]


def updated(**limits: float | str) -> World:
    """Version 2 trains since step 10."""
    world = training(**limits)
    ask(world)
    prepared(world)
    world.all_stopped()
    world.train(step=11, restored=10)
    assert world.state.start is not None and world.state.start.version.number == 2
    return world


def stages(world: World) -> list[str]:
    return [str(update.stage) for update in world.state.updating.records]


def fails(world: World, **verdict: object) -> list[AnyAction]:
    """The script of rank 1 fails, in a way that ends the job the second time."""
    world.tell(world.exited("b", 1))
    verdict = {"cause": "worker-exception", "user_error": True, "signature": "here"} | verdict
    return world.recover(**verdict)


def test_nodes_prepare_it_while_the_job_trains_and_then_it_stops_at_the_end_of_a_step() -> None:
    world = training()
    prepare = only(ask(world, code=CODE), PrepareUpdate)
    assert prepare.version == Version(number=2, code=CODE, sets={"lr": "0.1"})
    assert world.state.phase is Phase.RUNNING
    stop = only(prepared(world), StopAttempt)
    assert stop.keeps == "here" and stop.grace_s == world.state.limits.stop_grace_s
    start = only(world.all_stopped(), StartAttempt)
    assert (start.attempt, start.version) == (2, prepare.version)
    world.train(step=11, restored=10)
    incident = world.state.incidents[-1]
    assert (incident.cause, incident.steps_lost, incident.version) == ("updated", 0, 1)
    assert incident.ended_at is not None and stages(world) == ["used"]
    assert (world.state.restarts, world.state.restarts_count) == ([], 0), "it is no failure"


def test_a_new_controller_repeats_the_whole_order_while_every_member_is_there() -> None:
    world = training()
    ask(world)
    stop = only(prepared(world), StopAttempt)
    existing = tuple(world.state.nodes)
    assert only(world.tell(ControllerResumed(existing=existing)), StopAttempt) == stop
    lost = world.state.ranks[1]
    gone = ControllerResumed(existing=tuple(node for node in existing if node != lost))
    hurry = only(world.tell(gone), StopAttempt)
    assert (hurry.keeps, hurry.grace_s) == ("", 0.0), "there is no snapshot of all ranks to come"


def test_one_that_a_node_cannot_prepare_is_refused_and_training_goes_on() -> None:
    world = training()
    ask(world)
    actions = prepared(world, why="SyntaxError: x", node="a", ready_count=1)
    assert only(actions, KeepVersion).version == FIRST
    assert (world.state.phase, world.state.attempt) == (Phase.RUNNING, 1)
    assert stages(world) == ["refused"] and not world.state.incidents
    assert only(ask(world, "y"), PrepareUpdate).version.number == 3, "numbers are not used again"


def test_another_image_stops_no_attempt_and_is_that_of_nodes_that_come() -> None:
    world = training()
    assert only(ask(world, sets={}, image="img:2"), PrepareUpdate).version.image == "img:2"
    assert only(prepared(world), KeepVersion).version == Version(number=2, image="img:2")
    assert (world.state.phase, world.state.attempt) == (Phase.RUNNING, 1)
    assert stages(world) == ["used"] and not world.state.incidents
    back = only(ask(world, "y", sets={}, back=True), PrepareUpdate)
    assert back.version == FIRST
    assert only(prepared(world, version=1), KeepVersion).version == FIRST
    ask(world, "z", sets={}, image="img:none")
    refused = only(prepared(world, version=3, why="ImagePullBackOff", ready_count=0), KeepVersion)
    assert refused.version == FIRST
    assert world.state.updating.records[-1].why == "ImagePullBackOff", "no node has said that"


def test_another_image_is_used_while_a_node_is_missing_whose_pod_cannot_start() -> None:
    """The way back out of a roll-out: the job waits for a node, and would end with that."""
    world = training(spare_count=0)
    ask(world, sets={}, image="img:2")
    prepared(world)
    for node in "bc":
        world.tell(NodeLost(node=node, reason=NodeLostReason.SILENT))
        world.recover(cause="peer-lost", rank=0)
    assert world.state.phase is Phase.WAITING and world.state.wait_deadline is not None
    world.now += world.state.limits.node_wait_s - 1
    ask(world, "y", sets={}, back=True)
    assert only(prepared(world, version=1, ready_count=0), KeepVersion).version == FIRST
    assert world.state.wait_deadline == world.now + world.state.limits.node_wait_s


def test_an_image_whose_first_attempt_fails_is_taken_back() -> None:
    world = training()
    ask(world, sets={}, image="img:2")
    prepared(world)
    world.kill("b", 1)
    assert only(world.recover(), StartAttempt).version.image == "img:2"
    world.train(step=12, restored=10)
    assert only(fails(world), StartAttempt).version == FIRST
    assert stages(world) == ["reverted"]


def test_now_does_not_wait_for_the_end_of_the_step() -> None:
    world = training()
    ask(world, when="now")
    stop = only(prepared(world), StopAttempt)
    assert stop.keeps == "" and stop.grace_s == world.state.limits.restart_grace_s


def test_one_in_no_hurry_is_used_by_the_next_recovery() -> None:
    world = training()
    ask(world, when="next-failure")
    assert prepared(world) == []
    world.kill("b", 1)
    assert only(world.recover(), StartAttempt).version.number == 2
    incident = world.state.incidents[-1]
    assert incident.cause == "worker-killed"
    assert "Update" in [done.action for done in incident.actions]


def test_and_after_a_day_without_a_recovery_all_the_same() -> None:
    world = training()
    ask(world, when="next-failure")
    prepared(world)
    due = world.controller.next_deadline()
    assert due == pytest.approx(world.state.updating.records[0].at + FORCE_S)
    assert only(world.tell(DeadlinePassed(), FORCE_S), StopAttempt).keeps == "here"


def test_a_recovery_does_not_wait_for_one_that_is_being_prepared() -> None:
    world = training()
    world.kill("b", 1)
    ask(world)
    assert only(world.recover(), StartAttempt).version == FIRST
    assert prepared(world) == [], "the attempt is not disturbed before it trains again"
    world.train(step=11, restored=10)
    assert world.state.phase is Phase.RECOVERING
    assert only(world.all_stopped(), StartAttempt).version.number == 2


def test_one_that_is_ready_before_the_attempt_is_stopped_is_used_at_once() -> None:
    world = training()
    world.kill("b", 1)
    ask(world)
    prepared(world)
    assert only(world.recover(), StartAttempt).version.number == 2


def test_a_node_that_is_lost_while_the_attempt_is_stopped_for_it_is_replaced() -> None:
    world = training()
    ask(world)
    prepared(world)
    world.tell(NodeLost(node="b", reason=NodeLostReason.PROCESS))
    start = only(world.recover(cause="none", rank=None), StartAttempt)
    assert (start.version.number, world.state.ranks) == (2, {0: "a", 1: "c"})
    assert world.state.incidents[-1].cause == "node-lost"


def test_a_later_one_takes_the_place_of_one_that_is_not_used_and_has_what_it_had() -> None:
    world = training()
    ask(world, code=CODE, when="next-failure")
    prepared(world)
    prepare = only(ask(world, "y", sets={"wd": "1", "lr": "0.2"}), PrepareUpdate)
    assert prepare.version == Version(number=3, code=CODE, sets={"lr": "0.2", "wd": "1"})
    assert prepared(world, 2) == [], "nobody waits for the former one any more"
    prepared(world, 3)
    assert stages(world) == ["replaced", "used"]


def test_a_later_one_while_the_attempt_is_stopped_for_the_first_comes_after_it() -> None:
    world = training()
    ask(world)
    prepared(world)
    prepare = only(ask(world, "y", sets={"wd": "1"}), PrepareUpdate)
    assert prepare.version.sets == {"lr": "0.1", "wd": "1"}
    assert only(world.all_stopped(), StartAttempt).version.number == 2
    prepared(world, 3)
    world.train(step=11, restored=10)
    assert only(world.all_stopped(), StartAttempt).version.number == 3


def test_a_wish_that_is_told_twice_counts_once() -> None:
    world = training()
    ask(world)
    assert ask(world) == []


def test_without_a_node_that_could_prepare_it_nodes_are_asked_again() -> None:
    world = training()
    ask(world)
    assert prepared(world, ready_count=0, missing=("a", "b")) == []
    due = world.controller.next_deadline()
    assert due == pytest.approx(world.now + AGAIN_S)
    assert kinds(world.tell(DeadlinePassed(), AGAIN_S)) == ["PrepareUpdate"]
    assert world.tell(DeadlinePassed(), AGAIN_S) == [], "they are being asked"


def test_a_look_at_an_update_that_is_refused_meanwhile_is_over_once_it_is_due() -> None:
    """Else the same deadline passes again and again, and each time is a line of the journal."""
    world = training()
    ask(world)
    prepared(world, ready_count=0)
    world.tell(ControllerResumed(existing=("a", "b", "c"), term=2))
    prepared(world, why="SyntaxError", node="a")
    assert stages(world) == ["refused"]
    assert world.tell(DeadlinePassed(), AGAIN_S) == []
    assert world.controller.next_deadline() is None


def test_a_new_controller_has_it_prepared_again() -> None:
    world = training()
    ask(world)
    actions = world.tell(ControllerResumed(existing=("a", "b", "c")))
    assert only(actions, PrepareUpdate).version.number == 2
    prepared(world)
    actions = world.tell(ControllerResumed(existing=("a", "b", "c")))
    assert kinds(actions) == ["StopAttempt"]
    start = only(world.all_stopped(), StartAttempt)
    assert start.version.number == 2
    assert only(world.tell(ControllerResumed(existing=("a", "b", "c"))), StartAttempt) == start


@pytest.mark.parametrize("told", [True, False], ids=["recorded", "lost"])
def test_a_refused_version_keeps_its_number_whenever_its_controller_is_lost(told: bool) -> None:
    """Between the refusal and its line in the journal, too: then it is prepared anew."""
    world = training()
    ask(world, id_="refused", sets={}, image="img:none")
    if told:
        prepared(world, why="no such image")
    again = world.tell(ControllerResumed(existing=("a", "b", "c")))
    assert [one.version.number for one in again if isinstance(one, PrepareUpdate)] == [2][told:]
    assert only(ask(world, id_="new", sets={}, image="img:2"), PrepareUpdate).version.number == 3
    prepared(world, version=2, why="no such image")
    assert stages(world) == ["refused" if told else "replaced", "preparing"]


def test_rollback_prepares_the_version_before_and_returns_to_it() -> None:
    world = updated()
    prepare = only(ask(world, "y", back=True, sets={}), PrepareUpdate)
    assert prepare.version == FIRST
    prepared(world, 1)
    assert only(world.all_stopped(), StartAttempt).version == FIRST
    assert stages(world) == ["reverted", "used"]
    world.train(step=12, restored=11)
    assert only(ask(world, "z"), PrepareUpdate).version.number == 3


@pytest.mark.parametrize("ready", [False, True])
def test_who_asks_for_the_version_before_again_while_it_comes_goes_back_once(ready: bool) -> None:
    """And does not stay with the one that is to go."""
    world = updated()
    ask(world, "y", back=True, sets={}, when="next-failure")
    if ready:
        prepared(world, 1)
    assert only(ask(world, "z", back=True, sets={}), PrepareUpdate).version == FIRST
    prepared(world, 1)
    assert only(world.all_stopped(), StartAttempt).version == FIRST
    assert stages(world) == ["reverted", "replaced", "used"]
    assert world.state.version == FIRST and world.state.updating.used == []


def test_rollback_takes_back_an_update_that_is_not_used_yet() -> None:
    world = training()
    ask(world, when="next-failure")
    prepared(world)
    assert only(ask(world, "y", back=True), KeepVersion).version == FIRST
    world.kill("b", 1)
    assert only(world.recover(), StartAttempt).version == FIRST
    assert stages(world) == ["replaced", "used"]


def test_the_first_steps_fail_and_the_version_before_comes_back_at_no_cost() -> None:
    world = updated(max_restarts=0)
    assert only(fails(world), StartAttempt).version == FIRST
    assert stages(world) == ["reverted"] and world.state.restarts == []
    assert "Revert" in [done.action for done in world.state.incidents[-1].actions]
    world.train(step=12, restored=11)
    assert only(fails(world), EndJob).outcome is Outcome.FAILED, "that is no new code"


def test_later_failures_are_those_of_any_job() -> None:
    world = updated(trial_steps=50)
    world.tell(Progressed(attempt=2, progress=Progress(step=60)))
    assert only(fails(world), StartAttempt).version.number == 2


def test_faults_that_no_code_is_to_blame_for_leave_the_version_alone() -> None:
    world = updated()
    world.kill("b", 1)
    assert only(world.recover(), StartAttempt).version.number == 2
    world.train(step=12, restored=11)
    assert only(fails(world, environment=True, user_error=False), StartAttempt)
    assert world.state.version.number == 2


def test_a_loss_far_above_the_usual_is_noted_and_on_trial_reverts() -> None:
    spike = Spike(step=12, what=Quantity.LOSS, value=90.0, usual=1.0)
    world = updated(trial_steps=50)
    norm = msgspec.structs.replace(spike, what=Quantity.GRAD_NORM)
    assert world.tell(NumbersSpiked(attempt=2, rank=0, spike=norm)) == []
    only(world.tell(NumbersSpiked(attempt=2, rank=0, spike=spike)), StopAttempt)
    start = only(world.recover(cause="none", rank=None), StartAttempt)
    assert (start.version, start.restore_below) == (FIRST, None)
    assert world.state.incidents[-1].cause == "diverged"
    world.train(step=13, restored=12)
    assert world.tell(NumbersSpiked(attempt=3, rank=0, spike=spike)) == []


def test_a_loss_that_is_no_number_reverts_below_it_even_where_it_would_end_the_job() -> None:
    world = updated(on_nan="stop")
    broke = Broken(step=12, what=Quantity.LOSS, value="nan")
    world.tell(NumbersBroke(attempt=2, rank=0, broke=broke))
    actions = world.recover(cause="nan", summary="nan", rank=0, step=12)
    start = only(actions, StartAttempt)
    assert (start.version, start.restore_below) == (FIRST, 12)
    assert stages(world) == ["reverted"]


def test_numbers_that_break_while_it_is_stopped_are_not_continued_from() -> None:
    world = training()
    ask(world)
    prepared(world)
    broke = Broken(step=10, what=Quantity.LOSS, value="nan")
    assert world.tell(NumbersBroke(attempt=1, rank=0, broke=broke)) == []
    start = only(world.recover(cause="nan", summary="nan", rank=0, step=10), StartAttempt)
    assert (start.version.number, start.restore_below) == (2, 10)


def test_a_rollback_that_was_asked_for_meanwhile_goes_back_once() -> None:
    world = updated()
    ask(world, "y", back=True)
    assert only(fails(world), StartAttempt).version == FIRST
    assert prepared(world, 1) == []
    world.train(step=12, restored=11)
    assert world.state.phase is Phase.RUNNING and stages(world) == ["reverted", "replaced"]


def test_state_of_a_controller_that_knew_no_versions_can_be_read() -> None:
    plain = msgspec.to_builtins(training().state)
    for key in ("updating",):
        del plain[key]
    del plain["start"]["version"]
    state = msgspec.convert(plain, State, strict=False)
    assert state.version == FIRST and state.start is not None and state.start.version == FIRST


def test_code_that_ends_well_without_training_is_not_the_end_of_the_job() -> None:
    world = training()
    ask(world)
    prepared(world)
    world.all_stopped()
    actions = [world.tell(world.exited(node, rank, exit_code=0)) for rank, node in enumerate("ab")]
    assert kinds(actions[1]) == ["StopAttempt"]
    assert only(world.recover(cause="exited-silently"), StartAttempt).version == FIRST


def test_a_job_that_begins_a_new_journal_has_the_version_that_it_had() -> None:
    world, version = World(), Version(number=3, code=CODE)
    world.tell(JobSubmitted(version=version))
    actions = [action for node in "abc" for action in world.add(node)]
    assert only(actions, StartAttempt).version == version
    world.train(step=10)
    assert only(fails(world), StartAttempt).version == version
    world.train(step=11, restored=10)
    assert only(ask(world), PrepareUpdate).version.number == 4
