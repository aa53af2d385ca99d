"""What only grows, worked out from the journal alone, so that it goes on where a controller begins.

A counter that is scraped may never step back: Prometheus would take that for a new beginning and
count everything twice. The ledger does step back, where steps turn out to be worth nothing, and so
does the furthest step. So each counter is the highest that any beginning of the journal gives. A
controller that replays it comes to the very number that the one before had told.
"""

from holdfast.actions import Entry
from holdfast.events import MilestoneReached, Progressed
from holdfast.goodput.bookkeeper import Bookkeeper
from holdfast.goodput.buckets import Bucket


class JournalCounters:
    """Of the journal up to its newest entry."""

    def __init__(self) -> None:
        self.steps = 0
        self._milliseconds = dict.fromkeys(Bucket, 0)

    def hear(self, entry: Entry, books: Bookkeeper) -> None:
        """The next entry, which `books` have heard."""
        for bucket, now in books.certain.items():
            if now > self._milliseconds[bucket]:
                self._milliseconds[bucket] = now
        match entry.event:
            case Progressed():
                self.steps = max(self.steps, entry.event.progress.step or 0)
            case MilestoneReached():
                self.steps = max(self.steps, entry.event.step or 0)
            case _:
                pass

    def seconds(self) -> dict[str, float]:
        """Every bucket's."""
        return {str(bucket): ms / 1000 for bucket, ms in self._milliseconds.items()}
