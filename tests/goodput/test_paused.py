"""Time in which nothing of a node ran, in the books."""

import msgspec

from holdfast.events import JobSubmitted
from holdfast.goodput import Bucket, ledger
from tests.goodput.journals import (
    START,
    assign,
    bring_up,
    check,
    heard,
    journal,
    progressed,
    start,
)


def test_time_in_which_nothing_ran_is_not_productive() -> None:
    """Waits that were measured meanwhile include it: it is booked once."""
    told = progressed(1, 9, 0.0, data=30.5, snap=0.0)
    paused = msgspec.structs.replace(
        told, progress=msgspec.structs.replace(told.progress, paused_s=30.0)
    )
    books = ledger(
        START,
        journal(
            heard(0, JobSubmitted(), *assign("n0"), start(1, 1)),
            *bring_up(1, 0.0, caught_up=3.0),
            heard(4, progressed(1, 2, 0.0, 0.0, 0.0)),
            heard(40, paused),
        ),
        START + 40,
    )
    check(books)
    assert books.buckets[Bucket.PAUSED] == 30_000
    assert books.buckets[Bucket.PRODUCTIVE] + books.buckets[Bucket.DATA_WAIT] == 7_000
