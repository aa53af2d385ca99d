"""How the last stretch of an attempt is booked that ends by itself."""

from holdfast.events import JobSubmitted, Progress
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
    start,
)


def test_who_ends_before_it_has_caught_up_redoes_nothing_after_its_last_step() -> None:
    books = ledger(
        START,
        journal(
            heard(0, JobSubmitted(), *assign("n0", "n1"), start(1)),
            *bring_up(1, 1.0, caught_up=4.0)[:-1],
            heard(20, exited(0, 1, code=0, progress=Progress(step=90, step_ago_s=4.0))),
            heard(21, exited(1, 1, code=0), end()),
        ),
        None,
    )
    check(books)
    assert books.buckets[Bucket.REPLAY] == 12_000
    assert books.buckets[Bucket.OTHER] == 5_000
