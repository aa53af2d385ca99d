"""Time in which nothing of a node ran, in the books."""

import msgspec
import pytest

from holdfast.events import JobSubmitted, Milestone, Progress, Progressed
from holdfast.goodput import Bucket, ledger
from tests.goodput.journals import (
    START,
    assign,
    bring_up,
    check,
    end,
    exited,
    heard,
    journal,
    progressed,
    reached,
    start,
)


@pytest.mark.parametrize("seen", [Milestone.OUTPUT, Milestone.STEPPED])
def test_nor_is_it_where_a_script_reports_no_steps(seen: Milestone) -> None:
    """What a laptop slept was productive in the books of a plain script."""
    slept = Progressed(attempt=1, progress=Progress(paused_s=30.0))
    lines = (
        heard(0, JobSubmitted(), *assign("n0"), start(1, 1)),
        heard(1, reached(1, Milestone.STARTED)),
        heard(2, reached(1, seen)),
        heard(40, slept),
    )
    books = ledger(START, journal(*lines), START + 40)
    check(books)
    assert books.buckets[Bucket.PAUSED] == 30_000
    over = heard(45, exited(0, 1, code=0, progress=slept.progress), end())
    books = ledger(START, journal(*lines, over), START + 45)
    check(books)
    assert books.buckets[Bucket.PAUSED] == 30_000


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
