"""Regressions that simulated worlds found, most of them about a controller that comes back."""

import pytest

from holdfast.actions import AnyAction, AskNodes, EndJob, Fence, StartAttempt, StopAttempt
from holdfast.controller import Controller, Limits
from holdfast.controller.invariants import check
from holdfast.events import (
    AnyEvent,
    AttemptStopped,
    ControllerResumed,
    DeadlinePassed,
    Diagnosed,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    NodeLostReason,
    NodeReady,
    OrdersLost,
    Store,
    WorkerExited,
)


def tell(controller: Controller, now: float, *events: AnyEvent) -> list[AnyAction]:
    """The decisions of these facts."""
    actions: list[AnyAction] = []
    for event in events:
        actions += controller.handle(event, now)
        check(controller.state)
    return actions


def joined(node: str) -> NodeJoined:
    return NodeJoined(node=node, name=node, address="h", workers=1)


def ready(node: str, port: int) -> NodeReady:
    return NodeReady(node=node, store=Store("h", port, True))


def test_time_without_a_controller_is_no_time_of_waiting_for_nodes() -> None:
    controller = Controller(Limits(node_count=2, node_wait_s=100.0))
    tell(controller, 0.0, JobSubmitted(), joined("a"), ready("a", 1))
    actions = tell(controller, 900.0, ControllerResumed(existing=("a", "b")))
    assert not [a for a in actions if isinstance(a, EndJob)]
    assert controller.next_deadline() == 1000.0
    assert [type(a) for a in tell(controller, 1000.0, DeadlinePassed())] == [EndJob]


def test_a_node_that_was_given_up_and_still_exists_is_fenced_again() -> None:
    """The old controller may have died between the journal and the fence."""
    controller = Controller(Limits(node_count=2, spare_count=1))
    nodes = [e for i, n in enumerate("abc") for e in (joined(n), ready(n, i))]
    tell(controller, 0.0, JobSubmitted(), *nodes)
    tell(controller, 1.0, NodeLost(node="b", reason=NodeLostReason.SILENT))
    actions = tell(controller, 2.0, ControllerResumed(existing=("a", "b", "c")))
    assert actions[0] == Fence(node="b", reason="silent")


def test_a_store_that_an_attempt_has_used_is_not_fresh_because_it_is_told_again() -> None:
    controller = Controller(Limits(node_count=1))
    tell(controller, 0.0, JobSubmitted(), joined("a"), ready("a", 1))
    tell(controller, 1.0, ControllerResumed(existing=("a",)), ready("a", 1))
    failed = WorkerExited(node="a", attempt=1, rank=0, exit_code=None, signal=9)
    tell(controller, 2.0, failed, AttemptStopped(attempt=1, store=None))
    verdict = Diagnosed(attempt=1, cause="worker-killed", summary="x", confidence=1.0)
    assert tell(controller, 3.0, verdict) == []
    (start,) = tell(controller, 4.0, ready("a", 2))
    assert isinstance(start, StartAttempt)
    assert start.store.port == 2


def test_a_spare_that_was_asked_for_and_never_came_is_asked_for_again() -> None:
    """The old controller may have died before it told the engine; the job trains all the while."""
    controller = Controller(Limits(node_count=2, spare_count=1))
    nodes = [e for i, n in enumerate("ab") for e in (joined(n), ready(n, i))]
    tell(controller, 0.0, JobSubmitted(), *nodes)
    actions = tell(controller, 2.0, ControllerResumed(existing=("a", "b")))
    assert [a.count for a in actions if isinstance(a, AskNodes)] == [1]


def test_a_spare_that_does_not_fit_is_replaced_by_another_but_not_for_ever() -> None:
    controller = Controller(Limits(node_count=1, spare_count=1))
    tell(controller, 0.0, JobSubmitted(), joined("a"), ready("a", 1))
    asked = []
    for number in range(4):
        odd = NodeJoined(node=f"odd-{number}", name="odd", address="h", workers=2)
        asked += [a.count for a in tell(controller, 1.0, odd) if isinstance(a, AskNodes)]
    assert asked == [1], "and the next one later"
    assert controller.next_deadline() == 1.0 + 40.0
    assert not controller.state.ended


def trains_alone() -> Controller:
    controller = Controller(Limits(node_count=1, spare_count=1))
    events = (joined("a"), ready("a", 1), joined("b"), ready("b", 2))
    tell(controller, 0.0, JobSubmitted(), *events)
    assert controller.state.attempt == 1
    return controller


@pytest.mark.parametrize("attempt", [1, 4])
def test_orders_that_were_lost_are_stopped_and_their_numbers_not_given_again(attempt: int) -> None:
    """Attempt 1 was stopped, or 4 was begun, by a controller whose newest lines nobody has."""
    controller = trains_alone()
    (stop,) = tell(controller, 2.0, OrdersLost(node="a", attempt=attempt))
    assert isinstance(stop, StopAttempt) and stop.attempt == attempt
    assert tell(controller, 2.0, OrdersLost(node="b", attempt=attempt)) == []
    stopped = AttemptStopped(attempt=attempt, store=Store("h", 3, True))
    verdict = Diagnosed(attempt=attempt, cause="node-lost", summary="x", confidence=0.5)
    start = tell(controller, 3.0, stopped, verdict)[-1]
    assert isinstance(start, StartAttempt) and start.attempt == attempt + 1
    assert [i.cause for i in controller.state.incidents] == ["orders-lost"]


def test_a_controller_that_knows_of_lost_orders_repeats_no_older_one() -> None:
    controller = trains_alone()
    actions = tell(controller, 2.0, ControllerResumed(existing=("a", "b"), obeyed=3))
    assert [a.attempt for a in actions if isinstance(a, StopAttempt)] == [3]
    assert not [a for a in actions if isinstance(a, StartAttempt)]


def test_stores_of_which_nobody_knows_whether_they_were_used_are_offered_anew() -> None:
    controller = trains_alone()
    tell(controller, 2.0, OrdersLost(node="a", attempt=4))
    assert {n.store for n in controller.state.nodes.values()} == {None}
    assert controller.state.spares == []


def test_orders_that_are_in_the_journal_are_not_lost() -> None:
    controller = trains_alone()
    assert tell(controller, 2.0, OrdersLost(node="a", attempt=0)) == []
