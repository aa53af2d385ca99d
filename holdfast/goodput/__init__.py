"""Where the time of a job went: journal entries in, an exact ledger out. Pure."""

from holdfast.goodput.bookkeeper import Bookkeeper, ledger
from holdfast.goodput.books import Bill, LedgerInterval
from holdfast.goodput.buckets import MEANING, Bucket
from holdfast.goodput.counters import JournalCounters
from holdfast.goodput.ledger import Ledger, to_goodput

__all__ = [
    "MEANING",
    "Bill",
    "Bookkeeper",
    "Bucket",
    "JournalCounters",
    "Ledger",
    "LedgerInterval",
    "ledger",
    "to_goodput",
]
