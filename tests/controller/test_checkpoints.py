"""Durable checkpoints in the controller: books, the count of attempts, the way out of poison."""

import msgspec

from holdfast.actions import AnyAction, EndJob, StartAttempt, StopAttempt
from holdfast.controller import Phase, checkpoints
from holdfast.controller.policies.poison import suspected, way_back
from holdfast.controller.state import Trial
from holdfast.events import (
    CheckpointCommitted,
    CheckpointFailed,
    ControllerResumed,
    DeadlinePassed,
    NodeJoined,
    NodeReady,
    Progress,
    Progressed,
    StopRequested,
    Store,
    UpdatePrepared,
    UpdateRequested,
)
from tests.controller.test_controller import World, only, running

BUG = {"cause": "worker-exception", "user_error": True, "signature": "ValueError train.py:3"}
CRASH = {"cause": "worker-killed", "user_error": False, "signature": None}


def commit(world: World, step: int, tier: str = "shared") -> None:
    """A checkpoint of this attempt."""
    attempt = world.state.attempt
    world.tell(
        CheckpointCommitted(
            node="a", tier=tier, attempt=attempt, step=step, seconds=2.0, bytes=1 << 20
        ),
        after_s=10.0,
    )


def failing(world: World, step: int, **what: object) -> list[AnyAction]:
    """A worker fails at this step; what the controller does about it, a back-off included."""
    world.tell(world.exited("b", 1, progress=Progress(step=step)))
    actions = world.recover(**what)
    waits = world.state.phase is Phase.WAITING
    return actions + (world.tell(DeadlinePassed(), after_s=60.0) if waits else [])


def doomed(**what: object) -> World:
    """Checkpoints of steps 100 to 500; two attempts that go on from 500 fail alike at 505."""
    world = running(max_restarts=20)
    for step in (100, 200, 300, 400, 500):
        commit(world, step)
    failing(world, 505, **what)
    world.train(step=505, restored=500)
    return world


def test_a_checkpoint_that_is_told_before_where_the_attempt_goes_on_from_is_no_lost_step() -> None:
    world = running()
    world.kill("b", 1, step=12)
    world.recover()
    commit(world, 14)
    world.train(step=15, restored=12)
    assert world.state.incidents[0].steps_lost == 0


def test_the_newest_checkpoint_of_each_tier_is_known_with_its_cost() -> None:
    world = running()
    commit(world, 100)
    commit(world, 200)
    commit(world, 200)  # told twice
    commit(world, 200, tier="archive")
    tier = world.state.tiers["shared"]
    assert (tier.step, tier.every_s, tier.seconds, tier.commits_count) == (200, 10.0, 2.0, 2)
    assert world.state.tiers["archive"].every_s is None


def test_failures_are_counted_until_a_save_succeeds() -> None:
    world = running()
    for failures in (1, 2, 4):
        world.tell(
            CheckpointFailed(
                node="a", tier="shared", attempt=1, step=9, why="full", failures=failures
            )
        )
    tier = world.state.tiers["shared"]
    assert (tier.failures, tier.failures_count, tier.why) == (4, 4, "full")
    commit(world, 10)
    assert (tier.failures, tier.failures_count, tier.why) == (0, 4, "")


def test_the_same_failure_after_the_same_checkpoint_leads_to_an_older_one() -> None:
    world = doomed(**CRASH)
    assert world.state.restore_below is None
    failing(world, 505, **CRASH)
    world.train(step=505, restored=500)
    start = only(failing(world, 505, **CRASH), StartAttempt)
    assert start.restore_below == 401
    incident = world.state.incidents[-1]
    assert "RollBack" in [action.action for action in incident.actions]


def test_what_fails_elsewhere_or_otherwise_or_after_another_restore_is_no_poison() -> None:
    trial = Trial(500, "x", 505)
    assert suspected(trial, trial)
    for changes in ({"step": 506}, {"failure": "y"}, {"restored": 400}):
        assert not suspected(trial, msgspec.structs.replace(trial, **changes))
    assert not suspected(Trial(0, "x", 5), Trial(0, "x", 5)), "began from nothing"
    assert not suspected(None, trial)
    assert way_back([100, 400, 500], 500) == 400
    assert way_back([500], 500) is None


def test_a_user_error_gets_one_older_checkpoint_before_the_job_ends() -> None:
    world = doomed(**BUG)
    start = only(failing(world, 505, **BUG), StartAttempt)
    assert start.restore_below == 401
    world.train(step=505, restored=400)
    end = only(failing(world, 505, **BUG), EndJob)
    assert "same error" in end.reason


def test_without_an_older_checkpoint_a_user_error_ends_the_job_as_ever() -> None:
    world = running()
    commit(world, 500)
    failing(world, 505, **BUG)
    world.train(step=505, restored=500)
    assert only(failing(world, 505, **BUG), EndJob)


def test_the_way_back_stays_closed_until_training_is_past_the_place() -> None:
    world = doomed(**BUG)
    failing(world, 505, **BUG)
    world.train(step=480, restored=400)
    start = only(failing(world, 480, **CRASH), StartAttempt)
    assert start.restore_below == 401, "another fault on the way"
    world.train(step=520, restored=400)
    world.tell(Progressed(attempt=world.state.attempt, progress=Progress(step=520)))
    start = only(failing(world, 521, **CRASH), StartAttempt)
    assert start.restore_below is None


def rolled_back() -> World:
    """Training went on from step 400 and has passed the place."""
    world = doomed(**CRASH)
    failing(world, 505, **CRASH)
    world.train(step=505, restored=500)
    failing(world, 505, **CRASH)
    world.train(step=520, restored=400)
    return world


def test_what_led_to_the_same_failure_is_never_restored_however_far_training_has_come() -> None:
    """It was, by whoever lost all that was saved since: nothing durable, say."""
    world = rolled_back()
    start = only(failing(world, 521, **CRASH), StartAttempt)
    assert start.restore_below is None
    assert start.bad_steps == ((1, 401), (2, 401), (3, 401)), "what attempt 4 saves counts"


def test_another_poison_later_has_an_older_checkpoint_of_its_own() -> None:
    """The same exception ended the job then, months after the first."""
    world = doomed(**BUG)
    failing(world, 505, **BUG)
    world.train(step=520, restored=400)
    for step in (900, 1000):
        commit(world, step)
    failing(world, 1005, **BUG)
    world.train(step=1005, restored=1000)
    start = only(failing(world, 1005, **BUG), StartAttempt)
    assert start.restore_below == 901


def test_attempts_of_which_that_is_remembered_are_few() -> None:
    world = running()
    checkpoints.never_restore(world.state, range(1, 200), 7)
    checkpoints.never_restore(world.state, (199,), 9)
    assert len(world.state.bad_steps) == checkpoints.BAD_KEPT
    assert world.state.bad_steps[-1] == (199, 7)


def test_a_lost_node_is_never_taken_for_poison() -> None:
    world = doomed(**CRASH)
    world.kill("b", 1, step=505)
    world.all_stopped()
    world.verdict(cause="node-lost", summary="lost")
    assert world.state.restore_below is None


def test_a_new_journal_goes_on_counting_where_durable_tiers_stand() -> None:
    world = World(node_count=1, spare_count=0)
    world.tell(NodeJoined(node="a", name="a", address="h", workers=1))
    (start,) = [
        action
        for action in world.tell(NodeReady(node="a", store=Store("h", 1, True), attempt=7))
        if isinstance(action, StartAttempt)
    ]
    assert (start.attempt, start.restarts, start.reason) == (8, 0, "first attempt")
    world.tell(NodeReady(node="a", store=Store("h", 2, True), attempt=8))
    assert world.state.attempt == 8


def test_attempts_that_tiers_tell_of_late_are_counted_from_the_next_start_on() -> None:
    """Storage that was away when the job began knows attempts up to 7."""
    world = running()
    store = world.store()
    world.tell(NodeReady(node="a", store=store, attempt=7))
    assert world.state.attempt == 1
    world.kill("b", 1)
    world.all_stopped()
    start = only(world.verdict(), StartAttempt)
    assert (start.attempt, start.restarts) == (8, 1)


def test_a_stop_saves_first_unless_it_is_to_be_at_once() -> None:
    for now in (False, True):
        stop = only(running().tell(StopRequested(by="x", now=now)), StopAttempt)
        assert stop.save is not now


def test_a_stop_saves_also_while_an_attempt_begins_again_or_is_stopped_for_another_reason() -> None:
    """What was done since the newest checkpoint is only in memory then."""
    switching = running()
    switching.tell(UpdateRequested(by="me", id="x", sets={"lr": "1"}))
    kept = only(switching.tell(UpdatePrepared(version=2, ready_count=3)), StopAttempt)
    assert kept.keeps
    assert only(switching.tell(StopRequested(by="x")), StopAttempt).save
    beginning = running()
    failing(beginning, 31, **CRASH)
    assert beginning.state.phase is Phase.STARTING
    assert only(beginning.tell(StopRequested(by="x")), StopAttempt).save
    first = World()
    first.submit()
    assert not only(first.tell(StopRequested(by="x")), StopAttempt).save, "nothing was done"
    broken = running()
    broken.kill("b", 1)
    assert not only(broken.tell(StopRequested(by="x")), StopAttempt).save, "nobody could"


def test_an_attempt_is_told_what_tiers_have_that_no_node_takes_along() -> None:
    world = running()
    told = []
    for tier, step in (("local", 30), ("archive", 10), ("shared", 20)):
        commit(world, step, tier)
        told.append(only(failing(world, 31, **CRASH), StartAttempt).committed)
    assert told == [None, 10, 20]


def refuse(world: World, failures: int) -> None:
    why = "/shared: access to attempts is denied: Permission denied for user 1000, group 1000"
    attempt = world.state.attempt
    world.tell(
        CheckpointFailed(
            node="a", tier="shared", attempt=attempt, step=39, why=why, failures=failures
        )
    )


def test_a_tier_that_has_never_been_saved_to_is_told_of_once_and_when_it_is_again() -> None:
    world = running()
    for failures in (1, 2, 4):
        refuse(world, failures)
    [note] = world.state.notes
    assert note.text.startswith("checkpoints.shared: saving fails, nothing has ever been saved: ")
    assert "Permission denied for user 1000" in note.text
    commit(world, 40)
    assert (
        world.state.notes[-1].text == "checkpoints.shared: step 40 is saved, after 4 failed saves"
    )
    refuse(world, 1)
    refuse(world, 2)
    assert len(world.state.notes) == 2, "they are tried again"
    refuse(world, 4)
    assert "saving fails, step 40 is the last: " in world.state.notes[-1].text


def test_what_is_committed_was_done_though_progress_was_not_told_since() -> None:
    """The controller and all nodes die 2 s after the first step, long before progress is told."""
    world = running()
    world.tell(Progressed(attempt=1, progress=Progress(step=1)))
    commit(world, 49)
    world.tell(ControllerResumed(existing=()))
    incident = world.state.incidents[-1]
    assert (incident.cause, incident.step) == ("node-lost", 49)


def test_what_an_earlier_attempt_committed_does_not_say_where_this_one_is() -> None:
    world = running()
    world.tell(world.exited("b", 1, progress=Progress(step=12)))
    world.recover()
    event = CheckpointCommitted(
        node="a", tier="shared", attempt=1, step=11, seconds=2.0, bytes=1 << 20
    )
    world.train(step=5, restored=4)
    world.tell(event)
    assert world.state.reached == 5
