"""The ledger as a ribbon: stretches of a span of time, few enough for a screen. Pure."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from holdfast.goodput import Bucket, Ledger, LedgerInterval

STRETCHES_MAX = 1500


class RibbonStretch(NamedTuple):
    """Milliseconds since the epoch. `bucket` is what most of it was; `mixed`: and more besides."""

    start_ms: int
    end_ms: int
    bucket: str
    attempt: int
    incident: int | None
    mixed: bool = False


def ribbon(ledger: Ledger, begin_ms: int, end_ms: int) -> list[RibbonStretch]:
    """Of what lies in that span; neighbours that are too short to be seen are drawn together."""
    inside = [
        RibbonStretch(
            max(i.start_ms, begin_ms), min(i.end_ms, end_ms), i.bucket, i.attempt, i.incident
        )
        for i in _within(ledger.intervals, begin_ms, end_ms)
    ]
    if len(inside) <= STRETCHES_MAX:
        return inside
    return list(_together(inside, max(1, (end_ms - begin_ms) // STRETCHES_MAX)))


def _within(
    intervals: Sequence[LedgerInterval], begin_ms: int, end_ms: int
) -> Iterable[LedgerInterval]:
    return (i for i in intervals if i.end_ms > begin_ms and i.start_ms < end_ms)


def _together(stretches: Iterable[RibbonStretch], least_ms: int) -> Iterable[RibbonStretch]:
    """Runs of stretches that are at least so long, those that are long by themselves alone."""
    run: list[RibbonStretch] = []
    for one in stretches:
        if one.end_ms - one.start_ms >= least_ms:
            if run:
                yield _joined(run)
            yield one
            run = []
            continue
        run.append(one)
        if run[-1].end_ms - run[0].start_ms >= least_ms:
            yield _joined(run)
            run = []
    if run:
        yield _joined(run)


def _joined(run: Sequence[RibbonStretch]) -> RibbonStretch:
    """What is not productive shows unless it is a small part: it is looked for."""
    spent: dict[str, int] = {}
    for one in run:
        weight = 1 if one.bucket == Bucket.PRODUCTIVE else 4
        spent[one.bucket] = spent.get(one.bucket, 0) + weight * (one.end_ms - one.start_ms)
    bucket = max(spent, key=lambda name: spent[name])
    incident = next((one.incident for one in run if one.incident is not None), None)
    mixed = len(spent) > 1
    return RibbonStretch(run[0].start_ms, run[-1].end_ms, bucket, run[-1].attempt, incident, mixed)
