"""Between controller and nodes: terms, and regressions that the simulation found."""

import msgspec

from holdfast.actions import Diagnose, Dismiss, Fence, StopAttempt, Survey
from holdfast.controller import Controller, Limits
from holdfast.controller.state import Node
from holdfast.events import (
    AnyEvent,
    AttemptStopped,
    Broken,
    CheckpointFailed,
    Diagnosed,
    JobSubmitted,
    LastEntered,
    LossPlateaued,
    Milestone,
    MilestoneReached,
    NodeJoined,
    NodeLost,
    NodeLostReason,
    NodeReady,
    NumbersBroke,
    OrdersLost,
    Progress,
    Quantity,
    Store,
    Surveyed,
    UpdatePrepared,
    UpdateRequested,
    WorkerError,
    WorkerExited,
)
from holdfast.messages import (
    Hello,
    Leave,
    Report,
    Start,
    Stop,
    UseVersion,
    WorkerReport,
    WorkersStopped,
)
from holdfast.shell.bridge import Bridge


def two_nodes_recovering() -> Controller:
    """A job of two nodes, whose first attempt has just failed."""
    controller = Controller(Limits(node_count=2, restart_grace_s=30.0))
    joined = [NodeJoined(node=n, name=n, address="h", workers=1) for n in ("a", "b")]
    ready = [NodeReady(node=n, store=Store("h", 1, True)) for n in ("a", "b")]
    failed = WorkerExited(node="a", attempt=1, rank=0, exit_code=1)
    events: list[AnyEvent] = [JobSubmitted(), *joined, *ready, failed]
    for event in events:
        controller.handle(event, 1.0)
    return controller


def two_nodes_training() -> Controller:
    """The same before."""
    controller = Controller(Limits(node_count=2))
    joined = [NodeJoined(node=n, name=n, address="h", workers=1) for n in ("a", "b")]
    ready = [NodeReady(node=n, store=Store("h", 1, True)) for n in ("a", "b")]
    stepped = MilestoneReached(attempt=1, milestone=Milestone.CAUGHT_UP, ago_s=0.0, step=1)
    events: list[AnyEvent] = [JobSubmitted(), *joined, *ready, stepped]
    for event in events:
        controller.handle(event, 1.0)
    return controller


def test_a_member_that_never_connects_is_lost_since_the_others_wait_for_it() -> None:
    """A controller that has just begun does not know since when it is silent."""
    controller = two_nodes_training()
    assert controller.state.ranks[1] == "b"
    bridge = Bridge(controller.state, 5.0, 20.0)
    bridge.hello(hello("a"), 20.0)
    for node in ("b", "joining"):
        bridge.expect(node, 24.0)
    waits = msgspec.structs.replace(page(0), progress=Progress(step=9, step_ago_s=13.0))
    bridge.report(Report(node="a", attempt=1, workers=(waits,)), 21.0)
    events = bridge.tick(25.0)
    lost = {event.node: event.ago_s for event in events if isinstance(event, NodeLost)}
    assert lost == {"b": 17.0, "joining": 0.0}
    other = Bridge(controller.state, 5.0, 20.0)
    other.expect("b", 24.0)
    assert [e.ago_s for e in other.tick(25.0) if isinstance(e, NodeLost)] == [5.0]  # since it began


def hello(node: str) -> Hello:
    return Hello(
        protocol=1, node=node, name=node, address="h", workers=1, pid=1, attempt=1, running=True
    )


def test_a_node_that_reconnects_gets_the_grace_time_of_the_order_not_a_longer_one() -> None:
    bridge = Bridge(two_nodes_recovering().state, 5.0, 1.0)
    bridge.carry_out(StopAttempt(attempt=1, grace_s=0.0, reason="again"), 1.0)
    bridge.hello(hello("a"), 1.5)
    assert bridge.orders_for("a") == [Stop(attempt=1, grace_s=0.0)]


def test_a_node_that_reconnects_is_asked_for_its_last_snapshot_as_the_others_were() -> None:
    bridge = Bridge(two_nodes_recovering().state, 5.0, 1.0)
    planned = StopAttempt(attempt=1, grace_s=9.0, keeps="here", reason="update")
    orders, _ = bridge.carry_out(planned, 1.0)
    bridge.hello(hello("a"), 1.5)
    assert bridge.orders_for("a") == [Stop(attempt=1, grace_s=9.0, keeps="here")]
    assert {order for _, order in orders} == {Stop(attempt=1, grace_s=9.0, keeps="here")}


def test_every_order_carries_the_term_of_its_controller_also_one_that_is_repeated() -> None:
    state = two_nodes_recovering().state
    bridge = Bridge(state, 5.0, 1.0, term=9)
    orders = bridge.carry_out(StopAttempt(attempt=1, grace_s=0.0, reason="x"), 1.0)[0]
    orders += [("a", order) for order in bridge.orders_for("a")]
    assert state.start is not None
    orders += bridge.carry_out(state.start, 1.0)[0]
    orders += bridge.carry_out(Dismiss(node="a", reason="x"), 1.0)[0]
    orders += bridge.carry_out(Fence(node="a", reason="x"), 1.0)[0]
    kinds = [type(order) for _, order in orders]
    assert kinds == [Stop, Stop, Stop, Start, Start, Leave, Leave]
    assert {order.term for _, order in orders if isinstance(order, Stop | Start | Leave)} == {9}


def test_whoever_waits_keeps_the_version_ready_that_trains_also_a_node_that_still_starts() -> None:
    controller = Controller(Limits(node_count=1, spare_count=2))
    joined = [NodeJoined(node=n, name=n, address="h", workers=1) for n in ("a", "b", "late")]
    ready = [NodeReady(node=n, store=Store("h", 1, True)) for n in ("a", "b")]
    asked = UpdateRequested(by="me", id="x", sets={"lr": "0.1"})
    stepped = MilestoneReached(attempt=1, milestone=Milestone.FIRST_STEP)
    prepared = UpdatePrepared(version=2, ready_count=2)
    stopped = AttemptStopped(attempt=1, store=Store("h", 2, True))
    events: list[AnyEvent] = [JobSubmitted(), *joined, *ready, stepped, asked, prepared, stopped]
    for event in events:
        controller.handle(event, 1.0)
    state = controller.state
    assert state.start is not None and state.start.version.number == 2
    bridge = Bridge(state, 5.0, 1.0)
    told = bridge.carry_out(state.start, 1.0)[0]
    used = {node: order.version for node, order in told if isinstance(order, UseVersion)}
    assert used == {"b": state.version, "late": state.version}
    assert bridge.orders_for("late") == [UseVersion(version=state.version)]


def page(rank: int, phase: str = "step") -> WorkerReport:
    return WorkerReport(rank=rank, pid=1, progress=Progress(step=9), milestones={}, phase=phase)


def test_who_trains_is_what_the_ranks_said_last_without_those_that_have_left() -> None:
    controller = two_nodes_recovering()
    bridge = Bridge(controller.state, 5.0, 1.0)
    order = Survey(attempt=1, reason="rank 0 left")
    assert bridge.carry_out(order, 2.0) == ([], [Surveyed(attempt=1, training_count=0)])
    for node, rank in (("a", 0), ("b", 1)):
        bridge.report(Report(node=node, attempt=1, workers=(page(rank),)), 2.0)
    controller.state.finished.add(0)
    assert bridge.carry_out(order, 2.0) == ([], [Surveyed(attempt=1, training_count=1)])
    left = Report(node="b", attempt=1, workers=(page(1, "finished"),))
    bridge.report(left, 2.1)
    assert bridge.carry_out(order, 2.2) == ([], [Surveyed(attempt=1, training_count=0)])


def test_the_verdict_knows_what_the_pages_of_all_ranks_say() -> None:
    """Rank 0 waited until the time was up; rank 1 was loading data and said nothing."""
    controller = two_nodes_recovering()
    bridge = Bridge(controller.state, 5.0, 1.0)
    for node, rank, phase in (("a", 0, "step"), ("b", 1, "data")):
        bridge.report(Report(node=node, attempt=1, workers=(page(rank, phase),)), 2.0)
    waited = WorkerError(
        type="RuntimeError", message="Timed out waiting 4000ms for recv operation to complete"
    )
    exits = (WorkerExited(node="a", attempt=1, rank=0, exit_code=1, error=waited),)
    _, (verdict,) = bridge.carry_out(Diagnose(attempt=1, exits=exits, reason="stopped"), 3.0)
    assert isinstance(verdict, Diagnosed)
    assert (verdict.cause, verdict.rank) == ("hang", 1)


def test_collectives_of_ranks_that_were_stopped_reach_the_verdict_and_not_the_next_one() -> None:
    controller = two_nodes_recovering()
    bridge = Bridge(controller.state, 5.0, 1.0)
    orders, _ = bridge.carry_out(StopAttempt(attempt=1, grace_s=0.0, look=True, reason="x"), 1.0)
    assert all(isinstance(order, Stop) and order.look for _, order in orders)
    odd = LastEntered(group="0", number=9, kind="barrier", due="all_reduce float[7]")
    bridge.fact("b", WorkersStopped(node="b", attempt=1, store=None, entered={1: (odd,)}), 2.0)
    clue = "op.preamble.length <= op.nbytes. 65536 vs 1348"
    exits = (WorkerExited(node="a", attempt=1, rank=0, exit_code=None, signal=6, clue=clue),)
    order = Diagnose(attempt=1, exits=exits, reason="stopped")
    _, (verdict,) = bridge.carry_out(order, 3.0)
    assert isinstance(verdict, Diagnosed)
    assert (verdict.cause, verdict.rank) == ("collective-mismatch", 1)
    assert controller.state.start is not None
    bridge.carry_out(controller.state.start, 4.0)
    _, (verdict,) = bridge.carry_out(order, 5.0)
    assert isinstance(verdict, Diagnosed) and verdict.rank == 0


def broken(rank: int, step: int) -> WorkerReport:
    what = Broken(step=step, what=Quantity.LOSS, value="nan")
    return msgspec.structs.replace(page(rank), broke=what, loss=float("nan"))


def test_bad_numbers_are_told_ahead_of_progress_and_of_exits() -> None:
    """Else steps that were no numbers would count as done, or the job as finished."""
    reached = {Milestone.STARTED: 0.0}
    for heard in ("report", "exit"):
        bridge = Bridge(Controller(Limits(node_count=1)).state, 5.0, 1.0)
        bridge.progress.begin(1, 1, 1.0)
        look = msgspec.structs.replace(broken(0, 7), milestones=reached)
        events = bridge.report(Report(node="a", attempt=1, workers=(look,)), 100.0)
        if heard == "exit":
            fresh = Bridge(Controller(Limits(node_count=1)).state, 5.0, 1.0)
            exited = WorkerExited(node="a", attempt=1, rank=0, exit_code=0, broke=look.broke)
            events = fresh.fact("a", exited, 100.0)
        assert isinstance(events[0], NumbersBroke) and len(events) >= 2


def test_a_loss_that_stays_where_it_is_is_told_where_the_job_asks_for_that() -> None:
    steps = [
        Report(
            node="a", attempt=1,
            workers=(msgspec.structs.replace(page(0), progress=Progress(step=step), loss=2.0),),
        )
        for step in range(40)
    ]  # fmt: skip
    for window, told in ((0, 0), (20, 1)):
        bridge = Bridge(Controller(Limits(plateau_steps=window)).state, 5.0, 1.0)
        events = [event for report in steps for event in bridge.report(report, 1.0)]
        assert sum(isinstance(event, LossPlateaued) for event in events) == told


def test_the_verdict_on_bad_numbers_is_of_all_ranks_whoever_was_heard_first() -> None:
    bridge = Bridge(two_nodes_recovering().state, 5.0, 1.0)
    for node, rank, step in (("b", 1, 8), ("a", 0, 7)):
        bridge.report(Report(node=node, attempt=1, workers=(broken(rank, step),)), 2.0)
    _, (verdict,) = bridge.carry_out(Diagnose(attempt=1, exits=(), reason="stopped"), 3.0)
    assert isinstance(verdict, Diagnosed)
    assert (verdict.cause, verdict.rank, verdict.step) == ("nan", 0, 7)
    assert not (verdict.user_error or verdict.environment or verdict.final)


def test_a_controller_that_was_stopped_for_a_while_still_waits_for_answers() -> None:
    bridge = Bridge(two_nodes_recovering().state, 1000.0, 1.0)
    bridge.carry_out(StopAttempt(attempt=1, grace_s=0.0, reason="x"), 1.0)
    bridge.forgive(50.0, 45.0, 45.0)
    assert bridge.tick(50.0) == []
    assert [event.node for event in bridge.tick(57.0) if hasattr(event, "node")] == ["a", "b"]


def test_a_node_whose_hello_waits_to_be_decided_is_not_blamed_for_a_controller_that_stood() -> None:
    """It is in nobody's state yet, and has given no sign of life that anybody could have heard."""
    bridge = Bridge(two_nodes_recovering().state, 5.0, 1.0)
    bridge.hello(hello("new"), 1.0)
    bridge.forgive(50.0, 49.0, 54.0)
    assert bridge.tick(54.0) == []
    assert [event.node for event in bridge.tick(56.0) if isinstance(event, NodeLost)] == ["new"]


def test_a_node_that_was_given_up_is_not_named_again_whatever_it_still_says() -> None:
    controller = two_nodes_recovering()
    bridge = Bridge(controller.state, 5.0, 1.0)
    controller.handle(NodeLost(node="a", reason=NodeLostReason.SILENT, detail="x"), 2.0)
    bridge.heard("a", 3.0)
    bridge.report(Report(node="a", attempt=1, workers=()), 3.0)
    assert bridge.tick(60.0) == []


def test_storage_that_fails_on_every_node_is_told_once_for_each_try() -> None:
    bridge = Bridge(two_nodes_recovering().state, 5.0, 1.0)

    def failed(node: str, failures: int = 1, step: int = 40) -> CheckpointFailed:
        return CheckpointFailed(
            node=node, tier="shared", attempt=1, step=step, why="away", failures=failures
        )

    heard = [failed("a"), failed("b"), failed("b", 2), failed("a", 2), failed("a", step=50)]
    told = [event for fact in heard for event in bridge.fact("a", fact, 1.0)]
    assert told == [failed("a"), failed("b", 2), failed("a", step=50)]


def test_progress_is_told_ahead_of_the_first_exit_and_of_the_first_failure_only() -> None:
    """Pages change all the time: ahead of each exit it would be told once for each rank."""
    bridge = Bridge(two_nodes_recovering().state, 5.0, 1.0)

    def told(rank: int, exit_code: int, step: int) -> list[str]:
        for node, other in (("a", 0), ("b", 1)):
            look = msgspec.structs.replace(page(other), progress=Progress(step=step))
            bridge.report(Report(node=node, attempt=1, workers=(look,)), 2.0)
        exited = WorkerExited(node="ab"[rank], attempt=1, rank=rank, exit_code=exit_code)
        return [type(event).__name__ for event in bridge.fact("ab"[rank], exited, 2.0)]

    assert told(0, 0, step=9) == ["Progressed", "WorkerExited"]
    assert told(1, 0, step=10) == ["WorkerExited"]
    assert told(0, 1, step=11) == ["Progressed", "WorkerExited"]
    assert told(1, 1, step=12) == ["WorkerExited"]


def test_a_node_of_which_a_former_controller_knew_more_stops_and_offers_a_fresh_store() -> None:
    """What it told is acknowledged, and the lines that said so are lost."""
    bridge = Bridge(two_nodes_recovering().state, 5.0, 1.0, term=3)
    told = msgspec.structs.replace(hello("c"), ordered=9, fenced=8, ready=True)
    events = bridge.hello(told, 2.0)
    assert events is not None
    assert [type(event) for event in events] == [OrdersLost, NodeJoined]
    assert bridge.orders_for("c") == [Stop(attempt=9, grace_s=0.0, term=3)]
    store = Store("h", 7, True)
    early, late = (WorkersStopped(node="c", attempt=n, store=store) for n in (8, 9))
    assert bridge.fact("c", early, 3.0) == []
    late = msgspec.structs.replace(late, warm=False)
    assert bridge.fact("c", late, 3.0) == [NodeReady(node="c", store=store, warm=False)]


def test_such_a_node_that_reconnects_is_told_the_order_that_its_answer_is_waited_for() -> None:
    """An answer about an older attempt does not count, and it would be given up as late."""
    bridge = Bridge(two_nodes_recovering().state, 5.0, 1.0, term=3)
    bridge.hello(msgspec.structs.replace(hello("a"), ordered=1), 1.5)
    bridge.hello(msgspec.structs.replace(hello("c"), ordered=1, ready=True), 2.0)
    state = bridge._state
    state.nodes["c"] = Node(node="c", name="c", address="h", workers=1)
    bridge.carry_out(StopAttempt(attempt=2, grace_s=9.0, reason="update"), 3.0)
    assert bridge.orders_for("c") == [Stop(attempt=2, grace_s=9.0, term=3)]


def test_a_new_node_that_was_told_nothing_is_told_nothing() -> None:
    bridge = Bridge(two_nodes_recovering().state, 5.0, 1.0)
    new = msgspec.structs.replace(hello("c"), attempt=0, running=False)
    events = bridge.hello(new, 2.0)
    assert events is not None and [type(event) for event in events] == [NodeJoined]
    assert bridge.orders_for("c") == []
