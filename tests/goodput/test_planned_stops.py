"""What is booked of an attempt that somebody asks to end, and that saves its last step."""

from holdfast.actions import Outcome, StopAttempt
from holdfast.events import JobSubmitted, Progress, StopRequested
from holdfast.goodput import Bucket, Ledger, ledger
from tests.goodput.journals import (
    START,
    assign,
    bring_up,
    check,
    end,
    heard,
    journal,
    start,
    stop,
    stopped,
)


def books(order: StopAttempt) -> Ledger:
    """Asked to stop at 10, it ends its step at 11.5; all is over at 12."""
    last = Progress(step=9, step_ago_s=0.5)
    lines = [
        heard(0, JobSubmitted(), *assign("n0", "n1"), start(1)),
        *bring_up(1, 0.0, caught_up=3.0),
        heard(10, StopRequested(by="user"), order),
        heard(12, stopped(1, last), end(Outcome.STOPPED)),
    ]
    found = ledger(START, journal(*lines), None)
    check(found)
    assert not found.bills
    return found


def test_the_step_that_a_requested_stop_waits_for_is_training() -> None:
    found = books(StopAttempt(attempt=1, grace_s=30, save=True, reason=""))
    assert found.buckets[Bucket.PRODUCTIVE] == 8500
    assert found.buckets[Bucket.TEARDOWN] == 500, "what is saved of it"


def test_without_a_last_save_it_is_none() -> None:
    found = books(stop(1))
    assert found.buckets[Bucket.PRODUCTIVE] == 7000
    assert found.buckets[Bucket.TEARDOWN] == 2000
