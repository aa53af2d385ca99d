"""Writing the tracked state of this rank into cells of its arena, one snapshot after the other.

Memory for it is found before the first step, or beside it: touching it in `take` would cost many
times the copy itself. A snapshot is taken when its copies have begun, and settled when they are
whole.
"""

import time
from collections.abc import Mapping

from holdfast.checkpoint.arena import Arena, Cell, Key, StatePart
from holdfast.checkpoint.contents import GRADIENTS, LOOP
from holdfast.checkpoint.streams import BackgroundCopier
from holdfast.checkpoint.tensors import Stamp
from holdfast.checkpoint.tiers import SnapshotFlag
from holdfast.errors import Error
from holdfast.profiles import SNAPSHOT
from holdfast.step_profile import named_in_trace
from holdfast.train.gradients import Gradients
from holdfast.train.in_use import SnapshotsInUse
from holdfast.train.loop import LoopPosition
from holdfast.train.placement import Placement
from holdfast.train.snapshot_writer import SnapshotWriter
from holdfast.train.tracked import Tracked

RESERVE_SLACK = 64 * 1024  # bytes: the index grows with the optimizer's state, into half of it


class Capture:
    """`_unsettled` is the private cell, from `take` until copies have settled."""

    def __init__(
        self,
        arena: Arena,
        placement: Placement,
        tracked: Tracked,
        in_use: SnapshotsInUse,
        background: BackgroundCopier | None,
    ) -> None:
        """`background` carries out copies beside training; None: `take` does."""
        self._arena = arena
        self._placement = placement
        self._tracked = tracked
        self._fingerprint = tracked.fingerprint()
        self._in_use = in_use
        self.writer = SnapshotWriter(arena, tracked.place, background)
        self.gradients = Gradients(tracked)
        self.gradients.room, self.gradients.discard = self._has_memory_for, in_use.discard_newest
        self._holds_gradients = False  # the private part that was written last
        self._unsettled: Cell | None = None
        self._expected_bytes = 0  # of the private part, without gradients
        self.private_bytes = 0
        """Of the newest snapshot's private part."""
        self._taking_s = 0.0  # what training waited in `take`

    # ── memory ──

    def reserve(self) -> None:
        """Begin to find all memory. Raises `Error` (not-tracked, snapshot-too-large)."""
        lengths = self.writer.encode(*self._tracked.capture())
        grows = StatePart.SHARED if self._tracked.replicated else StatePart.PRIVATE
        lengths[grows] += self._tracked.coming_bytes()
        self._expected_bytes = lengths[StatePart.PRIVATE]
        self._reserve(lengths)

    def _has_memory_for(self, more_bytes: int) -> bool:
        """Find memory for a private part that is so much larger."""
        try:
            self._reserve({StatePart.PRIVATE: self._expected_bytes + more_bytes})
        except Error:
            return False
        return True

    def _reserve(self, lengths: Mapping[StatePart, int]) -> None:
        slack = {part: RESERVE_SLACK + length // 256 for part, length in lengths.items()}
        sizes = {part: length + slack[part] for part, length in lengths.items()}
        least = {part: length + slack[part] // 2 for part, length in lengths.items()}
        self._arena.reserve(sizes, self._in_use.slots, self.writer.prepare, least)

    # ── a snapshot ──

    def take(self, step: int, flags: SnapshotFlag, label: str, loop: LoopPosition) -> Key:
        """Begin to copy the state after this many completed steps.

        Raises `Error` (not-tracked, snapshot-too-large).
        """
        with named_in_trace(SNAPSHOT):
            return self._take(step, flags, label, loop)

    def _take(self, step: int, flags: SnapshotFlag, label: str, loop: LoopPosition) -> Key:
        began = time.monotonic()
        shared, private = self._tracked.capture()
        kept = self.gradients.keep(last=step >= loop.total)
        private |= {GRADIENTS: kept.tree} if kept.tree else {}
        private |= {LOOP: kept_of} if (kept_of := loop.kept()) else {}
        self._holds_gradients = kept.pending
        lengths = self.writer.encode(shared, private, label=label)
        self.private_bytes = lengths[StatePart.PRIVATE]
        place = self._placement
        key = Key(place.attempt, step)
        stamp = Stamp(key, place.rank, place.world_size, self._fingerprint, flags)
        urgent = bool(flags & SnapshotFlag.URGENT)
        needed, slots = self._in_use.needed(), self._in_use.slots
        self._unsettled = self.writer.write(stamp, needed, slots, urgent=urgent)
        self._taking_s = time.monotonic() - began
        return key

    def guard(self) -> bool:
        """What is copied may change after this; whether it is copied already, or nothing is."""
        if self._unsettled is None:
            return True
        with named_in_trace(SNAPSHOT):
            return self.writer.guard()

    def settle(self) -> Cell | None:
        """Wait until the newest snapshot is whole here; its private cell, None if it was before."""
        private, self._unsettled = self._unsettled, None
        if private is not None:
            with named_in_trace(SNAPSHOT):
                self.writer.settle()
            if self._holds_gradients:
                self.writer.forget()
        return private

    @property
    def waited_s(self) -> float:
        """What training has waited for the newest snapshot."""
        return self._taking_s + self.writer.waited_s

    @property
    def spoiled(self) -> bool:
        """Whether the newest snapshot is not what it should be."""
        return self.writer.torn or self.gradients.spoiled
