"""What one world gave, and what many worlds give together.

A mean is always given with its 95 % confidence interval over the seeds, by Student's t, because the
faults of one world are few. All of it are results of a model.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist, fmean, stdev

import msgspec

CONFIDENCE = 0.95


class CauseTally(msgspec.Struct, frozen=True):
    """What one cause did in a world, or on average."""

    faults: float = 0
    incidents: float = 0  # faults that struck during the recovery from another open none
    lost_s: float = 0.0  # the sum of their bills


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One world. Bucket names are the ledger's; they sum to the horizon."""

    seed: int
    ettr: float
    buckets: dict[str, float]
    causes: dict[str, CauseTally]
    incidents: int = 0
    replaced: int = 0  # nodes whose rank another node took over
    waits: int = 0  # times that training waited for a node, because no spare was ready
    spares_fewest: int = 0  # ready at the worst moment
    restores: dict[str, int] = {}  # by the tier that state came from
    events: int = 0
    journal_bytes: int = 0
    outcome: str | None = None  # None: it still trained at the horizon


class Interval(msgspec.Struct, frozen=True):
    """A mean and its confidence interval."""

    mean: float
    low: float
    high: float

    @property
    def half(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Many worlds: means over the seeds."""

    seeds: int
    ettr: Interval
    buckets: dict[str, float]
    causes: dict[str, CauseTally]
    incidents: float
    replaced: float
    waits: float
    spares_used_most: int
    restores: dict[str, float]
    events: float
    gave_up: int  # worlds in which the job ended before the horizon


def summarize(results: Sequence[Result], spares: int) -> Summary:
    """Means over the worlds; `spares` is what each had."""
    count = len(results)
    return Summary(
        seeds=count,
        ettr=interval([r.ettr for r in results]),
        buckets=_means([r.buckets for r in results]),
        causes=_mean_causes([r.causes for r in results]),
        incidents=fmean(r.incidents for r in results),
        replaced=fmean(r.replaced for r in results),
        waits=fmean(r.waits for r in results),
        spares_used_most=max(spares - r.spares_fewest for r in results),
        restores=_means([{k: float(v) for k, v in r.restores.items()} for r in results]),
        events=fmean(r.events for r in results),
        gave_up=sum(r.outcome is not None for r in results),
    )


def interval(values: Sequence[float]) -> Interval:
    """Mean and 95 % confidence interval; one value alone has an interval without bounds."""
    mean = fmean(values)
    if len(values) < 2:
        return Interval(mean, -math.inf, math.inf)
    half = student_t(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def student_t(freedom: int) -> float:
    """The two-sided 95 % quantile of Student's t.

    Exact for 1 and 2 degrees of freedom, else an expansion around the normal quantile that is
    right to 0.5 %. Source: Abramowitz and Stegun, 26.7.5.
    """
    p = (1 + CONFIDENCE) / 2
    if freedom == 1:
        return math.tan(math.pi * (p - 0.5))
    if freedom == 2:
        return (2 * p - 1) / math.sqrt(2 * p * (1 - p))
    z = NormalDist().inv_cdf(p)
    g1 = (z**3 + z) / 4
    g2 = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    g3 = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    g4 = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92_160
    return z + g1 / freedom + g2 / freedom**2 + g3 / freedom**3 + g4 / freedom**4


def _means(tables: Sequence[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for table in tables for name in table)
    return {name: fmean(table.get(name, 0.0) for table in tables) for name in names}


def _mean_causes(tables: Sequence[dict[str, CauseTally]]) -> dict[str, CauseTally]:
    names = dict.fromkeys(name for table in tables for name in table)
    nothing = CauseTally()
    return {name: _mean_tally(t.get(name, nothing) for t in tables) for name in names}


def _mean_tally(tallies: Iterable[CauseTally]) -> CauseTally:
    rows = [(t.faults, t.incidents, t.lost_s) for t in tallies]
    faults, incidents, lost_s = (fmean(column) for column in zip(*rows, strict=True))
    return CauseTally(faults, incidents, lost_s)
