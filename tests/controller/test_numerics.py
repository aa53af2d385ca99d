"""A loss that is not finite: back below its step, once further back, then the end."""

import msgspec

from holdfast.actions import AnyAction, EndJob, Outcome, StartAttempt, StopAttempt
from holdfast.controller import Limits, Phase
from holdfast.controller.checkpoints import BAD_KEPT
from holdfast.controller.numerics import NEAR_STEPS
from holdfast.controller.state import NOTES_MAX, State
from holdfast.events import (
    AttemptStopped,
    Broken,
    CheckpointCommitted,
    LossPlateaued,
    NodeLost,
    NodeLostReason,
    NumbersBroke,
    NumbersSpiked,
    Progress,
    Progressed,
    Quantity,
    Spike,
)
from holdfast.spec import Job
from tests.controller.test_controller import World, only, running

SAID = "The loss of rank 1 was nan."


def broke(world: World, step: int, ago_s: float = 0.2, rank: int = 1) -> list[AnyAction]:
    found = Broken(step=step, what=Quantity.LOSS, value="nan", ago_s=ago_s)
    return world.tell(NumbersBroke(attempt=world.state.attempt, rank=rank, broke=found))


def stopped(world: World, step: int) -> list[AnyAction]:
    """Everything has stopped after this step, and the verdict is that of the first report."""
    progress = Progress(step=step)
    world.tell(AttemptStopped(attempt=world.state.attempt, store=world.store(), progress=progress))
    return world.verdict(cause="nan", summary=SAID, step=world.state.bad_step)


def again(world: World, step: int, restored: int) -> list[AnyAction]:
    """The newest attempt trains up to this step, which breaks it."""
    world.train(step=step - 1, restored=restored)
    broke(world, step)
    return stopped(world, step + 2)


def commit(world: World, *steps: int) -> None:
    for step in steps:
        attempt = world.state.attempt
        event = CheckpointCommitted(
            node="a", tier="shared", attempt=attempt, step=step, seconds=1.0, bytes=1
        )
        world.tell(event)


def test_the_attempt_stops_at_once_and_the_next_one_goes_on_below_the_bad_step() -> None:
    world = running()
    stop = only(broke(world, 12), StopAttempt)
    assert world.state.phase is Phase.RECOVERING and stop.grace_s == 2.0
    assert "the loss was nan at step 12 on rank 1" in stop.reason
    start = only(stopped(world, 15), StartAttempt)
    assert start.restore_below == 12
    incident = world.state.incidents[-1]
    assert (incident.cause, incident.rank, incident.step) == ("nan", 1, 12)
    assert incident.summary == SAID and incident.node == "b"
    assert round(incident.detected_at - incident.started_at, 6) == 0.2


def test_steps_from_the_bad_one_on_were_not_done() -> None:
    world = running()
    attempt = world.state.attempt
    world.tell(Progressed(attempt=attempt, progress=Progress(step=14)))
    broke(world, 12)
    start = only(stopped(world, 19), StartAttempt)
    assert world.state.max_step == 11 and start.redo_until == 11


def test_steps_that_an_earlier_attempt_did_with_finite_numbers_stay_done() -> None:
    world = running()
    world.kill("b", 1, step=100)
    world.recover()
    world.train(step=90, restored=80)
    broke(world, 95)
    start = only(stopped(world, 97), StartAttempt)
    assert (start.redo_until, start.restore_below) == (100, 95)


def test_the_verdict_may_know_an_earlier_step_of_another_rank() -> None:
    world = running()
    broke(world, 12)
    world.all_stopped()
    start = only(world.verdict(cause="nan", summary=SAID, rank=0, step=11), StartAttempt)
    assert start.restore_below == 11
    assert world.state.incidents[-1].rank == 0 and world.state.incidents[-1].step == 11


def test_again_at_the_same_place_goes_back_to_an_older_checkpoint_and_then_the_job_ends() -> None:
    world = running()
    commit(world, 100, 200, 300)
    broke(world, 305)
    assert only(stopped(world, 306), StartAttempt).restore_below == 305
    assert only(again(world, 305, restored=300), StartAttempt).restore_below == 201
    end = only(again(world, 305, restored=200), EndJob)
    assert end.outcome is Outcome.FAILED
    assert "at step 305 again" in end.reason and SAID in end.reason


def test_again_without_an_older_checkpoint_ends_the_job() -> None:
    world = running()
    broke(world, 12)
    stopped(world, 13)
    end = only(again(world, 12, restored=11), EndJob)
    assert end.outcome is Outcome.FAILED and "after step 11 was restored" in end.reason


def test_a_few_steps_further_is_still_the_same_place_and_far_beyond_is_not() -> None:
    world = running()
    broke(world, 12)
    stopped(world, 13)
    start = only(again(world, 13 + NEAR_STEPS, restored=11), StartAttempt)
    assert start.restore_below == 13 + NEAR_STEPS, "a new fault"
    assert only(again(world, 20 + NEAR_STEPS, restored=12 + NEAR_STEPS), EndJob)


def test_once_training_is_past_the_place_everything_may_be_restored_again() -> None:
    world = running()
    broke(world, 12)
    stopped(world, 13)
    world.train(step=13, restored=11)
    world.kill("b", 1, step=20)
    assert only(world.recover(), StartAttempt).restore_below is None


def test_what_was_saved_from_a_bad_step_on_stays_out_however_far_training_has_come() -> None:
    """A spare may still hold it when all that is newer is lost."""
    world = running()
    broke(world, 12)
    world.all_stopped()
    start = only(world.verdict(cause="nan", summary=SAID, step=11), StartAttempt)
    assert start.bad_steps == ((1, 11),), "the verdict knows an earlier one"
    world.train(step=13, restored=10)
    world.kill("b", 1, step=500)
    start = only(world.recover(), StartAttempt)
    assert (start.restore_below, start.bad_steps) == (None, ((1, 11),))
    resumed = msgspec.json.decode(msgspec.json.encode(world.state), type=State)
    assert resumed.bad_steps == start.bad_steps, "the next controller knows it, too"


def test_the_newest_bad_attempts_are_remembered() -> None:
    world = running(max_restarts=1000)
    for number in range(1, BAD_KEPT + 3):
        step = 100 * number
        world.train(step=step, restored=step - 1)
        broke(world, step + 5)
        start = only(stopped(world, step + 5), StartAttempt)
    assert len(start.bad_steps) == BAD_KEPT
    assert start.bad_steps[0] == (3, 305) and start.bad_steps[-1] == (BAD_KEPT + 2, step + 5)


def falls_back(world: World, reached: int, restored: int) -> list[AnyAction]:
    """Training comes so far and loses what it has saved; then numbers are bad at step 12."""
    world.train(step=reached, restored=11)
    world.kill("b", 1, step=reached)
    world.recover()
    return again(world, 12, restored=restored)


def test_where_training_has_passed_the_place_it_is_a_new_one_when_it_comes_there_again() -> None:
    """What was saved since is lost, with the nodes that held it."""
    world = running()
    broke(world, 12)
    stopped(world, 13)
    start = only(falls_back(world, 13 + NEAR_STEPS, restored=3), StartAttempt)
    assert start.restore_below == 12


def test_who_has_hardly_passed_the_place_has_not() -> None:
    world = running()
    broke(world, 12)
    stopped(world, 13)
    assert only(falls_back(world, 12 + NEAR_STEPS, restored=3), EndJob)


def test_a_job_that_stops_on_nan_ends_with_its_story() -> None:
    world = running(on_nan="stop")
    broke(world, 12)
    end = only(stopped(world, 12), EndJob)
    assert end.outcome is Outcome.FAILED and SAID in end.reason


def test_a_job_that_ignores_nan_trains_on_and_notes_it() -> None:
    world = running(on_nan="ignore")
    assert broke(world, 12) == []
    assert world.state.phase is Phase.RUNNING and not world.state.incidents
    assert [note.step for note in world.state.notes] == [12]
    world.kill("b", 1, step=20)
    start = only(world.recover(), StartAttempt)
    assert (start.restore_below, start.bad_steps) == (None, ()) and start.redo_until == 20


def test_nan_that_is_heard_of_while_another_fault_is_handled_is_gone_below_all_the_same() -> None:
    world = running()
    world.kill("b", 1, step=14)
    assert broke(world, 12) == []
    start = only(world.recover(), StartAttempt)
    assert start.restore_below == 12
    assert world.state.incidents[-1].cause == "worker-killed" and len(world.state.incidents) == 1


def test_a_node_that_is_lost_meanwhile_takes_the_blame_and_the_state_stays_suspect() -> None:
    world = running()
    broke(world, 12)
    world.tell(NodeLost(node="b", reason=NodeLostReason.PROCESS))
    start = only(stopped(world, 13), StartAttempt)
    assert start.restore_below == 12
    assert world.state.incidents[-1].cause == "node-lost"


def test_a_worker_that_fails_of_it_changes_neither_cause_nor_verdict() -> None:
    world = running()
    broke(world, 12)
    world.kill("a", 0, step=12)
    world.all_stopped()
    world.verdict(cause="worker-exception", summary="boom", user_error=True, signature="x")
    assert world.state.incidents[-1].cause == "nan"
    assert world.state.phase is Phase.STARTING and world.state.last_failure is None


def test_a_script_without_the_library_starts_again_once_and_is_told_what_that_means() -> None:
    world = World()
    world.submit(instrumented=False)
    only(broke(world, 12), StopAttempt)
    only(stopped(world, 0), StartAttempt)
    reasons = [action.reason for action in world.state.incidents[-1].actions]
    assert "the script resumes from what it has saved itself, if anything" in reasons
    only(broke(world, 12), StopAttempt)
    end = only(stopped(world, 0), EndJob)
    assert end.outcome is Outcome.FAILED
    assert end.reason == f"numbers were not finite at step 12 again: {SAID}"


def test_news_of_a_past_attempt_is_ignored() -> None:
    world = running()
    found = Broken(step=3, what=Quantity.LOSS, value="nan")
    assert world.tell(NumbersBroke(attempt=0, rank=0, broke=found)) == []
    assert world.state.phase is Phase.RUNNING and world.state.bad_step is None


def test_a_spike_is_noted_and_stops_nothing() -> None:
    world = running()
    for step in range(NOTES_MAX + 5):
        spike = Spike(step=step, what=Quantity.GRAD_NORM, value=55.5, usual=1.25)
        attempt = world.state.attempt
        assert world.tell(NumbersSpiked(attempt=attempt, rank=1, spike=spike)) == []
    assert world.state.phase is Phase.RUNNING and not world.state.incidents
    assert len(world.state.notes) == NOTES_MAX
    text = "the gradient norm rose to 55.5 at step 24 on rank 1, from a median of 1.25"
    assert world.state.notes[-1].text == text


def test_a_plateau_is_noted_and_stops_nothing() -> None:
    world = running()
    flat = LossPlateaued(
        attempt=world.state.attempt, rank=3, step=900, steps=500, share=0.01, loss=2.31, before=2.32
    )
    assert world.tell(msgspec.structs.replace(flat, attempt=0)) == []
    assert not world.state.notes
    assert world.tell(flat) == []
    assert world.state.phase is Phase.RUNNING and not world.state.incidents
    [note] = world.state.notes
    told = "the loss has not fallen by 1 % in 500 steps (median 2.31 at step 900, 2.32 before; "
    assert note.text == told + "rank 3)"


def test_the_job_file_says_what_follows() -> None:
    job = Job(name="j", script="t.py")
    assert Limits.of(job).on_nan == "restart"
    stops = job.model_copy(update={"recovery": job.recovery.model_copy(update={"on_nan": "stop"})})
    assert Limits.of(stops).on_nan == "stop"
