"""What is no fault of the script, or not at once: the environment, ending early, standing still."""

import pytest

from holdfast.actions import AnyAction, Diagnose, EndJob, Outcome, StartAttempt, StopAttempt
from holdfast.controller import Phase
from holdfast.events import (
    ControllerResumed,
    DeadlinePassed,
    Milestone,
    MilestoneReached,
    NodeLost,
    NodeLostReason,
    Progress,
    Surveyed,
    WorkerError,
)
from tests.controller.test_controller import World, kinds, only, running


def early(world: World, node: str, rank: int, step: int = 12) -> list[AnyAction]:
    return world.tell(world.exited(node, rank, exit_code=0, progress=Progress(step=step)))


def test_a_job_that_every_rank_leaves_early_with_status_0_has_succeeded() -> None:
    world = running()
    assert early(world, "b", 1) == []
    end = only(early(world, "a", 0), EndJob)
    assert (end.outcome, world.state.incidents) == (Outcome.SUCCEEDED, [])
    assert end.reason == ("every worker exited with status 0; the job ended early, after step 12")


def test_a_job_that_one_rank_leaves_before_the_others_says_which_and_when() -> None:
    world = running()
    early(world, "b", 1, step=20)
    done = Progress(step=1000, finished=True)
    end = only(world.tell(world.exited("a", 0, exit_code=0, progress=done)), EndJob)
    assert (end.outcome, world.state.why) == (Outcome.SUCCEEDED, end.reason)
    assert end.reason == (
        "rank 1 exited with status 0 after step 20, and others with status 0 up to step 1000"
    )


def test_a_rank_that_leaves_early_is_told_apart_by_what_the_others_do() -> None:
    """They may have left their loop too and save for long; who trains on has lost it."""
    world = running()
    early(world, "b", 1)
    for after_s in (29.0, 2.0, 30.0):
        asked = world.tell(DeadlinePassed(), after_s=after_s)
        assert kinds(asked) == ([] if after_s == 29.0 else ["Survey"])
        if asked:
            assert world.tell(Surveyed(attempt=1, training_count=0)) == []
    assert world.state.incidents == []
    world.tell(DeadlinePassed(), after_s=31.0)
    stop = only(world.tell(Surveyed(attempt=1, training_count=1)), StopAttempt)
    assert stop.reason == "rank 1 exited with status 0 after step 12; 1 other rank still trains"
    exits = only(world.all_stopped(), Diagnose).exits
    assert [e.rank for e in exits] == [1]


def test_the_others_are_looked_at_again_where_the_answer_was_lost_with_a_controller() -> None:
    world = running()
    early(world, "b", 1)
    assert kinds(world.tell(DeadlinePassed(), after_s=31.0)) == ["Survey"]
    world.tell(ControllerResumed(existing=("a", "b", "c")))
    assert kinds(world.tell(DeadlinePassed(), after_s=31.0)) == ["Survey"]


def test_who_fails_because_a_rank_left_early_is_not_blamed_and_the_second_time_ends_the_job() -> (
    None
):
    world = running()
    left = {
        "cause": "exited-early", "user_error": True, "signature": "exit status 0 of rank 1",
        "summary": "Rank 1 exited with status 0 after step 12 while the others trained on.",
    }  # fmt: skip
    early(world, "b", 1)
    left_at = world.now
    world.tell(world.exited("a", 0, progress=Progress(step=12)), after_s=5.0)
    assert only(world.recover(**left), StartAttempt)
    incident = world.state.incidents[0]
    assert (incident.cause, incident.rank, incident.node) == ("exited-early", 1, "b")
    assert incident.started_at == pytest.approx(left_at)
    early(world, "b", 1)
    world.tell(world.exited("a", 0, progress=Progress(step=12)))
    end = only(world.recover(**left), EndJob)
    assert end.outcome is Outcome.FAILED
    assert "the same error repeated" in end.reason
    assert "exited with status 0 after step 12" in end.reason


STORAGE = {"cause": "environment", "environment": True, "summary": "storage is away"}


def storage_fails(world: World, step: int = 12) -> list[AnyAction]:
    """On every rank, as it does; the next attempt, whenever it may start."""
    for rank, node in ((0, "a"), (1, "b")):
        world.tell(world.exited(node, rank, progress=Progress(step=step)))
    actions = world.recover(**STORAGE)
    deadline = world.controller.next_deadline()
    if world.state.phase is Phase.WAITING and deadline is not None:
        actions += world.tell(DeadlinePassed(), after_s=deadline - world.now + 0.001)
    return actions


@pytest.mark.parametrize("max_restarts", [2, 20, 1000])
def test_storage_that_is_away_is_waited_for_within_the_window(max_restarts: int) -> None:
    """Two errors at the same step end nothing, nor does the cap; a window without progress does."""
    world = running(max_restarts=max_restarts, window_s=3600.0)
    began = world.now
    while EndJob not in map(type, actions := storage_fails(world)):
        only(actions, StartAttempt)
    assert 3600.0 < world.now - began < 3 * 3600.0
    assert only(actions, EndJob).outcome is Outcome.GAVE_UP
    assert "errors of the environment prevented any progress" in world.state.why
    assert "storage is away" in world.state.why


def test_storage_that_comes_back_costs_nothing_but_the_wait() -> None:
    world = running()
    for _ in range(5):
        only(storage_fails(world), StartAttempt)
    world.train(step=13, restored=12)
    began = world.now
    only(storage_fails(world, step=14), StartAttempt)
    assert world.now - began < 1.0  # progress was made, so it is tried again at once
    assert world.state.trouble_since is not None and world.state.trouble_since >= began


def test_trouble_with_storage_does_not_make_a_checkpoint_suspect() -> None:
    world = running()
    world.state.committed.extend([4, 8])
    for _ in range(3):
        assert only(storage_fails(world), StartAttempt).restore_below is None
        for milestone in (Milestone.STARTED, Milestone.ARRIVED, Milestone.JOINED):
            world.tell(MilestoneReached(attempt=world.state.attempt, milestone=milestone))
        restored = Milestone.RESTORED
        world.tell(MilestoneReached(attempt=world.state.attempt, milestone=restored, step=8))


def test_the_cap_holds_for_trouble_that_comes_again_and_again_with_progress_between() -> None:
    world = running(max_restarts=3, window_s=600.0)
    starts = []
    for step in range(12, 30):
        only(storage_fails(world, step=step), StartAttempt)
        starts.append(world.now)
    assert all(later - first >= 600.0 for first, later in zip(starts, starts[3:], strict=False))


def test_a_number_of_restarts_that_was_asked_for_is_kept_to_the_letter() -> None:
    bug = {"cause": "worker-exception", "user_error": True, "signature": "ValueError train.py:3"}
    for what, outcome in ((bug, Outcome.FAILED), (STORAGE, Outcome.GAVE_UP)):
        world = running(max_restarts=3, exact=True)
        actions: list[AnyAction] = []
        for _ in range(4):
            assert EndJob not in map(type, actions)
            world.tell(world.exited("b", 1, progress=Progress(step=12)))
            actions = world.recover(**what)
            world.now += 4000.0  # the window alone would never end it
            if world.state.phase is Phase.WAITING:
                world.tell(DeadlinePassed())
        assert only(actions, EndJob).outcome is outcome
        assert world.state.restarts_count == 3
    notes = [a.reason for i in world.state.incidents for a in i.actions if a.action == "Repeat"]
    assert notes == []  # of storage


def test_a_repeated_error_of_the_script_is_said_to_be_one() -> None:
    bug = {"cause": "worker-exception", "user_error": True, "signature": "ValueError train.py:3"}
    world = running(max_restarts=3, exact=True)
    for _ in range(2):
        world.tell(world.exited("b", 1, progress=Progress(step=12)))
        world.recover(**bug)
    first, second = ([a.action for a in i.actions] for i in world.state.incidents)
    assert ("Repeat" in first, "Repeat" in second) == (False, True)
    assert world.state.incidents[1].actions[1].reason == (
        "the same error again, without progress: restart 2 of 3 for it"
    )


def test_what_not_even_a_second_attempt_could_change_ends_the_job_the_first_time() -> None:
    world = running(max_restarts=10, exact=True)
    world.tell(world.exited("b", 1))
    unusable = {"cause": "checkpoint-unusable", "user_error": True, "final": True}
    end = only(world.recover(**unusable, summary="none of 3 checkpoints fits"), EndJob)
    assert (end.outcome, end.reason) == (Outcome.FAILED, "none of 3 checkpoints fits")


def test_who_stood_still_is_named_although_it_never_exited() -> None:
    world = running()
    world.tell(world.exited("a", 0, progress=Progress(step=12)))
    world.recover(cause="hang", rank=1, summary="Rank 1 stood still")
    incident = world.state.incidents[0]
    assert (incident.node, incident.rank, incident.exit_code) == ("b", 1, None)
    assert incident.log == "logs/attempt-1/rank-1.log"


def test_every_node_that_is_lost_is_named_in_its_incident() -> None:
    """Two at once, and one that goes while the others are waited for."""
    world = running(node_count=3, spare_count=0)
    for node in ("b", "c"):
        world.tell(NodeLost(node=node, reason=NodeLostReason.SILENT, detail="no heartbeat"))
    world.recover(rank=None)
    assert world.state.phase is Phase.WAITING
    world.tell(NodeLost(node="a", reason=NodeLostReason.SILENT))
    (incident,) = world.state.incidents
    assert (incident.node, incident.nodes) == ("b", ["b", "c", "a"])
    assert incident.summary == "3 nodes were lost: b, c, a"


def test_a_script_without_steps_trains_again_when_it_says_something_or_after_a_while() -> None:
    world = World()
    world.submit(instrumented=False)
    for attempt, spoken in ((1, True), (2, False), (3, True)):
        world.tell(MilestoneReached(attempt=attempt, milestone=Milestone.STARTED))
        if attempt > 1:
            assert world.state.open_incident is not None
        if spoken:
            world.tell(MilestoneReached(attempt=attempt, milestone=Milestone.OUTPUT, ago_s=0.5))
            world.tell(DeadlinePassed(), after_s=2.1)
        else:
            assert world.controller.next_deadline() == pytest.approx(world.now + 60.0)
            world.tell(DeadlinePassed(), after_s=60.1)
        assert world.state.open_incident is None
        world.kill("b", 1)
        world.recover()
    lasted = [(i.ended_at or 0.0) - i.detected_at for i in world.state.incidents[:2]]
    assert lasted[0] > 60.0 > lasted[1]
    assert not any(incident.overtaken for incident in world.state.incidents[:2])


def test_a_script_that_says_something_and_ends_has_not_trained_again() -> None:
    """A traceback is output, too: `holdfast run` said "training again" of an import error."""
    world = World()
    world.submit(instrumented=False)
    for attempt in (1, 2):
        world.tell(MilestoneReached(attempt=attempt, milestone=Milestone.STARTED))
        world.tell(MilestoneReached(attempt=attempt, milestone=Milestone.OUTPUT))
        world.kill("b", 1)
        world.recover()
    first, second = world.state.incidents
    assert first.overtaken and first.ended_at == second.detected_at
    world.tell(DeadlinePassed(), after_s=1.0)  # back-off
    world.tell(MilestoneReached(attempt=3, milestone=Milestone.OUTPUT, ago_s=0.25))
    spoke = world.now - 0.25
    world.tell(MilestoneReached(attempt=3, milestone=Milestone.STARTED))
    assert second.ended_at is None and world.state.phase == "running"
    world.tell(DeadlinePassed(), after_s=2.1)
    assert second.ended_at == pytest.approx(spoke) and not second.overtaken


def test_a_script_whose_steps_are_seen_trains_again_with_the_first_of_them() -> None:
    """Not with its first words; and after a long while if no step is seen any more."""
    world = World()
    world.submit(instrumented=False)
    for attempt, stepped in ((1, True), (2, True), (3, False)):
        world.tell(MilestoneReached(attempt=attempt, milestone=Milestone.STARTED))
        world.tell(MilestoneReached(attempt=attempt, milestone=Milestone.OUTPUT))
        assert (world.state.open_incident is None) == (attempt == 1)
        if stepped:
            told = MilestoneReached(attempt=attempt, milestone=Milestone.STEPPED, ago_s=0.5)
            world.tell(told, after_s=100.0)
        else:
            assert world.controller.next_deadline() == pytest.approx(world.now + 600.0, abs=1.0)
            world.tell(DeadlinePassed(), after_s=600.1)
        assert world.state.open_incident is None
        world.kill("b", 1)
        world.recover()
    lasted = [(i.ended_at or 0.0) - i.detected_at for i in world.state.incidents[:2]]
    assert 99.5 <= lasted[0] < 110.0 and lasted[1] > 600.0
    assert world.state.max_step is None and not world.state.instrumented


def test_a_step_seen_before_join_says_nothing_of_a_script_that_reports_its_own() -> None:
    world = running()
    world.kill("b", 1)
    world.recover()
    world.tell(MilestoneReached(attempt=2, milestone=Milestone.STARTED))
    world.tell(MilestoneReached(attempt=2, milestone=Milestone.STEPPED))
    assert world.state.open_incident is not None and not world.state.steps_seen


TYPO = {
    "cause": "import-error",
    "user_error": True,
    "signature": "ModuleNotFoundError@train.py:1",
}
MISSING = WorkerError(
    type="ModuleNotFoundError", message="No module named 'nmupy'", file="/job/train.py", line=1
)
LOST_PEER = WorkerError(type="torch.distributed.DistNetworkError", message="closed", line=9)
ALL, ONE = {"a": MISSING, "b": MISSING}, {"a": LOST_PEER, "b": MISSING}


def fails(world: World, what: dict[str, object], errors: dict[str, WorkerError]) -> None:
    """An attempt does, 3 s after its start; the next one begins, if there is one."""
    world.now += 3.0
    for rank, (node, error) in enumerate(errors.items()):
        world.tell(world.exited(node, rank, error=error))
    world.recover(**what)
    if world.state.phase is Phase.WAITING:
        begins = world.controller.next_deadline()
        assert begins is not None
        world.tell(DeadlinePassed(), after_s=begins - world.now)


def without_steps(max_restarts: int) -> World:
    world = World(max_restarts=max_restarts, exact=True)
    world.submit(instrumented=False)
    return world


def test_an_import_error_before_any_step_is_tried_for_a_minute_however_many_were_asked_for() -> (
    None
):
    """A recipe for spot machines asks for 500 restarts: hours of a cluster, for a typo."""
    world = without_steps(500)
    begun = world.now
    while not world.state.ended:
        fails(world, TYPO, ALL)
    assert 60.0 <= world.now - begun < 130.0
    assert world.state.outcome is Outcome.FAILED and world.state.restarts_count < 10
    assert "without progress, through" in world.state.why


def test_a_module_that_a_shared_file_system_shows_within_a_minute_is_waited_for() -> None:
    world = without_steps(500)
    begun = world.now
    while world.now - begun < 55.0:
        fails(world, TYPO, ALL)
        assert not world.state.ended
    world.train(1)
    assert world.state.open_incident is None


@pytest.mark.parametrize("case", ["one node alone", "another error", "after steps"])
def test_other_errors_get_the_restarts_that_were_asked_for(case: str) -> None:
    """As does a module that a single node lacks, or that is first needed after some steps."""
    world = without_steps(12)
    if case == "after steps":
        world.train(5)
    what = TYPO | ({"cause": "worker-exception"} if case == "another error" else {})
    while not world.state.ended:
        fails(world, what, ONE if case == "one node alone" else ALL)
    assert world.state.restarts_count == 12
