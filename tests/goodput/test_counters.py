"""Counters from the journal never step back, and a new controller goes on with the same ones."""

from holdfast.goodput import Bookkeeper, Bucket, JournalCounters
from tests.goodput.journals import START
from tests.goodput.test_ledger import bad_steps, two_incidents

STEPS_BACK = (two_incidents(), bad_steps())


def test_no_counter_steps_back_whatever_the_ledger_takes_back() -> None:
    stepped_back = 0
    for entries in STEPS_BACK:
        books, counters = Bookkeeper(START), JournalCounters()
        before, booked, steps = counters.seconds(), dict(books.certain), 0
        for entry in entries:
            books.add(entry)
            counters.hear(entry, books)
            now = counters.seconds()
            assert all(now[bucket] >= before[bucket] for bucket in now) and counters.steps >= steps
            stepped_back += any(books.certain[bucket] < booked[bucket] for bucket in Bucket)
            before, booked, steps = now, dict(books.certain), counters.steps
    assert stepped_back, "the ledger took something back"


def test_in_the_end_they_are_the_ledger_s() -> None:
    books, counters = Bookkeeper(START), JournalCounters()
    for entry in two_incidents():
        books.add(entry)
        counters.hear(entry, books)
    assert counters.seconds() == books.at(None).seconds()
