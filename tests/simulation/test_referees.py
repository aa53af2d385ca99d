"""Each referee objects to a made-up history in which its promise is broken, and to no other."""

from collections.abc import Callable, Sequence

import msgspec
import pytest

from holdfast.actions import (
    AnyAction,
    AskNodes,
    Dismiss,
    EndJob,
    Entry,
    Fence,
    Outcome,
    StartAttempt,
    StopAttempt,
)
from holdfast.checkpoint.choose import Snapshot
from holdfast.controller import Limits, State
from holdfast.events import (
    AnyEvent,
    AttemptStopped,
    ControllerResumed,
    DeadlinePassed,
    Diagnosed,
    ExitGroup,
    NodeLeft,
    NodeLost,
    NodeLostReason,
    OrdersLost,
    Progress,
    Progressed,
    StopRequested,
    Store,
    WorkerExited,
    WorkersExited,
)
from holdfast.messages import Start, Stop
from holdfast.simulation.accounting import TimeSpent
from holdfast.simulation.environment import Environment, Foul, Promise
from holdfast.simulation.hardship import Hardship, draw
from holdfast.simulation.memory import ResumedFrom, WrittenPart
from holdfast.simulation.referees import (
    AWAY,
    Efficiency,
    GivenUp,
    OneAttempt,
    Persistence,
    Referees,
    Replay,
)
from holdfast.status import Alternative, Choice
from tests.simulation.test_accounting import ledger
from tests.simulation.test_resumption import OLD, memory, plan

LIMITS = Limits(node_count=2, spare_count=1, max_restarts=2, window_s=600.0, node_wait_s=120.0)
CRASH = 11  # SIGSEGV


def hardship() -> Hardship:
    world = draw(0, hours=1, nodes=3)
    return msgspec.structs.replace(
        world,
        limits=LIMITS,
        instrumented=True,
        clock_step_s=0.0,
        rates={},
        shares={},
        cluster=False,
    )


def start(attempt: int, *, rank: int = 0, port: int = 1) -> Start:
    return Start(
        attempt=attempt,
        node_rank=rank,
        node_count=2,
        workers_per_node=1,
        store=Store("10.0.0.1", port, True),
        redo_until=0,
        restarts=0,
    )


def order(attempt: int) -> StartAttempt:
    return StartAttempt(
        attempt=attempt,
        node_count=2,
        workers_per_node=1,
        store=Store("10.0.0.1", 1, True),
        redo_until=0,
        restarts=attempt - 1,
        reason="",
    )


def stop(attempt: int) -> StopAttempt:
    return StopAttempt(attempt=attempt, grace_s=0.0, reason="a rank failed")


GAVE_UP = EndJob(outcome=Outcome.GAVE_UP, reason="no node is left")
GIVES_UP = Choice(
    at=0.0,
    about="attempt 1",
    cause="hang",
    step="give-up",
    reason="so",
    alternatives=(Alternative(step="give-up", cost_s=3600.0, sufficient=True, why="so"),),
)


def entry(event: AnyEvent, *actions: AnyAction, at: float = 0.0) -> Entry:
    """A line of a controller that gives up only where it has chosen to."""
    ends = [one.outcome for one in actions if isinstance(one, EndJob)]
    gives_up = bool({Outcome.FAILED, Outcome.GAVE_UP}.intersection(ends))
    made = (GIVES_UP,) if gives_up else ()
    return Entry(seq=1, at=at, event=event, actions=actions, choices=made)


def lost(node: str) -> NodeLost:
    return NodeLost(node=node, reason=NodeLostReason.SILENT, detail="no heartbeat")


def exited(node: str, attempt: int, rank: int, signal: int = 9) -> WorkerExited:
    return WorkerExited(node=node, attempt=attempt, rank=rank, exit_code=None, signal=signal)


def diagnosed(attempt: int = 1) -> Diagnosed:
    return Diagnosed(attempt=attempt, cause="worker-crashed", summary="", confidence=1.0)


def in_trouble(_node: str) -> bool:
    return True


# ── one attempt ──


def test_workers_may_start_once_nobody_else_trains() -> None:
    referee = OneAttempt()
    assert not referee.launched(start(1, rank=0), [], None)
    assert not referee.launched(start(1, rank=1), [], None)
    assert not referee.launched(start(2, port=2), [], None)


def test_two_attempts_at_once_are_a_foul() -> None:
    assert "workers of attempt 1 live" in OneAttempt().launched(start(2), [1], None)


def test_one_rank_on_two_nodes_is_a_foul() -> None:
    assert "starts twice (n0)" in OneAttempt().launched(start(1), [], "n0")


def test_a_store_that_served_another_attempt_is_a_foul() -> None:
    referee = OneAttempt()
    referee.launched(start(1, port=7), [], None)
    assert "store of attempt 1" in referee.launched(start(2, port=7), [], None)


# ── given up for good ──


@pytest.mark.parametrize(
    "told",
    [
        entry(lost("n1")),
        entry(NodeLeft(node="n1")),
        entry(DeadlinePassed(), Fence(node="n1", reason="")),
        entry(DeadlinePassed(), Dismiss(node="n1", reason="")),
    ],
)
def test_a_node_that_was_given_up_may_neither_be_started_nor_train(told: Entry) -> None:
    referee = GivenUp()
    referee.journaled(told)
    assert "n1 is told to start" in referee.ordered("n1", [start(3)])
    assert "n1 still trains" in referee.calm(["n0", "n1"])


def test_a_node_that_was_given_up_may_be_told_to_stop_and_others_to_start() -> None:
    referee = GivenUp()
    referee.journaled(entry(lost("n1")))
    assert not referee.ordered("n1", [Stop(attempt=1, grace_s=0.0)])
    assert not referee.ordered("n0", [start(2)])
    assert not referee.calm(["n0"])


# ── efficiency ──


def test_a_node_that_is_well_must_not_be_given_up() -> None:
    referee = Efficiency(hardship())
    assert not referee.journaled(entry(lost("n0")), in_trouble)
    assert "n1 is given up" in referee.journaled(entry(lost("n1")), lambda _node: False)


def test_an_attempt_is_stopped_only_if_something_in_it_broke() -> None:
    referee = Efficiency(hardship())
    referee.broken(1)
    assert not referee.journaled(entry(exited("n0", 1, 0), stop(1)), in_trouble)
    told = referee.journaled(entry(exited("n0", 1, 0), stop(2)), in_trouble)
    assert "attempt 2 is stopped (a rank failed) and was well" in told


@pytest.mark.parametrize(
    "reason",
    [
        lost("n0"),
        NodeLeft(node="n0"),
        StopRequested(by="a person"),
        ControllerResumed(existing=()),
        OrdersLost(node="n0", attempt=1),
    ],
)
def test_a_lost_member_or_a_person_is_a_reason_to_stop(reason: AnyEvent) -> None:
    assert not Efficiency(hardship()).journaled(entry(reason, stop(1)), in_trouble)


def test_repeating_an_order_to_stop_is_no_foul() -> None:
    referee = Efficiency(hardship())
    referee.journaled(entry(StopRequested(by="a person"), stop(1)), in_trouble)
    assert not referee.journaled(entry(DeadlinePassed(), stop(1)), in_trouble)


def test_an_attempt_that_hangs_is_found_in_time() -> None:
    """Slow steps, and a pause that is over, are reasons to wait longer."""
    all_of_them = Referees(hardship(), Environment(hardship()))
    within_s = all_of_them.found_within_s(1.0, 1.0)
    assert all_of_them.found_within_s(20.0, 20.0) > within_s < all_of_them.found_within_s(1.0, 60.0)
    all_of_them.stands(1, within_s, within_s)
    with pytest.raises(Foul, match="attempt 1 hangs"):
        all_of_them.stands(1, within_s + 1.0, within_s)


def test_a_node_is_replaced_only_after_as_many_crashes_as_it_is_allowed() -> None:
    referee, fence = Efficiency(hardship()), Fence(node="n0", reason="")
    for event in (exited("n0", 1, 0, CRASH), exited("n0", 1, 0, CRASH), exited("n1", 1, 1, CRASH)):
        referee.journaled(entry(event), in_trouble)
    told = referee.journaled(entry(diagnosed(1), fence), in_trouble)
    assert "n0 is replaced and its workers crashed 1 times" in told
    referee.journaled(entry(exited("n0", 2, 0, CRASH)), in_trouble)
    assert not referee.journaled(entry(diagnosed(2), fence), in_trouble)


def test_a_crash_that_is_told_together_with_others_counts() -> None:
    referee, fence = Efficiency(hardship()), Fence(node="n0", reason="")
    for attempt in (1, 2):
        group = ExitGroup(kind="worker-crashed", first=exited("n0", attempt, 0, CRASH))
        event = WorkersExited(attempt=attempt, groups=(group,), last_ago_s=0.0)
        referee.journaled(entry(event), in_trouble)
    assert not referee.journaled(entry(diagnosed(2), fence), in_trouble)


# ── persistence ──


def starts(referee: Persistence, times: Sequence[float]) -> list[str]:
    return [
        referee.journaled(entry(diagnosed(), order(number), at=at))
        for number, at in enumerate(times, 1)
    ]


def test_starts_within_the_window_are_limited() -> None:
    """The first one, as many restarts as are allowed, and one more for a limit that just passed."""
    assert starts(Persistence(hardship()), [0, 1, 2, 3]) == [""] * 4
    told = starts(Persistence(hardship()), [0, 1, 2, 3, 4])
    assert told == [""] * 4 + ["5 starts within 600 s"]


def test_starts_that_are_far_apart_are_not_limited() -> None:
    assert not any(starts(Persistence(hardship()), range(0, 4000, 200)))


def test_an_order_that_is_repeated_is_one_start() -> None:
    referee = Persistence(hardship())
    told = [referee.journaled(entry(ControllerResumed(existing=()), order(1))) for _ in range(9)]
    assert not any(told)


def tries_of_a_bug(hard: Hardship, steps: Sequence[int]) -> list[str]:
    """What is said of each start, where each attempt fails at the bug, by what it knows after this
    step."""
    referee, told = Persistence(hard), []
    for number, step in enumerate(steps, 1):
        told.append(referee.journaled(entry(diagnosed(), order(number), at=number * 1000)))
        referee.bugged()
        referee.journaled(
            entry(AttemptStopped(attempt=number, store=None, progress=Progress(step=step)))
        )
    return told


def test_a_bug_that_comes_back_is_tried_once_more_or_as_often_as_was_asked_for() -> None:
    hard = hardship()
    assert tries_of_a_bug(hard, [7] * 3) == ["", "", "the same bug is tried 3 times"]
    exact = msgspec.structs.replace(hard, limits=msgspec.structs.replace(LIMITS, exact=True))
    assert tries_of_a_bug(exact, [7] * 4) == [""] * 3 + ["the same bug is tried 4 times"]


def test_a_bug_that_was_first_told_a_step_early_is_another_one() -> None:
    """World 1006 of two nodes: a rank had failed before it could tell of its last step."""
    assert tries_of_a_bug(hardship(), [6, 7, 7, 7]) == [""] * 3 + ["the same bug is tried 3 times"]


@pytest.mark.parametrize("other", [None, lost("n0"), NodeLeft(node="n0")])
def test_a_bug_that_the_job_comes_past_may_come_back(other: AnyEvent | None) -> None:
    """Every second attempt gets past it; or, each time, a node is gone too."""
    referee = Persistence(hardship())
    for number in range(1, 12):
        assert not referee.journaled(entry(diagnosed(), order(number), at=number * 1000))
        if other is not None or number % 2:
            referee.bugged()
        if other is not None:
            referee.journaled(entry(other))


@pytest.mark.parametrize("other", ["a worker is killed", "nodes are lost with the controller"])
def test_a_bug_in_an_attempt_in_which_more_happens_may_come_back(other: str) -> None:
    """World 320438, in which machines are checked: the controller was away for both."""
    referee = Persistence(hardship())
    for number in range(1, 12):
        assert not referee.journaled(entry(diagnosed(), order(number), at=number * 1000))
        referee.bugged()
        if other == "a worker is killed":
            referee.journaled(entry(exited("n0", number, 0)))
        else:
            resumed = ControllerResumed(existing=())
            referee.journaled(entry(resumed, Fence(node=f"n{number}", reason="")))


# ── replay ──


def test_the_same_orders_and_the_same_state_are_no_foul() -> None:
    referee, ask = Replay(), AskNodes(count=1, reason="")
    assert not referee.replayed(entry(DeadlinePassed(), ask), 1, [ask])
    referee.crashed(State(limits=LIMITS), True)
    assert not referee.restarted(State(limits=LIMITS))


def test_other_orders_or_a_gap_are_a_foul() -> None:
    line = entry(DeadlinePassed(), AskNodes(count=1, reason=""))
    assert "decided otherwise" in Replay().replayed(line, 1, [AskNodes(count=2, reason="")])
    assert "decided otherwise" in Replay().replayed(line, 1, [])
    assert "entry 1 where 2 should be" in Replay().replayed(line, 2, line.actions)


def test_another_state_is_a_foul_if_all_of_it_was_on_the_disk() -> None:
    referee = Replay()
    referee.crashed(State(limits=LIMITS, attempt=1), False)
    assert not referee.restarted(State(limits=LIMITS))
    referee.crashed(State(limits=LIMITS, attempt=1), True)
    assert "another one" in referee.restarted(State(limits=LIMITS))


# ── the controller ──


def test_a_member_that_is_gone_has_to_be_named_in_time() -> None:
    some = all_of_them()
    some.silent("n0", some.named_within_s)
    with pytest.raises(Foul, match="n0 is gone for") as caught:
        some.silent("n0", some.named_within_s + 1.0)
    assert caught.value.promise is Promise.NAMED


# ── all of them ──


def all_of_them() -> Referees:
    return Referees(hardship(), Environment(hardship()))


def test_once_it_is_calm_the_job_trains_with_its_spares() -> None:
    all_of_them().calm(True, "running", ["n0", "n1"], 3)
    with pytest.raises(Foul, match="does not train: recovering") as caught:
        all_of_them().calm(False, "recovering", [], 3)
    assert caught.value.promise is Promise.LIVENESS
    with pytest.raises(Foul, match="2 nodes of 3") as caught:
        all_of_them().calm(True, "running", ["n0", "n1"], 2)
    assert caught.value.promise is Promise.SPARES


def test_spares_that_died_before_they_said_anything_may_be_missing() -> None:
    some = all_of_them()
    some.stillborn = 3
    some.calm(True, "running", ["n0", "n1"], 2)


def test_a_job_that_was_asked_to_stop_has_ended() -> None:
    some = all_of_them()
    some.stop_asked = True
    with pytest.raises(Foul, match="the job goes on: closing") as caught:
        some.calm(False, "closing", [], 0)
    assert caught.value.promise is Promise.END
    with pytest.raises(Foul, match="ends on request"):
        all_of_them().at_end(ledger(), {}, TimeSpent(1.0), [])


def end(outcome: Outcome, at: float = 0.0) -> Entry:
    return entry(DeadlinePassed(), EndJob(outcome=outcome, reason=""), at=at)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_job_that_ends_for_no_reason_is_a_foul(outcome: Outcome) -> None:
    with pytest.raises(Foul, match=f"the job {outcome.value} for no reason") as caught:
        all_of_them().journaled(end(outcome))
    assert caught.value.promise is Promise.PERSISTENCE


def test_every_end_has_a_reason_that_will_do() -> None:
    done, asked, buggy, useless = (all_of_them() for _ in range(4))
    done.finished = asked.stop_asked = True
    buggy.bugged()
    useless.stillborn = 3
    done.journaled(end(Outcome.SUCCEEDED))
    asked.journaled(end(Outcome.STOPPED))
    buggy.journaled(end(Outcome.FAILED))
    useless.journaled(end(Outcome.GAVE_UP))


def test_giving_up_is_right_once_the_restarts_are_used_up_and_not_long_after() -> None:
    early, late, slow = all_of_them(), all_of_them(), all_of_them()
    for some, again in ((early, 101.0), (late, 101.0), (slow, 90_000.0)):
        some.journaled(entry(diagnosed(), order(1), at=100.0))
        some.journaled(entry(diagnosed(), order(2), at=again))
    early.journaled(end(Outcome.GAVE_UP, at=102.0))
    slow.journaled(end(Outcome.GAVE_UP, at=180_000.0))  # there was no progress
    late.journaled(entry(Progressed(attempt=2, progress=Progress(step=7)), at=500.0))
    with pytest.raises(Foul, match="the job gave_up for no reason"):
        late.journaled(end(Outcome.GAVE_UP, at=1000.0))


def away(at: float, attempt: int = 1, step: int = 5) -> Entry:
    """A rank says that it cannot read its data."""
    progress = Progress(step=step)
    failed = WorkerExited(
        node="n0", attempt=attempt, rank=0, exit_code=1, error=AWAY, progress=progress
    )
    return entry(failed, at=at)


def given_up_at(some: Referees, at: float) -> str:
    try:
        some.journaled(end(Outcome.GAVE_UP, at=at))
    except Foul as foul:
        return foul.how
    return ""


def test_storage_that_is_away_is_no_reason_before_the_window_is_over_whatever_the_cap() -> None:
    for at, reason in ((300.0, "the job gave_up for no reason"), (701.0, "")):
        some = all_of_them()
        for number in (1, 2, 3):
            some.journaled(entry(diagnosed(), order(number), at=100.0 + number))
            some.journaled(away(100.5 + number, number))
        assert given_up_at(some, at) == reason


def test_progress_and_other_faults_begin_the_account_anew() -> None:
    further, other = all_of_them(), all_of_them()
    for some in (further, other):
        some.journaled(entry(diagnosed(), order(1), at=100.0))
        some.journaled(away(101.0))
        some.journaled(entry(diagnosed(), order(2), at=102.0))
    further.journaled(away(600.0, attempt=2, step=6))
    assert given_up_at(further, 750.0) == "the job gave_up for no reason"
    other.journaled(away(103.0, attempt=2))
    other.journaled(entry(lost("n0"), at=104.0))
    assert given_up_at(other, 105.0) == ""  # then it is the cap that counts


def waited(for_s: float) -> Referees:
    """It is this long ago that the attempt was known to be stopped."""
    env = Environment(hardship())
    some = Referees(hardship(), env)
    env.now = 1000.0
    some.journaled(entry(AttemptStopped(attempt=1, store=None)))
    env.now += for_s
    return some


def test_giving_up_is_right_after_waiting_since_the_end_of_the_attempt() -> None:
    waited(LIMITS.node_wait_s).journaled(end(Outcome.GAVE_UP))
    with pytest.raises(Foul, match="the job gave_up for no reason"):
        waited(LIMITS.node_wait_s / 2).journaled(end(Outcome.GAVE_UP))


def test_an_end_is_judged_when_it_is_decided_and_not_when_it_is_repeated() -> None:
    some = waited(LIMITS.node_wait_s)
    some.journaled(end(Outcome.GAVE_UP))
    some.restarted(State(limits=LIMITS))  # from now on nobody has waited
    some.journaled(end(Outcome.GAVE_UP))


def test_every_referee_is_heard() -> None:
    """What one of them objects to is raised with its promise and the time."""
    env = Environment(hardship())
    some = Referees(hardship(), env)
    some.in_trouble = in_trouble
    env.now = 7.0
    some.journaled(entry(lost("n1"), order(1)))
    two = [memory(WrittenPart(OLD, rank, 2)) for rank in range(2)]
    uncopied = ResumedFrom(Snapshot(OLD, 2), plan(OLD, private=(1, 0)))
    fouls: list[tuple[Promise, Callable[[], None]]] = [
        (Promise.ONE_ATTEMPT, lambda: some.launched("n0", start(2), [1], None)),
        (Promise.GIVEN_UP, lambda: some.ordered("n1", [start(2)])),
        (Promise.SNAPSHOT, lambda: some.resumed(2, uncopied, two, 1)),
        (Promise.ASSEMBLY, lambda: some.resumed(2, None, two, 1)),
        (Promise.SAMPLES, lambda: some.dealt(2, None, [range(3), range(4, 8)])),
        (Promise.EFFICIENCY, lambda: some.journaled(entry(exited("n0", 1, 0), stop(1)))),
        (Promise.REPLAY, lambda: some.replayed(entry(DeadlinePassed(), stop(1)), 1, [])),
        (Promise.CHOICE, lambda: some.journaled(Entry(1, 7.0, DeadlinePassed(), (GAVE_UP,)))),
    ]
    for promise, tell in fouls:
        with pytest.raises(Foul, match=r" at 7\.000 s") as caught:
            tell()
        assert caught.value.promise is promise
    some.over = True
    with pytest.raises(Foul, match="the ledger sums to the wall time"):
        some.at_end(msgspec.structs.replace(ledger(), end_ms=1), {}, TimeSpent(1.0), [])
