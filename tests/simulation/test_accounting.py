"""The referee of the books objects to a ledger that is not true, and to no other."""

from collections.abc import Sequence

import msgspec

from holdfast.controller.state import IncidentRecord
from holdfast.goodput import Bucket, Ledger
from holdfast.goodput.books import NO_STALLS, Books
from holdfast.goodput.ledger import close_books
from holdfast.simulation.accounting import Accounting, AttemptKnown, TimeSpent
from holdfast.simulation.tempo import Tempo


def ledger(productive_ms: int = 60_000, again_ms: int = 0, *, observed: bool = True) -> Ledger:
    books = Books(0, 0)
    books.post(10_000, Bucket.START, 1, None, NO_STALLS)
    books.post(10_000 + productive_ms, Bucket.PRODUCTIVE, 1, None, NO_STALLS)
    books.post(10_000 + productive_ms + again_ms, Bucket.REPLAY, 1, None, NO_STALLS)
    return close_books(books, observed=observed, ended=True)


def billed(fault_ms: int) -> Ledger:
    """The same, and an incident after it."""
    books = Books(0, 0)
    books.post(10_000, Bucket.START, 1, None, NO_STALLS)
    books.post(70_000, Bucket.PRODUCTIVE, 1, None, NO_STALLS)
    books.post(fault_ms, Bucket.OTHER, 1, None, NO_STALLS)
    books.post(fault_ms + 9, Bucket.DETECT, 1, 1, NO_STALLS)
    return close_books(books, observed=True, ended=True)


def judged(
    of: Ledger,
    steps: int = 60,
    known: int = 60,
    over_at: float = 70.0,
    late_s: float = 0.0,
    incidents: Sequence[IncidentRecord] = (),
) -> str:
    """What a referee says of a ledger of one attempt, whose steps take a second from 10 s on."""
    spent = TimeSpent(step_s=1.0)
    spent.trained(1, Tempo(0, 10.0, 1.0), inherited=-1, step=steps, now=over_at)
    spent.ran(1, over_at - 10.0)
    spent.resumed(2, 50, steps)
    referee = Accounting()
    referee.heard(40.0, 40.0 - late_s)
    told = {1: AttemptKnown(known, caught_up=True)}
    return referee.at_end(of, told, spent, incidents, one_clock=True)


def test_a_ledger_that_adds_up_is_no_foul() -> None:
    assert not judged(ledger())


def test_more_productive_time_than_steps_took_is_a_foul() -> None:
    assert "60.0 s of attempt 1 are productive, steps took 50.0 s" in judged(ledger(), steps=50)
    assert not judged(ledger(), steps=50, late_s=9.5)  # booked later than it was


def test_steps_that_are_counted_as_new_twice_are_a_foul() -> None:
    spent = TimeSpent(step_s=1.0)
    for attempt in (1, 2):
        spent.trained(attempt, Tempo(0, 10.0, 1.0), inherited=-1, step=30, now=40.0)
    books = Books(0, 0)
    books.post(30_000, Bucket.PRODUCTIVE, 1, None, NO_STALLS)
    books.post(60_000, Bucket.PRODUCTIVE, 2, None, NO_STALLS)
    twice = close_books(books, observed=True, ended=True)
    told = {1: AttemptKnown(30, True), 2: AttemptKnown(30, True)}
    how = Accounting().at_end(twice, told, spent, [], one_clock=True)
    assert "60.0 s are productive, new steps took 30.0 s" in how


def killed(steps_lost: int = 0) -> IncidentRecord:
    return IncidentRecord(
        id=1,
        cause="worker-killed",
        summary="",
        node="n0",
        rank=0,
        attempt=1,
        step=60,
        started_at=70.0,
        detected_at=70.0,
        steps_lost=steps_lost,
    )


def test_incidents_and_bills_that_do_not_belong_together_are_a_foul() -> None:
    incidents = [killed()]
    assert not judged(billed(70_000), incidents=incidents)
    assert "counts 0 incidents, the controller 1" in judged(ledger(), incidents=incidents)
    assert "counts 1 incidents, the controller 0" in judged(billed(70_000))
    assert judged(billed(70_001), incidents=incidents) == "bill 1 is not that of incident 1"


def test_an_incident_that_cost_more_steps_than_were_done_again_is_a_foul() -> None:
    incident = killed(steps_lost=10)
    assert not judged(billed(70_000), incidents=[incident])
    more = msgspec.structs.replace(incident, steps_lost=11)
    assert (
        judged(billed(70_000), incidents=[more]) == "incident 1 cost 11 steps, 10 were done again"
    )


def test_time_in_which_nothing_was_done_again_is_a_foul_where_it_is_called_so() -> None:
    assert "30.0 s of attempt 1 are for steps done again" in judged(ledger(again_ms=30_000))
    assert not judged(ledger(again_ms=1_500)), "a step that is cut short"
    assert not judged(ledger(40_000, again_ms=20_000), known=40), "steps that nobody heard of"


def test_a_script_that_tells_no_steps_is_productive_while_it_runs_and_no_longer() -> None:
    assert not judged(ledger(observed=False))
    how = judged(ledger(productive_ms=90_000, observed=False))
    assert "90.0 s of attempt 1 are productive, and it ran for 60.0 s" in how


def test_buckets_that_do_not_sum_to_the_wall_time_are_a_foul() -> None:
    longer = msgspec.structs.replace(ledger(), end_ms=70_001)
    assert "sum to 70000 ms of 70001" in judged(longer)


def test_a_gap_between_intervals_is_a_foul() -> None:
    first, second = ledger().intervals
    gap = msgspec.structs.replace(ledger(), intervals=(first._replace(end_ms=9_999), second))
    assert "do not touch" in judged(gap)
