"""A job trains with fewer nodes when some stay away, and with more when there are more."""

import pytest

from holdfast.actions import (
    AnyAction,
    AskNodes,
    AssignRank,
    EndJob,
    Fence,
    Outcome,
    StartAttempt,
    StopAttempt,
)
from holdfast.controller import Phase
from holdfast.controller.choices import change_s
from holdfast.controller.policies.shrink import break_even_s
from holdfast.events import (
    AttemptStopped,
    DeadlinePassed,
    JobSubmitted,
    Milestone,
    MilestoneReached,
    NodeJoined,
    NodeLost,
    NodeLostReason,
    NodeUnfit,
    Progress,
    ScaleRequested,
    StopRequested,
)
from tests.controller.test_controller import World, kinds, only

ELASTIC = {"node_count": 3, "spare_count": 0, "min_nodes": 2, "max_nodes": 4, "copies": 1}


def lose(world: World, node: str, after_s: float = 0.1) -> list[AnyAction]:
    return world.tell(NodeLost(node=node, reason=NodeLostReason.PROCESS), after_s)


def elastic(**limits: float | str) -> World:
    """Three nodes train; one that is missing is known to come late, or not at all."""
    world = World(**{**ELASTIC, **limits})
    world.submit()
    world.train(step=10)
    return world


def short(world: World, node: str = "b") -> list[AnyAction]:
    """This node is lost, and nothing is left to be decided but who trains."""
    actions = lose(world, node)
    return actions + world.recover(cause="none", summary="", rank=None)


def shrunk(**limits: float | str) -> World:
    world = elastic(**limits)
    world.state.sizing.arrival_s = 1000.0
    short(world)
    world.train(step=20, restored=10)
    assert (world.state.size, world.state.phase) == (2, Phase.RUNNING)
    world.state.sizing.start_s = 100.0
    return world


def grow_at(world: World) -> float:
    at = world.state.sizing.grow_deadline
    assert at is not None
    return at


def reach(world: World, at: float | None) -> list[AnyAction]:
    assert at is not None
    return world.tell(DeadlinePassed(), max(0.0, at - world.now))


def test_a_missing_node_is_waited_for_until_the_break_even_and_then_gone_without() -> None:
    world = elastic()
    world.state.sizing.arrival_s = None
    asked = only(short(world), AskNodes)
    assert asked.count == 1 and world.state.phase is Phase.WAITING
    assert "break-even" in world.state.why
    due = world.controller.next_deadline()
    assert due == pytest.approx(world.now + break_even_s(3, 1, change_s(world.state)))
    actions = reach(world, due)
    start = only(actions, StartAttempt)
    assert (start.attempt, start.node_count) == (2, 2)
    assert only(actions, AssignRank).node == "c", "the member with the highest rank moves down"
    assert world.state.ranks == {0: "a", 1: "c"}
    assert "Shrink" in [done.action for done in world.state.incidents[0].actions]


def test_waiting_for_a_silent_node_is_not_taken_for_the_price_of_a_change() -> None:
    """Its peers fail before it is known to be lost, and only then is the attempt known to have
    ended."""
    world = elastic()
    world.kill("a", 0)
    world.all_stopped()
    assert world.state.sizing.stop_s == pytest.approx(0.1)
    world.verdict(cause="none", summary="", rank=None)
    world.train(step=20)
    world.kill("a", 0)
    lose(world, "b", after_s=4.8)
    world.all_stopped()
    assert world.state.sizing.stop_s == pytest.approx(0.1)


def test_a_node_that_comes_within_the_break_even_keeps_the_size() -> None:
    world = elastic()
    world.state.sizing.arrival_s = None
    short(world)
    assert only(world.add("d"), StartAttempt).node_count == 3


def test_nobody_waits_for_nodes_that_are_known_to_take_longer() -> None:
    world = elastic()
    world.state.sizing.arrival_s = 1000.0
    assert only(short(world), StartAttempt).node_count == 2


def test_a_spare_comes_before_a_smaller_size() -> None:
    world = elastic(spare_count=1)
    world.add("d")
    assert only(short(world), StartAttempt).node_count == 3


def test_below_the_fewest_nodes_the_job_waits_and_ends_after_its_time() -> None:
    world = shrunk(node_wait_s=50.0)
    assert "StartAttempt" not in kinds(short(world, "c"))
    assert world.state.why == "1 more node needed to start"
    assert only(reach(world, world.now + 50.0), EndJob).outcome is Outcome.GAVE_UP


def test_the_end_of_the_waiting_time_shrinks_a_job_that_can_go_on() -> None:
    world = elastic(node_wait_s=0.2)
    world.state.sizing.arrival_s = None
    short(world)
    due = world.controller.next_deadline()
    assert due == pytest.approx(world.now + 0.2)
    assert only(reach(world, due), StartAttempt).node_count == 2


def test_without_elasticity_nothing_shrinks_or_grows() -> None:
    world = elastic(min_nodes=0, max_nodes=0)
    world.state.sizing.arrival_s = 1000.0
    assert "StartAttempt" not in kinds(short(world))
    assert world.state.why == "1 more node needed to start"
    assert world.tell(ScaleRequested(by="me", nodes=2)) == []
    assert world.state.size == world.state.target == 3


def test_it_grows_at_the_end_of_a_step_once_a_node_is_ready_for_long_enough() -> None:
    world = shrunk()
    assert world.add("d") == []
    actions = reach(world, grow_at(world))
    stop = only(actions, StopAttempt)
    assert stop.keeps == "here" and not stop.save
    actions = world.all_stopped()
    assert kinds(actions) == ["AssignRank", "StartAttempt"]
    assert only(actions, StartAttempt).node_count == 3
    world.train(step=21, restored=20)
    incident = world.state.incidents[-1]
    assert (incident.cause, incident.steps_lost) == ("resized", 0)
    assert incident.ended_at is not None


def test_what_was_done_before_it_grew_is_progress() -> None:
    """So the next fault is not another one in a row with the last."""
    world = shrunk()
    assert world.state.barren == 1
    world.add("d")
    world.tell(ScaleRequested(nodes=3, by="a person"))
    world.all_stopped()
    assert (world.state.barren, world.state.size) == (0, 3)


def test_growing_is_no_failure_and_counts_against_no_cap() -> None:
    world = shrunk(max_restarts=1)
    world.add("d")
    reach(world, grow_at(world))
    assert only(world.all_stopped(), StartAttempt)
    assert world.state.restarts_count == 1 and len(world.state.restarts) == 1


def test_a_node_that_comes_and_goes_makes_it_grow_less_and_less_often() -> None:
    world, held = shrunk(window_s=1e6, max_restarts=99), []
    for step, name in enumerate(("d", "e", "f", "g"), 30):
        world.state.sizing.start_s = 100.0
        world.add(name)
        began = world.state.sizing.changed_at
        assert began is not None
        held.append((grow_at(world) - began) / change_s(world.state))
        reach(world, grow_at(world))
        world.all_stopped()
        world.train(step=10 * step, restored=10 * step)
        world.state.sizing.arrival_s = 1e6
        short(world, name)
        world.train(step=10 * step + 5, restored=10 * step)
        assert world.state.size == 2
    assert held == pytest.approx([2.5, 5.0, 10.0, 20.0])


def test_a_restart_takes_everybody_in_who_is_ready() -> None:
    world = shrunk()
    world.add("d")
    world.kill("c", 1)
    assert only(world.recover(), StartAttempt).node_count == 3


def test_a_member_that_is_lost_while_it_grows_is_a_fault_like_any_other() -> None:
    world = shrunk()
    world.add("d")
    reach(world, grow_at(world))
    lose(world, "c")
    actions = world.recover(cause="none", summary="", rank=None)
    assert only(actions, StartAttempt).node_count == 2, "its place is taken, nobody is missing"
    assert world.state.incidents[-1].cause == "node-lost"


def test_scale_grows_at_once_up_to_the_most_nodes() -> None:
    world = elastic()
    assert only(world.tell(ScaleRequested(by="me", nodes=9)), AskNodes).count == 1
    assert world.state.target == 4
    assert only(world.add("d"), StopAttempt).keeps == "here"
    assert only(world.all_stopped(), StartAttempt).node_count == 4
    assert world.tell(ScaleRequested(by="me", nodes=4)) == []


def test_scale_down_keeps_what_those_hold_that_go_and_then_lets_them_go() -> None:
    world = elastic()
    stop = only(world.tell(ScaleRequested(by="me", nodes=1)), StopAttempt)
    assert stop.keeps == "elsewhere" and world.state.target == 2
    assert only(world.all_stopped(), StartAttempt).node_count == 2
    assert "c" in world.state.nodes, "until training has gone on"
    attempt = world.state.attempt
    world.train(step=20, restored=10)
    assert "c" not in world.state.nodes and world.state.attempt == attempt
    assert lose(world, "c") == [], "it is let go, and not replaced"
    assert world.state.notes[-1].text == "spare c is released: me asked for 2 nodes"
    assert world.state.asked == 0


@pytest.mark.parametrize(
    ("batch", "told"),
    [
        ("keep_global_batch", "each step has as many samples as on 3 nodes"),
        ("scale_lr", "the learning rate is multiplied by 0.6667"),
    ],
)
def test_the_incident_tells_what_it_means_for_the_batch_and_after_which_step_it_was(
    batch: str, told: str
) -> None:
    world = elastic(batch=batch)
    world.tell(ScaleRequested(by="me", nodes=2))
    stopped = AttemptStopped(attempt=1, store=world.store(), progress=Progress(step=17))
    only(world.tell(stopped), StartAttempt)
    (incident,) = world.state.incidents
    assert incident.step == 17
    assert told in [done.reason for done in incident.actions if done.action == "Batch"]


def test_nothing_is_claimed_of_the_batch_of_a_script_that_makes_it_itself() -> None:
    limits: dict[str, float | str] = {**ELASTIC, "batch": "keep_global_batch"}
    world = World(**limits)
    world.submit(instrumented=False)
    world.tell(MilestoneReached(attempt=1, milestone=Milestone.STARTED))
    world.tell(ScaleRequested(by="me", nodes=2))
    only(world.all_stopped(), StartAttempt)
    (incident,) = world.state.incidents
    (told,) = [done.reason for done in incident.actions if done.action == "Batch"]
    assert told.startswith("the script, which does not use holdfast.train, sets its batch")


def test_a_large_step_down_goes_by_as_many_nodes_as_memory_survives() -> None:
    world = elastic(node_count=4, min_nodes=1)
    world.add("d")
    world.train(step=10)
    sizes = []
    world.tell(ScaleRequested(by="me", nodes=1))
    while world.state.phase is Phase.RECOVERING:
        sizes.append(only(world.all_stopped(), StartAttempt).node_count)
        world.train(step=20, restored=20)
    assert sizes == [3, 2, 1]
    assert set(world.state.nodes) == {"a"}
    assert world.state.notes[-1].text.endswith("is released: me asked for 1 node")


def test_nodes_that_are_let_go_are_fenced_once() -> None:
    world = elastic()
    world.tell(ScaleRequested(by="me", nodes=2))
    world.all_stopped()
    seen: list[AnyAction] = []
    tell = world.tell
    world.tell = lambda *a, **k: (seen.extend(found := tell(*a, **k)), found)[1]  # type: ignore
    world.train(step=20, restored=10)
    assert only(seen, Fence).node == "c" and not only(seen, Fence).blamed


def test_a_job_that_waits_takes_the_size_that_was_asked_for() -> None:
    world = World(**ELASTIC)
    world.tell(JobSubmitted())
    world.add("a")
    world.add("b")
    actions = world.tell(ScaleRequested(by="me", nodes=2))
    assert only(actions, StartAttempt).node_count == 2


def test_when_new_nodes_are_of_no_use_it_goes_on_without_them() -> None:
    world = elastic()
    world.state.sizing.arrival_s = None
    short(world)
    actions: list[AnyAction] = []
    for name in ("d", "e", "f"):
        world.tell(NodeJoined(node=name, name=name, address="127.0.0.1", workers=1))
        actions = world.tell(NodeUnfit(node=name, why="its disk is broken"))
    assert only(actions, StartAttempt).node_count == 2


def test_who_is_asked_to_stop_while_it_grows_stops() -> None:
    world = shrunk()
    world.add("d")
    reach(world, grow_at(world))
    world.tell(StopRequested(by="me"))
    assert only(world.all_stopped(), EndJob).outcome is Outcome.STOPPED


def test_nobody_grows_while_an_incident_is_open_or_ranks_are_done() -> None:
    world = shrunk()
    world.tell(world.exited("a", 0, exit_code=0))
    world.add("d")
    assert world.state.sizing.grow_deadline is None


def test_a_script_that_reports_nothing_is_started_again_in_the_new_size() -> None:
    world = World(**ELASTIC)
    world.submit(instrumented=False)
    started = MilestoneReached(attempt=1, milestone=Milestone.STARTED)
    world.tell(started)
    world.state.sizing.arrival_s = 1000.0
    lose(world, "b")
    start = only(world.recover(cause="none", summary="", rank=None), StartAttempt)
    assert (start.node_count, start.attempt) == (2, 2)
    for milestone in (Milestone.STARTED, Milestone.OUTPUT):
        world.tell(MilestoneReached(attempt=2, milestone=milestone))
    world.tell(DeadlinePassed(), after_s=1000.0)
    assert only(world.add("d"), StopAttempt)
    assert only(world.all_stopped(), StartAttempt).node_count == 3


def test_more_nodes_are_asked_for_once_however_often_somebody_asks() -> None:
    world = elastic()
    asked = [world.tell(ScaleRequested(by="me", nodes=4)) for _ in range(3)]
    assert [kinds(actions) for actions in asked] == [["AskNodes"], [], []]
    assert world.state.wanted == 4
