"""The controller's promises, as events in and actions out."""

from collections.abc import Sequence
from typing import TypeVar

import msgspec
import pytest

from holdfast.actions import (
    AnyAction,
    AskNodes,
    AssignRank,
    Diagnose,
    EndJob,
    Fence,
    Outcome,
    StartAttempt,
    StopAttempt,
)
from holdfast.controller import Controller, Limits, Phase, State
from holdfast.controller.invariants import check
from holdfast.controller.phases import MOVES, diagram
from holdfast.controller.state import IllegalMoveError
from holdfast.events import (
    AnyEvent,
    AttemptStopped,
    ControllerResumed,
    DeadlinePassed,
    Diagnosed,
    JobSubmitted,
    Milestone,
    MilestoneReached,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeLostReason,
    NodeReady,
    Progress,
    Progressed,
    StopRequested,
    Store,
    WorkerExited,
)


class World:
    """A controller and the facts a well-behaved cluster would report."""

    def __init__(self, **limits: float | str) -> None:
        self.controller = Controller(Limits(**{"node_count": 2, "spare_count": 1, **limits}))  # type: ignore[arg-type]
        self.now = 100.0
        self.ports = 1000

    @property
    def state(self) -> State:
        return self.controller.state

    def tell(self, event: AnyEvent, after_s: float = 0.1) -> list[AnyAction]:
        self.now += after_s
        actions = self.controller.handle(event, self.now)
        check(self.state)
        return actions

    def store(self) -> Store:
        self.ports += 1
        return Store("127.0.0.1", self.ports, True)

    def add(self, node: str, instrumented: bool = True) -> list[AnyAction]:
        actions = self.tell(NodeJoined(node=node, name=node, address="127.0.0.1", workers=1))
        ready = NodeReady(node=node, store=self.store(), instrumented=instrumented)
        return actions + self.tell(ready)

    def submit(self, instrumented: bool = True) -> list[AnyAction]:
        actions = self.tell(JobSubmitted())
        for node in ("a", "b", "c"):
            actions += self.add(node, instrumented)
        return actions

    def train(self, step: int, *, restored: int = 0) -> None:
        attempt = self.state.attempt
        for milestone in (Milestone.STARTED, Milestone.ARRIVED, Milestone.JOINED):
            self.tell(MilestoneReached(attempt=attempt, milestone=milestone))
        done = MilestoneReached(attempt=attempt, milestone=Milestone.RESTORED, step=restored)
        self.tell(done)
        self.tell(MilestoneReached(attempt=attempt, milestone=Milestone.FIRST_STEP))
        self.tell(MilestoneReached(attempt=attempt, milestone=Milestone.CAUGHT_UP, step=step))
        self.tell(Progressed(attempt=attempt, progress=Progress(step=step)))

    def exited(self, node: str, rank: int, **how: object) -> WorkerExited:
        how = {"exit_code": 1} | how
        return WorkerExited(node=node, attempt=self.state.attempt, rank=rank, **how)  # type: ignore[arg-type]

    def kill(self, node: str, rank: int, step: int | None = None) -> list[AnyAction]:
        progress = Progress(step=step)
        exited = self.exited(node, rank, exit_code=None, signal=9, progress=progress)
        return self.tell(exited)

    def all_stopped(self) -> list[AnyAction]:
        return self.tell(AttemptStopped(attempt=self.state.attempt, store=self.store()))

    def verdict(self, **what: object) -> list[AnyAction]:
        what = {"cause": "worker-killed", "summary": "killed", "confidence": 1.0, "rank": 1} | what
        return self.tell(Diagnosed(attempt=self.state.attempt, **what))  # type: ignore[arg-type]

    def recover(self, **what: object) -> list[AnyAction]:
        return self.all_stopped() + self.verdict(**what)


def kinds(actions: Sequence[AnyAction | None]) -> list[str]:
    return [type(action).__name__ for action in actions]


T = TypeVar("T")


def only(actions: Sequence[AnyAction | None], kind: type[T]) -> T:
    found = [action for action in actions if isinstance(action, kind)]
    assert len(found) == 1, kinds(actions)
    return found[0]


def running(**limits: float | str) -> World:
    world = World(**limits)
    world.submit()
    world.train(step=10)
    assert world.state.phase is Phase.RUNNING
    return world


def test_a_job_asks_for_its_nodes_and_spares_and_starts_when_enough_are_ready() -> None:
    world = World()
    assert only(world.tell(JobSubmitted()), AskNodes).count == 3
    assert world.add("a") == []
    actions = world.add("b")
    assert kinds(actions) == ["AssignRank", "AssignRank", "StartAttempt"]
    assert actions[0] == AssignRank(node="a", node_rank=0, reason="first roster: a")
    start = only(actions, StartAttempt)
    assert (start.attempt, start.node_count, start.redo_until) == (1, 2, 0)
    assert world.add("c") == []
    assert world.state.nodes["c"].node_rank is None


def test_a_killed_worker_stops_the_attempt_and_restarts_in_place_on_a_fresh_store() -> None:
    world = running()
    first_store = only([world.state.start], StartAttempt).store
    stop = only(world.kill("b", 1, step=12), StopAttempt)
    assert stop.attempt == 1
    assert world.state.phase is Phase.RECOVERING
    diagnose = only(world.all_stopped(), Diagnose)
    assert [e.rank for e in diagnose.exits] == [1]
    start = only(world.verdict(), StartAttempt)
    assert start.attempt == 2
    assert start.redo_until == 12
    assert start.store != first_store
    assert world.state.ranks == {0: "a", 1: "b"}


def test_no_attempt_starts_before_the_old_one_is_known_to_be_stopped() -> None:
    world = running()
    world.kill("b", 1)
    assert world.verdict() == []
    assert world.state.attempt == 1
    assert only(world.recover(), StartAttempt).attempt == 2


def test_an_incident_closes_when_training_is_productive_again_and_counts_lost_steps() -> None:
    world = running()
    world.kill("b", 1, step=12)
    world.recover()
    world.train(step=13, restored=11)
    incident = world.state.incidents[0]
    assert incident.ended_at is not None
    assert incident.steps_lost == 1

    assert [a.action for a in incident.actions] == ["StopAttempt", "StartAttempt"]


def test_a_lost_node_is_fenced_replaced_by_a_spare_and_a_new_spare_is_asked_for() -> None:
    world = running()
    lost = NodeLost(node="b", reason=NodeLostReason.PROCESS, detail="killed")
    actions = world.tell(lost)
    assert kinds(actions) == ["Fence", "StopAttempt", "AskNodes"]
    actions = world.recover(cause="none", summary="", rank=None)
    assert only(actions, AssignRank) == AssignRank(
        node="c", node_rank=1, reason="c takes over node rank 1"
    )
    assert only(actions, StartAttempt).attempt == 2
    assert world.state.incidents[0].cause == "node-lost"


@pytest.mark.parametrize(
    ("detail", "told"),
    [("", "b was removed (planned): it left"), ("its pod was deleted", "its pod was deleted")],
)
def test_a_node_that_leaves_is_told_of_with_who_asked_it_to(detail: str, told: str) -> None:
    world = running()
    world.tell(NodeLeft(node="b", detail=detail))
    world.recover(cause="none", summary="", rank=None)
    (incident,) = world.state.incidents
    assert incident.cause == "node-left" and told in incident.summary


def test_a_lost_node_explains_workers_that_failed_before_it_was_noticed() -> None:
    world = running()
    world.tell(world.exited("a", 0))
    lost = NodeLost(node="b", reason=NodeLostReason.SILENT, detail="no heartbeat")
    world.tell(lost)
    world.recover(cause="peer-lost", rank=0)
    incident = world.state.incidents[0]
    assert (incident.cause, incident.node, incident.also_failed) == ("node-lost", "b", 1)
    assert len(world.state.incidents) == 1


def test_without_a_spare_the_job_waits_for_a_node_and_says_so() -> None:
    world = running(spare_count=0)
    world.tell(NodeLost(node="c", reason=NodeLostReason.PROCESS))
    world.tell(NodeLost(node="b", reason=NodeLostReason.PROCESS))
    world.recover(rank=None)
    assert world.state.phase is Phase.WAITING
    assert world.state.why == "1 more node needed to start"
    assert only(world.add("d"), StartAttempt).attempt == 2
    assert world.state.ranks == {0: "a", 1: "d"}


def test_waiting_for_nodes_ends_after_its_limit() -> None:
    world = World(node_wait_s=30.0)
    world.tell(JobSubmitted())
    assert world.controller.next_deadline() == pytest.approx(world.now + 30.0)
    assert world.tell(DeadlinePassed(), after_s=1.0) == []
    actions = world.tell(DeadlinePassed(), after_s=30.0)
    assert only(actions, EndJob).outcome is Outcome.GAVE_UP


def test_without_reported_steps_a_few_seconds_of_life_spare_the_next_attempt_a_back_off() -> None:
    world = World()
    world.submit(instrumented=False)
    for attempt in range(1, 6):
        world.tell(MilestoneReached(attempt=attempt, milestone=Milestone.STARTED))
        world.now += 6.0
        world.kill("b", 1)
        assert only(world.recover(), StartAttempt).attempt == attempt + 1


def test_a_lost_spare_costs_nothing() -> None:
    world = running()
    actions = world.tell(NodeLost(node="c", reason=NodeLostReason.PROCESS))
    assert kinds(actions) == ["Fence", "AskNodes"]
    assert world.state.phase is Phase.RUNNING
    assert world.state.incidents == []


def test_the_same_user_error_at_the_same_place_without_progress_ends_the_job_the_second_time() -> (
    None
):
    world = running()
    bug = {"cause": "worker-exception", "user_error": True, "signature": "ValueError train.py:3"}
    world.tell(world.exited("b", 1, progress=Progress(step=12)))
    assert only(world.recover(**bug), StartAttempt).attempt == 2
    world.tell(world.exited("b", 1, progress=Progress(step=12)))
    end = only(world.recover(**bug), EndJob)
    assert end.outcome is Outcome.FAILED
    assert "same error" in end.reason


def test_the_same_user_error_after_progress_is_tried_again() -> None:
    world = running()
    bug = {"cause": "worker-exception", "user_error": True, "signature": "ValueError train.py:3"}
    for step in (12, 13, 14):
        world.tell(world.exited("b", 1, progress=Progress(step=step)))
        assert only(world.recover(**bug), StartAttempt)


def test_a_machine_fault_between_two_identical_user_errors_does_not_hide_them() -> None:
    world = running()
    bug = {"cause": "worker-exception", "user_error": True, "signature": "ValueError train.py:3"}
    world.tell(world.exited("b", 1, progress=Progress(step=12)))
    world.recover(**bug)
    world.kill("a", 0, step=12)
    world.recover()
    world.tell(world.exited("b", 1, progress=Progress(step=12)))
    assert only(world.recover(**bug), EndJob).outcome is Outcome.FAILED


def test_a_crash_loop_ends_at_the_cap_and_old_restarts_do_not_count() -> None:
    world = running(max_restarts=2, window_s=1000.0)
    for step in (20, 30):
        world.kill("b", 1, step=step)
        assert only(world.recover(), StartAttempt)
    world.now += 2000.0
    for step in (40, 50):
        world.kill("b", 1, step=step)
        assert only(world.recover(), StartAttempt)
    world.kill("b", 1, step=60)
    end = only(world.recover(), EndJob)
    assert end.outcome is Outcome.GAVE_UP
    assert "2 restarts" in end.reason


def test_attempts_without_progress_back_off_and_the_wait_is_a_deadline() -> None:
    world = running()
    world.kill("b", 1, step=10)
    only(world.recover(), StartAttempt)
    world.kill("b", 1, step=10)
    only(world.recover(), StartAttempt)
    world.kill("b", 1, step=10)
    assert kinds(world.recover()) == ["Diagnose"]
    assert world.state.phase is Phase.WAITING
    deadline = world.controller.next_deadline()
    assert deadline is not None and deadline > world.now
    assert only(world.tell(DeadlinePassed(), after_s=60.0), StartAttempt).attempt == 4


def test_without_a_store_for_rank_0_the_start_waits_for_one() -> None:
    world = running()
    world.kill("b", 1)
    world.tell(AttemptStopped(attempt=1, store=None))
    assert kinds(world.verdict()) == []
    assert "store" in world.state.why
    assert only(world.tell(NodeReady(node="a", store=world.store())), StartAttempt).attempt == 2


def without_forkserver(world: World, *nodes: str) -> list[AnyAction]:
    """The attempt is stopped; on these members no worker can be started yet."""
    store = None if world.state.ranks[0] in nodes else world.store()
    world.kill("b", 1)
    world.tell(AttemptStopped(attempt=1, store=store, unready=nodes))
    return world.verdict(cause="forkserver-died")


@pytest.mark.parametrize(("node", "rank"), [("a", 0), ("b", 1)])
def test_a_spare_takes_the_rank_of_a_member_whose_forkserver_died(node: str, rank: int) -> None:
    world = running(copies=1)
    offered = world.state.nodes["c"].store
    actions = without_forkserver(world, node)
    assert kinds(actions) == ["AssignRank", "StartAttempt"]
    assert (only(actions, AssignRank).node, only(actions, AssignRank).node_rank) == ("c", rank)
    if rank == 0:
        assert only(actions, StartAttempt).store == offered
    assert world.tell(NodeReady(node=node, store=world.store())) == []
    assert world.state.spares == [node] and not world.state.lost


@pytest.mark.parametrize(
    ("limits", "instrumented", "unready"),
    [
        ({"copies": 0}, True, "b"),  # its snapshots are nowhere else
        ({"copies": 1, "spare_count": 2}, True, "ab"),  # each may have the other's copy
        ({"copies": 1, "node_count": 1, "spare_count": 2}, True, "a"),
        ({"copies": 3, "spare_count": 1}, False, "ab"),  # spares for one of them only
    ],
)
def test_a_member_is_waited_for_where_a_spare_cannot_go_on_for_it(
    limits: dict[str, float], instrumented: bool, unready: str
) -> None:
    world = World(**limits)
    world.submit(instrumented)
    if world.state.limits.spare_count == 2:
        world.add("d", instrumented)
    ranks = dict(world.state.ranks)
    world.kill(ranks[0], 0)
    store = None if "a" in unready else world.store()
    world.tell(AttemptStopped(attempt=1, store=store, unready=tuple(unready)))
    actions = world.verdict(rank=0)
    assert world.state.ranks == ranks
    if "a" in unready:
        actions = world.tell(NodeReady(node="a", store=world.store()))
    assert only(actions, StartAttempt).attempt == 2


def test_what_cannot_be_killed_of_a_lost_node_is_in_the_account_and_holds_up_nobody() -> None:
    world = running()
    world.tell(NodeLost(node="b", reason=NodeLostReason.SILENT))
    stuck = NodeLost(node="b", reason=NodeLostReason.STUCK, detail="process 7 is in state D")
    assert world.tell(stuck) == []
    assert only(world.recover(), StartAttempt).attempt == 2
    (incident,) = world.state.incidents
    assert ("Fence", "process 7 is in state D") in [(a.action, a.reason) for a in incident.actions]


def test_every_worker_finished_ends_the_job_well() -> None:
    world = running()
    done = Progress(step=20, finished=True)
    assert world.tell(world.exited("a", 0, exit_code=0, progress=done)) == []
    end = only(world.tell(world.exited("b", 1, exit_code=0, progress=done)), EndJob)
    assert end.outcome is Outcome.SUCCEEDED
    assert world.state.phase is Phase.SUCCEEDED


def test_leaving_with_status_0_is_fine_where_no_steps_are_reported() -> None:
    world = World()
    world.submit(instrumented=False)
    world.tell(MilestoneReached(attempt=1, milestone=Milestone.STARTED))
    assert world.state.phase is Phase.RUNNING
    assert world.tell(world.exited("a", 0, exit_code=0)) == []
    assert only(world.tell(world.exited("b", 1, exit_code=0)), EndJob)


def test_a_node_lost_after_its_workers_finished_disturbs_nobody() -> None:
    world = running()
    done = Progress(step=20, finished=True)
    world.tell(world.exited("b", 1, exit_code=0, progress=done))
    actions = world.tell(NodeLost(node="b", reason=NodeLostReason.PROCESS))
    assert "StopAttempt" not in kinds(actions)
    end = only(world.tell(world.exited("a", 0, exit_code=0, progress=done)), EndJob)
    assert end.outcome is Outcome.SUCCEEDED


def test_news_of_a_past_attempt_is_ignored() -> None:
    world = running()
    old = world.exited("b", 1)
    world.kill("b", 1)
    world.recover()
    before = msgspec.json.encode(world.state)
    assert world.tell(old, after_s=0.0) == []
    assert world.tell(AttemptStopped(attempt=1, store=None), after_s=0.0) == []
    assert msgspec.json.encode(world.state) == before


def test_a_lost_node_that_reappears_is_ignored() -> None:
    world = running()
    world.tell(NodeLost(node="b", reason=NodeLostReason.SILENT))
    assert world.tell(NodeJoined(node="b", name="b", address="x", workers=1)) == []
    assert world.tell(NodeReady(node="b", store=world.store())) == []
    assert "b" not in world.state.nodes


def test_a_stop_waits_until_the_workers_are_known_to_be_stopped() -> None:
    world = running()
    stop = only(world.tell(StopRequested(by="Ctrl-C")), StopAttempt)
    assert stop.grace_s == world.state.limits.stop_grace_s
    hurry = only(world.tell(StopRequested(by="Ctrl-C", now=True)), StopAttempt)
    assert hurry.grace_s == 0.0
    assert only(world.all_stopped(), EndJob).outcome is Outcome.STOPPED


def test_a_stop_during_recovery_wins() -> None:
    world = running()
    world.kill("b", 1)
    world.tell(StopRequested(by="Ctrl-C"))
    assert only(world.all_stopped(), EndJob).outcome is Outcome.STOPPED
    assert world.verdict() == []


def test_a_fault_before_recovery_is_complete_is_a_second_incident() -> None:
    world = running()
    world.kill("b", 1, step=12)
    world.recover()
    world.kill("a", 0)
    world.recover(rank=0)
    first, second = world.state.incidents
    assert first.ended_at is not None
    assert second.ended_at is None
    assert second.node == "a"


def device_error(world: World, node: str, rank: int, step: int) -> list[AnyAction]:
    world.tell(world.exited(node, rank, progress=Progress(step=step)))
    return world.recover(cause="device-error", rank=rank)


def test_a_second_device_fault_on_a_node_has_a_spare_take_its_place() -> None:
    world = running()
    assert "Fence" not in kinds(device_error(world, "b", 1, step=12))
    actions = device_error(world, "b", 1, step=13)
    assert kinds(actions) == ["Diagnose", "Fence", "AskNodes", "AssignRank", "StartAttempt"]
    assert only(actions, Fence).node == "b"
    assert world.state.ranks == {0: "a", 1: "c"}
    assert world.tell(NodeLost(node="b", reason=NodeLostReason.PROCESS)) == []


def test_device_faults_of_different_nodes_or_days_replace_nobody() -> None:
    world = running()
    device_error(world, "b", 1, step=12)
    assert "Fence" not in kinds(device_error(world, "a", 0, step=13))
    world.now += 90_000.0
    assert "Fence" not in kinds(device_error(world, "b", 1, step=14))


def test_a_doubtful_node_is_kept_while_there_is_no_spare() -> None:
    world = running()
    world.tell(NodeLost(node="c", reason=NodeLostReason.PROCESS))
    for step in (12, 13, 14):
        actions = device_error(world, "b", 1, step=step)
        assert kinds(actions) == ["Diagnose", "StartAttempt"]


def test_a_node_on_which_nothing_works_is_given_up_even_without_a_spare() -> None:
    world = running()
    world.tell(NodeLost(node="c", reason=NodeLostReason.PROCESS))
    assert "Fence" not in kinds(device_error(world, "b", 1, step=12))
    assert "Fence" in kinds(device_error(world, "b", 1, step=12)), "it would fail the next one, too"
    assert world.state.phase is Phase.WAITING
    actions = world.add("d")
    assert "AssignRank" in kinds(actions)
    assert only(actions, StartAttempt).attempt == 3


def test_a_killed_worker_is_no_fault_of_its_node() -> None:
    world = running()
    for step in (12, 13, 14):
        world.kill("b", 1, step=step)
        assert "Fence" not in kinds(world.recover())


def test_nodes_that_die_before_they_register_end_the_job_after_a_few() -> None:
    world = World()
    world.tell(JobSubmitted())
    first, second = (NodeLost(node=f"x{n}", reason=NodeLostReason.PROCESS) for n in range(2))
    assert only(world.tell(first), AskNodes).count == 1
    assert kinds(world.tell(second)) == ["Fence"], "another one is asked for later"
    end = world.tell(NodeLost(node="x2", reason=NodeLostReason.PROCESS))
    assert only(end, EndJob).outcome is Outcome.GAVE_UP


def test_a_node_with_another_number_of_workers_is_sent_away_and_another_asked_for() -> None:
    world = World()
    world.tell(JobSubmitted())
    world.add("a")
    odd = NodeJoined(node="odd", name="odd", address="x", workers=4)
    assert kinds(world.tell(odd)) == ["Dismiss", "AskNodes"]
    assert "odd" not in world.state.nodes


def test_a_new_controller_repeats_the_order_that_may_not_have_been_carried_out() -> None:
    world = running()
    started = only([world.state.start], StartAttempt)
    resumed = ControllerResumed(existing=("a", "b", "c"))
    assert world.tell(resumed) == [started]
    world.kill("b", 1)
    assert only(world.tell(resumed), StopAttempt).attempt == 1
    world.all_stopped()
    assert only(world.tell(resumed), Diagnose)


def test_a_new_controller_replaces_nodes_that_died_while_it_was_away() -> None:
    world = running()
    actions = world.tell(ControllerResumed(existing=("a", "c")))
    assert only(actions, Fence).node == "b"
    assert world.state.phase is Phase.RECOVERING
    only(world.recover(rank=None), StartAttempt)
    assert world.state.ranks == {0: "a", 1: "c"}


def test_a_new_controller_with_only_a_spare_gone_goes_on_training() -> None:
    world = running()
    actions = world.tell(ControllerResumed(existing=("a", "b")))
    assert kinds(actions) == ["Fence", "AskNodes", "StartAttempt"]
    assert only(actions, StartAttempt).attempt == 1
    assert world.state.phase is Phase.RUNNING


def test_after_the_end_only_clean_up_is_ordered() -> None:
    world = running()
    world.tell(StopRequested(by="x", now=True))
    world.all_stopped()
    assert kinds(world.tell(NodeJoined(node="z", name="z", address="x", workers=1))) == ["Dismiss"]
    assert world.tell(NodeLost(node="a", reason=NodeLostReason.PROCESS)) == []
    assert kinds(world.tell(ControllerResumed(existing=("a",)))) == ["EndJob"]


def test_a_clock_that_steps_back_is_ignored() -> None:
    world = running()
    before = world.state.now
    world.controller.handle(DeadlinePassed(), 5.0)
    assert world.state.now == before


def test_an_illegal_change_tells_the_story() -> None:
    world = running()
    with pytest.raises(IllegalMoveError, match="running -> waiting") as raised:
        world.state.move(Phase.WAITING, "no reason")
    assert "waiting -> starting: first attempt" in str(raised.value)


def test_the_table_names_every_phase_and_the_diagram_every_move() -> None:
    assert set(MOVES) == set(Phase)
    drawn = diagram()
    assert all(f"{a} --> {b}" in drawn for a, targets in MOVES.items() for b in targets)


def test_a_store_that_is_told_of_again_while_it_is_used_is_not_used_twice() -> None:
    """A controller that came back hears old facts anew; no world of the simulation shows it."""
    world = running(node_count=1, spare_count=0)
    assert world.state.start is not None
    used = world.state.start.store
    world.tell(NodeReady(node="a", store=used))
    world.kill("a", 0)
    world.tell(AttemptStopped(attempt=1, store=None))
    assert not [a for a in world.verdict() if isinstance(a, StartAttempt)]
    fresh = world.store()
    assert only(world.tell(NodeReady(node="a", store=fresh)), StartAttempt).store == fresh
