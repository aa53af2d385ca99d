"""What is to become of a snapshot: which durable tiers save it, under which name, how urgently.

Rank 0 asks for what is due by the schedule, any script for a named checkpoint, and any node that is
about to go for one at once. Where the snapshot that was to answer turns out to be spoiled, the next
one takes its place.
"""

import logging
import math
import time
from collections.abc import Set as AbstractSet

from holdfast.checkpoint.schedule import CheckpointSchedule
from holdfast.checkpoint.settings import CheckpointSettings
from holdfast.checkpoint.storage_page import SaveStatus, StoragePage
from holdfast.checkpoint.tiers import SnapshotFlag, Tier
from holdfast.train.exchange import Agreed

logger = logging.getLogger(__name__)

NO_FLAG = SnapshotFlag(0)


class SaveRequests:
    """`_again` is what was to become of a snapshot that was given up; `_flagged` and `_labelled`
    the same of the newest one, and its name."""

    def __init__(self, settings: CheckpointSettings, storage_page: StoragePage | None) -> None:
        self._settings = settings
        self._storage_page = storage_page
        self._schedule: CheckpointSchedule | None = None
        self.name: str | None = None
        """What the checkpoint is called that was asked for and has not been taken."""
        self._again = NO_FLAG
        self._flagged = NO_FLAG
        self._labelled: str | None = None
        self._answered_urgent = False  # a snapshot was taken because this node is about to go

    def decide_from(self, step: int) -> None:
        """This rank asks for all of them what is due; the attempt begins at this step."""
        if self._storage_page is not None:
            now = time.monotonic()
            self._schedule = CheckpointSchedule(
                self._settings, self._saved(self._storage_page), now, step
            )

    # ── what is asked for ──

    def ask(self, name: str) -> None:
        """The step under way is to end with a snapshot that is saved under this name."""
        if self.name not in (None, name):
            logger.warning(
                "the checkpoint %s could not be taken yet and is renamed to %s",
                *(self.name, name),
            )
        self.name = name

    @property
    def waiting(self) -> bool:
        """Whether all ranks know of something that a snapshot has to be taken for."""
        return self.name is not None or bool(self._again)

    def due(self, completed: int, stall_s: float) -> AbstractSet[Tier]:
        """Tiers that the snapshot after this step is for; nothing may be on its way to one."""
        if self._schedule is None or self._storage_page is None:
            return frozenset()
        return self._schedule.due(
            time.monotonic(), completed, self._saved(self._storage_page), stall_s
        )

    def is_milestone(self, tier: Tier, completed: int) -> bool:
        """Whether the checkpoint of this step is to be kept for good."""
        return self._schedule is not None and self._schedule.passed(tier, completed)

    def urgent(self) -> bool:
        """Whether this node is about to go and no snapshot has been taken for that yet."""
        urgent = self._storage_page is not None and self._storage_page.urgent
        self._answered_urgent = self._answered_urgent and urgent
        return urgent and not self._answered_urgent

    def hold_ms(self) -> int:
        """For how long training stands still after that snapshot at most; 0: it goes on."""
        return math.ceil(1000 * self._storage_page.hold_s) if self._storage_page is not None else 0

    def intervals(self, stall_s: float) -> list[float]:
        """Seconds between two checkpoints of each tier, as planned now; 0 for one that is not used.
        Empty on ranks that do not decide."""
        if self._schedule is None or self._storage_page is None:
            return []
        saved, used = self._saved(self._storage_page), self._settings.tiers
        every = self._schedule.every_s
        return [every(tier, saved[tier], stall_s) if tier in used else 0.0 for tier in Tier]

    @staticmethod
    def _saved(storage_page: StoragePage) -> dict[Tier, SaveStatus]:
        return {tier: storage_page.of_tier(tier) for tier in Tier}

    # ── what a snapshot gets ──

    def flags(self, agreed: Agreed, completed: int, *, last: bool) -> SnapshotFlag:
        """What is to become of the snapshot that is taken now, but for copies on other nodes."""
        tiers = agreed.tiers | {tier for tier in Tier if self._again & (1 << tier)}
        if agreed.milestone and agreed.tiers:
            self.name = self.name or f"step-{completed}"
        elif self.name is not None:
            tiers |= self._first_of(Tier.ARCHIVE, Tier.SHARED, Tier.LOCAL)
        if agreed.urgent:
            tiers |= self._first_of(Tier.SHARED, Tier.ARCHIVE, Tier.LOCAL)
        if last:
            distant = {Tier.SHARED, Tier.ARCHIVE}.intersection(self._settings.tiers)
            tiers |= distant or set(self._settings.tiers)
        flags = SnapshotFlag(sum(1 << tier for tier in tiers))
        return flags | (SnapshotFlag.URGENT if agreed.urgent else self._again & SnapshotFlag.URGENT)

    def _first_of(self, *tiers: Tier) -> set[Tier]:
        return set([tier for tier in tiers if tier in self._settings.tiers][:1])

    def taken(self, step: int, flags: SnapshotFlag) -> None:
        """The snapshot of this step answers them all."""
        if self._schedule is not None:
            tiers = [tier for tier in Tier if flags & (1 << tier)]
            self._schedule.asked(tiers, time.monotonic(), step)
        if flags & SnapshotFlag.URGENT:
            self._answered_urgent = True
        self._flagged, self._labelled = flags, self.name
        self._again, self.name = NO_FLAG, None

    def give_up(self) -> None:
        """It does not: the next one has to."""
        self._again, self.name = self._flagged, self.name or self._labelled
