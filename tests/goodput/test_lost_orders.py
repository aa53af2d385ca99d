"""Incidents have the numbers of the controller, also where its newest lines were lost."""

from collections.abc import Sequence

import pytest

from holdfast.actions import Entry
from holdfast.controller import Controller, Limits, Phase
from holdfast.events import (
    AnyEvent,
    AttemptStopped,
    ControllerResumed,
    DeadlinePassed,
    Diagnosed,
    JobSubmitted,
    NodeJoined,
    NodeReady,
    OrdersLost,
    StopRequested,
    Store,
    WorkerExited,
)
from holdfast.goodput import Bucket, Ledger, ledger
from tests.goodput.journals import START, check, exited

LOST = OrdersLost(node="n0", attempt=5)
RESUMED = ControllerResumed(existing=("n0",), obeyed=5)
ASKED = StopRequested(by="a person")


def stopped(attempt: int) -> AttemptStopped:
    return AttemptStopped(attempt=attempt, store=Store("h", 9, True))


def verdict(attempt: int) -> Diagnosed:
    return Diagnosed(attempt=attempt, cause="node-lost", summary="x", confidence=0.5)


def failed(attempt: int) -> WorkerExited:
    return exited(0, attempt, code=1)


def lived(*events: AnyEvent) -> tuple[Controller, Ledger]:
    """A job of one node that hears these, one each second from the third on."""
    controller, entries = Controller(Limits(node_count=1)), list[Entry]()
    joined = NodeJoined(node="n0", name="n0", address="h", workers=1)
    ready = NodeReady(node="n0", store=Store("h", 1, True))
    for number, event in enumerate((JobSubmitted(), joined, ready, *events)):
        actions = controller.handle(event, START + number)
        entries.append(Entry(number + 1, START + number, event, tuple(actions)))
    books = ledger(START, entries, None)
    check(books)
    return controller, books


MOMENTS: dict[str, Sequence[AnyEvent]] = {
    "while it starts": (),
    "while it is being stopped": (failed(1),),
    "once it is stopped": (failed(1), stopped(1)),
    "after the next one was stopped, too": (failed(1), stopped(1), verdict(1), failed(2)),
}


@pytest.mark.parametrize("lost", [LOST, RESUMED], ids=["a node tells", "a controller knows"])
@pytest.mark.parametrize("before", MOMENTS.values(), ids=MOMENTS)
def test_orders_that_were_lost_are_an_incident_with_a_bill_of_its_own(
    before: Sequence[AnyEvent], lost: AnyEvent
) -> None:
    later = (stopped(5), verdict(5), DeadlinePassed(), failed(6), stopped(6))
    controller, books = lived(*before, lost, *later)
    incidents = controller.state.incidents
    assert [i.cause for i in incidents][-2] == "orders-lost"
    assert sorted(books.bills) == [i.id for i in incidents]
    for one in incidents:
        billed = books.bills[one.id]
        assert billed.fault_ms <= round(one.detected_at * 1000) <= billed.until_ms
    bill = books.bill(len(incidents) - 1)
    assert bill["teardown"] == 1.0 and bill["schedule"] + bill["start"] == 3.0


@pytest.mark.parametrize("lost", [LOST, RESUMED], ids=["a node tells", "a controller knows"])
def test_lost_orders_of_a_job_that_is_to_stop_are_no_incident(lost: AnyEvent) -> None:
    controller, books = lived(ASKED, lost)
    assert controller.state.phase is Phase.CLOSING and not controller.state.incidents
    assert not books.bills and books.buckets[Bucket.TEARDOWN] == 1_000
    controller, books = lived(failed(1), ASKED, lost)
    assert len(controller.state.incidents) == len(books.bills) == 1
