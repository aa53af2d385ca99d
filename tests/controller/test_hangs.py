"""A suspicion has the workers looked at; only what the look shows stops an attempt."""

import msgspec
import pytest

from holdfast.actions import (
    CollectEvidence,
    Diagnose,
    EndJob,
    Fence,
    Outcome,
    StartAttempt,
    StopAttempt,
)
from holdfast.controller import Phase, State
from holdfast.events import (
    AttemptStopped,
    DeadlinePassed,
    HangJudged,
    HangSuspected,
    Judgement,
    Milestone,
    MilestoneReached,
    NodeLost,
    NodeLostReason,
    Progress,
    Progressed,
    Ranks,
    StopRequested,
)
from tests.controller.test_controller import World, kinds, only, running

STORY = "Rank 1 hung after step 10: in read_batch (train.py:9), while rank 0 was in all_reduce"


def suspected(world: World, attempt: int | None = None) -> HangSuspected:
    return HangSuspected(
        attempt=attempt or world.state.attempt, ago_s=2.0, budget_s=2.0, step=10, step_s=0.05,
        trained=True, ranks=((1, 1),),
    )  # fmt: skip


def judged(world: World, judgement: Judgement = Judgement.HANG, **what: object) -> HangJudged:
    known = {"ranks": ((1, 1),), "summary": STORY, "attempt": world.state.attempt, "ago_s": 3.0}
    what = known | what
    return HangJudged(judgement=judgement, confidence=0.9, evidence=("a", "b"), **what)  # type: ignore[arg-type]


def test_a_suspicion_is_answered_by_a_look_and_changes_nothing() -> None:
    world = running()
    look = only(world.tell(suspected(world)), CollectEvidence)
    assert look.suspicion == suspected(world)
    assert world.state.phase is Phase.RUNNING and not world.state.incidents


def test_a_hang_stops_the_attempt_blames_the_rank_and_restarts_in_place() -> None:
    world = running()
    world.tell(suspected(world))
    assert kinds(world.tell(judged(world))) == ["StopAttempt"]
    (incident,) = world.state.incidents
    assert (incident.cause, incident.rank, incident.node, incident.summary) == (
        "hang",
        1,
        "b",
        STORY,
    )
    assert incident.detected_at - incident.started_at == pytest.approx(3.0)
    assert incident.evidence == ["a", "b"]
    start = only(world.all_stopped(), StartAttempt)
    assert start.attempt == 2 and world.state.stopped_for is None
    assert incident.cause == "hang" and incident.log == "logs/attempt-1/rank-1.log"
    world.train(step=11, restored=10)
    assert incident.ended_at is not None


def test_a_hang_of_nobody_in_particular_blames_no_rank() -> None:
    world = running()
    world.tell(judged(world, ranks=(), summary="All ranks hung after step 10"))
    (incident,) = world.state.incidents
    assert (incident.rank, incident.log, incident.node) == (None, None, "all nodes")
    assert kinds(world.all_stopped()) == ["StartAttempt"]


@pytest.mark.parametrize("judgement", [Judgement.SLOW, Judgement.PAUSED, Judgement.UNKNOWN])
def test_whatever_else_a_look_shows_is_only_told_until_training_moves(judgement: Judgement) -> None:
    world = running()
    assert world.tell(judged(world, judgement, summary="No step for 3 s", ranks=())) == []
    assert world.state.phase is Phase.RUNNING and not world.state.incidents
    assert world.state.standstill == "No step for 3 s"
    world.tell(Progressed(attempt=1, progress=Progress(step=12)))
    assert world.state.standstill == ""


def test_ranks_that_hang_after_others_have_ended_well_are_told_and_not_stopped() -> None:
    """They may wait for ever, and nobody would know; or write the last checkpoint."""
    world = running()
    world.tell(world.exited("a", 0, exit_code=0))
    assert only(world.tell(suspected(world)), CollectEvidence)
    assert world.tell(judged(world)) == []
    assert world.state.phase is Phase.RUNNING and not world.state.incidents
    why = "; not stopped, because 1 of 2 ranks has exited with status 0"
    assert world.state.standstill == STORY + why
    world.tell(judged(world, Judgement.SLOW, summary="After the training loop", ranks=()))
    assert world.state.standstill == "After the training loop", "nobody would be stopped"


def test_why_no_step_was_made_is_forgotten_when_the_attempt_is_stopped_or_the_job_has_ended() -> (
    None
):
    ended, stopped = running(), running()
    for world in (ended, stopped):
        world.tell(judged(world, Judgement.SLOW, summary="No step for 3 s", ranks=()))
    for node, rank in (("a", 0), ("b", 1)):
        ended.tell(ended.exited(node, rank, exit_code=0))
    assert (ended.state.phase, ended.state.standstill) == (Phase.SUCCEEDED, "")
    stopped.tell(StopRequested(by="somebody"))
    assert (stopped.state.phase, stopped.state.standstill) == (Phase.CLOSING, "")


def test_what_is_said_of_an_earlier_attempt_or_one_that_is_being_stopped_counts_no_more() -> None:
    world = running()
    assert world.tell(suspected(world, attempt=7)) == []
    assert world.tell(judged(world, attempt=7)) == []
    world.kill("b", 1)
    assert world.tell(suspected(world)) == []
    assert world.tell(judged(world)) == []
    assert [incident.cause for incident in world.state.incidents] == ["worker-failed"]
    assert kinds(world.all_stopped()) == ["Diagnose"]


def test_a_node_that_is_lost_while_a_hang_is_stopped_explains_it() -> None:
    world = running()
    world.tell(judged(world))
    lost = world.tell(NodeLost(node="b", reason=NodeLostReason.SILENT, detail="no heartbeat"))
    assert only(lost, Fence).node == "b"
    assert kinds(world.all_stopped()) == ["AssignRank", "StartAttempt"]
    (incident,) = world.state.incidents
    assert incident.cause == "node-lost" and incident.rank is None


def test_a_job_that_hangs_again_and_again_without_progress_ends() -> None:
    world = running(max_restarts=3)
    for _ in range(10):
        if world.state.ended:
            break
        world.now = max([world.now, *world.state.deadlines])
        if world.state.phase is Phase.WAITING:
            from holdfast.events import DeadlinePassed

            world.tell(DeadlinePassed())
        world.tell(judged(world, summary=STORY))
        world.all_stopped()
    assert world.state.ended and "restarts" in world.state.why
    assert {incident.cause for incident in world.state.incidents} == {"hang"}


def test_a_stop_that_is_known_only_after_the_verdict_is_not_diagnosed_twice() -> None:
    world = running()
    stop = only(world.tell(judged(world)), StopAttempt)
    again = AttemptStopped(attempt=stop.attempt, store=world.store())
    first = world.tell(again)
    assert not any(isinstance(action, Diagnose) for action in [*first, *world.tell(again)])
    assert world.state.attempt == 2


def test_what_an_older_version_has_saved_says_why_an_attempt_is_being_stopped() -> None:
    """It called that `hang`."""
    world = running()
    world.tell(judged(world, summary=STORY))
    saved = msgspec.json.decode(msgspec.json.encode(world.state))
    assert saved["hang"]["summary"] == STORY and "stopped_for" not in saved
    state = msgspec.json.decode(msgspec.json.encode(saved), type=State)
    assert state.stopped_for == world.state.stopped_for is not None


@pytest.mark.parametrize(("lived_s", "fruitless"), [(2.0, [1, 2, 3]), (20.0, [0, 0, 0])])
def test_a_script_without_steps_that_hangs_as_it_ends_has_lived_until_it_hung(
    lived_s: float, fruitless: list[int]
) -> None:
    """A hang of 15 s is no progress: without any it is not repeated for ever."""
    world = World()
    world.submit(instrumented=False)
    counted = []
    for _ in fruitless:
        started = MilestoneReached(attempt=world.state.attempt, milestone=Milestone.STARTED)
        world.tell(started)
        world.now += lived_s + 15.0
        told = "Rank 1 hung: in main (train.py:9)"
        hang = msgspec.structs.replace(judged(world, summary=told), ago_s=15.0)
        assert "StopAttempt" in kinds(world.tell(hang))
        world.all_stopped()
        counted.append(world.state.fruitless)
        while world.state.phase is not Phase.STARTING:
            deadline = world.controller.next_deadline()
            assert deadline is not None
            world.now = max(world.now, deadline)
            world.tell(DeadlinePassed())
    assert counted == fruitless


def hang_after(world: World, step: int | None, lived_s: float, ranks: Ranks = ()) -> None:
    """A script that reports no steps has lived so long and hangs; what follows is waited for."""
    attempt = world.state.attempt
    for milestone in (Milestone.STARTED, Milestone.STEPPED):
        world.tell(MilestoneReached(attempt=attempt, milestone=milestone))
    world.now += lived_s + 15.0
    looked = {"step": None, "counted": step, "reported": False}
    world.tell(msgspec.structs.replace(suspected(world), **looked))
    told = f"All ranks hung: rank {attempt % 2} in read_batch (train.py:9)"  # looks differ
    world.tell(judged(world, summary=told, ranks=ranks, ago_s=15.0))
    world.all_stopped()
    while not world.state.ended and world.state.phase is not Phase.STARTING:
        deadline = world.controller.next_deadline()
        assert deadline is not None
        world.now = max(world.now, deadline)
        world.tell(DeadlinePassed())


def test_a_script_that_hangs_at_the_same_step_again_and_again_is_not_restarted_for_ever() -> None:
    """However long each attempt takes to come there; the window never has as many restarts."""
    world = World(max_restarts=4, window_s=3600.0)
    world.submit(instrumented=False)
    for attempt in range(1, 6):
        assert (world.state.attempt, world.state.ended) == (attempt, False)
        hang_after(world, 400, lived_s=3000.0)
    assert world.state.outcome is Outcome.GAVE_UP
    assert "4 restarts in a row without progress; last: All ranks hung" in world.state.why


def test_hangs_at_other_steps_are_other_hangs() -> None:
    world = World(max_restarts=4, window_s=3600.0)
    world.submit(instrumented=False)
    for attempt in range(1, 12):
        hang_after(world, 400 + attempt, lived_s=3000.0)
        assert not world.state.ended and world.state.fruitless == 0


def test_nor_are_those_of_other_ranks_or_after_nobody_knows_how_many_steps() -> None:
    for steps, of in ((400, (((0, 0),), ((1, 1),))), (None, ((),))):
        world = World(max_restarts=4, window_s=3600.0)
        world.submit(instrumented=False)
        for attempt in range(8):
            hang_after(world, steps, lived_s=3000.0, ranks=of[attempt % len(of)])
            assert not world.state.ended and world.state.fruitless == 0


@pytest.mark.parametrize("lived_s", [8.0, 7200.0])
def test_scripts_that_have_ended_and_hang_are_run_once_more_and_not_for_ever(
    lived_s: float,
) -> None:
    """The next attempt begins at the beginning: however long it trains, that is no progress."""
    world = World()
    world.submit(instrumented=False)
    told = "All ranks hung: scripts have ended but their processes have not exited"
    for attempt in (1, 2):
        assert world.state.attempt == attempt
        for milestone in (Milestone.STARTED, Milestone.STEPPED):
            world.tell(MilestoneReached(attempt=attempt, milestone=milestone))
        world.now += lived_s + 15.0
        hang = msgspec.structs.replace(
            judged(world, summary=told, ranks=()), ago_s=15.0, ended=True
        )
        assert "StopAttempt" in kinds(world.tell(hang))
        actions = world.all_stopped()
    assert only(actions, EndJob).outcome is Outcome.FAILED
    assert "the same error repeated at the same place" in world.state.why
    assert told in world.state.why


def test_so_are_those_that_have_done_all_their_steps() -> None:
    """Each attempt goes on behind the last step: there is nothing left to come further with."""
    world = World()
    world.submit()
    for attempt in (1, 2):
        assert world.state.attempt == attempt
        world.train(step=100, restored=0 if attempt == 1 else 100)
        hang = msgspec.structs.replace(judged(world, ranks=()), ago_s=15.0, ended=True)
        assert "StopAttempt" in kinds(world.tell(hang))
        actions = world.all_stopped()
    assert only(actions, EndJob).outcome is Outcome.FAILED
