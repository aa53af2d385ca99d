"""The ledger as it is handed out: closed books, with the ratios that people ask for."""

import msgspec

from holdfast.goodput.books import WINDOW_MS, Bill, Books, LedgerInterval
from holdfast.goodput.buckets import Bucket
from holdfast.goodput.formulas import ettr
from holdfast.status import Goodput


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time went from `start_ms` to `end_ms` (since the epoch).

    `buckets` has every bucket and sums to `wall_ms`; `intervals` cover the wall time without gaps.
    """

    start_ms: int
    end_ms: int
    buckets: dict[Bucket, int]
    intervals: tuple[LedgerInterval, ...]
    bills: dict[int, Bill]  # by the number of the incident, from 1
    ettr: float
    ettr_1h: float  # over the last hour, or over the whole time if that is shorter
    observed: bool  # False: no steps are reported, so a worker is productive while it runs
    ended: bool

    @property
    def wall_ms(self) -> int:
        """Milliseconds from the start to the end."""
        return self.end_ms - self.start_ms

    @property
    def wall_s(self) -> float:
        """Seconds from the start to the end."""
        return self.wall_ms / 1000

    def seconds(self) -> dict[str, float]:
        """Every bucket's seconds by its name."""
        return {str(name): ms / 1000 for name, ms in self.buckets.items()}

    def bill(self, incident: int) -> dict[str, float]:
        """An incident's bill in seconds, without zeros; empty if there is no such incident."""
        found = self.bills.get(incident)
        return {str(name): ms / 1000 for name, ms in found.buckets.items()} if found else {}


def close_books(books: Books, *, observed: bool, ended: bool) -> Ledger:
    """The ledger of books whose cursor is at the end."""
    window = max(books.start, books.cursor - WINDOW_MS)
    return Ledger(
        start_ms=books.start,
        end_ms=books.cursor,
        buckets=books.buckets,
        intervals=tuple(books.intervals),
        bills=books.bills,
        ettr=ettr(books.buckets[Bucket.PRODUCTIVE], books.cursor - books.start),
        ettr_1h=ettr(books.productive_since(window), books.cursor - window),
        observed=observed,
        ended=ended,
    )


def to_goodput(job: str, ledger: Ledger) -> Goodput:
    """The answer of `holdfast goodput`."""
    return Goodput(
        job=job,
        wall_s=ledger.wall_s,
        ettr=ledger.ettr,
        ettr_1h=ledger.ettr_1h,
        buckets=ledger.seconds(),
        observed=ledger.observed,
    )
