"""When a snapshot is to be saved to a durable tier: at fixed times, or by cost and failure rate.

Memory and the copies on other nodes answer nearly all failures. A durable tier is for those that
take these too, so its mean time between failures is a multiple of the job's: a rank's whole node
and its copies, a cluster event, a disaster. With it and what a save costs, Daly's formula gives the
interval. Each tier has bounds, because the rates are rough and nobody wants a checkpoint a week
old. Pure: the clock is an argument. Rank 0 asks, the other ranks hear of it in the fence.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from holdfast.checkpoint.settings import CheckpointSettings
from holdfast.checkpoint.storage_page import SaveStatus
from holdfast.checkpoint.tiers import Tier
from holdfast.goodput.formulas import daly_s

DEFAULT_MTTF_S = 86_400.0  # nothing measured, nothing said: a failure a day
BACKGROUND_SHARE = 0.02  # of a save's duration that training loses to it: memory and disk bandwidth
FIRST_S = 60.0  # a first one comes early: it shows that storage works, and jobs die young
RETRY_S = 10.0  # after a failed save; doubled each time
DOUBLINGS_MAX = 6


class Bounds(NamedTuple):
    """How one tier differs from the others."""

    rarity: float  # failures of the job per failure that takes all quicker tiers
    least_s: float
    most_s: float


BOUNDS = {
    Tier.LOCAL: Bounds(3.0, 60.0, 600.0),
    Tier.SHARED: Bounds(10.0, 600.0, 3_600.0),
    Tier.ARCHIVE: Bounds(100.0, 3_600.0, 43_200.0),
}


def interval_s(tier: Tier, save_s: float, stall_s: float, mttf_s: float | None) -> float:
    """Seconds between two saves to this tier.

    `save_s` is what one save took in the background, `stall_s` what the snapshot for it keeps
    training waiting, `mttf_s` the mean time between failures of the job. Source of the formula:
    `goodput.formulas.daly_s`; the cost of a save is stall + BACKGROUND_SHARE · duration. Never
    shorter than two saves, so that one is always over before the next.
    """
    rarity, least_s, most_s = BOUNDS[tier]
    cost_s = stall_s + BACKGROUND_SHARE * save_s
    best_s = daly_s(cost_s, (mttf_s or DEFAULT_MTTF_S) * rarity)
    return max(min(max(best_s, least_s), most_s), 2 * save_s)


class CheckpointSchedule:
    """Which tiers the next snapshot is for.

    `_last` is when each one was last asked for, as (seconds, step); what earlier attempts on this
    node have saved counts, or a job that restarts often would never save anything.
    """

    def __init__(
        self, settings: CheckpointSettings, saved: Mapping[Tier, SaveStatus], now: float, step: int
    ) -> None:
        """`now` is monotonic, `step` is where this attempt begins."""
        self._settings = settings
        self._began = now
        self._last = {tier: (saved[tier].at or None, step) for tier in settings.tiers}

    def due(
        self, now: float, step: int, saved: Mapping[Tier, SaveStatus], stall_s: float
    ) -> frozenset[Tier]:
        """Tiers that the snapshot after `step` completed steps is for."""
        due = (t for t in self._last if self._is_due(t, now, step, saved[t], stall_s))
        return frozenset(due)

    def asked(self, tiers: Iterable[Tier], now: float, step: int) -> None:
        """A snapshot after `step` completed steps has been taken for these."""
        self._last |= {tier: (now, step) for tier in tiers if tier in self._last}

    def every_s(self, tier: Tier, saved: SaveStatus, stall_s: float) -> float:
        """The interval now, in seconds."""
        rule = self._settings.rule(tier)
        if rule is not None and rule.every_s is not None:
            return rule.every_s
        return interval_s(tier, saved.seconds, stall_s, self._settings.mttf_s)

    def _is_due(self, tier: Tier, now: float, step: int, saved: SaveStatus, stall_s: float) -> bool:
        asked_at, _ = self._last[tier]
        wait_s = self.every_s(tier, saved, stall_s)
        if asked_at is None:
            wait_s = min(wait_s, FIRST_S)
        if saved.failures:
            wait_s = min(wait_s, RETRY_S * 2 ** min(saved.failures - 1, DOUBLINGS_MAX))
        return self.passed(tier, step) or now - (asked_at or self._began) >= wait_s

    def passed(self, tier: Tier, step: int) -> bool:
        """Whether a milestone lies between the last checkpoint of this tier and this step."""
        rule = self._settings.rule(tier)
        steps = rule.every_steps if rule is not None else None
        return steps is not None and step // steps > self._last[tier][1] // steps
