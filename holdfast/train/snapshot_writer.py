"""Getting a snapshot of this rank into its cells: at once, or beside training (`streams`).

What is copied beside training is looked at before it may change, and again when it is over. A
script that has changed it by other means than its optimizers has spoiled the copy: it is `torn`.
"""

import logging
import time
from collections.abc import Callable, Collection
from typing import Any

from holdfast.checkpoint.arena import Arena, Cell, Key, StatePart
from holdfast.checkpoint.streams import BackgroundCopier
from holdfast.checkpoint.tensors import LeafPlace, Stamp, Writer
from holdfast.train.tracked import Tree

logger = logging.getLogger(__name__)


class SnapshotWriter:
    """The shared and the private part of one snapshot after the other."""

    def __init__(
        self,
        arena: Arena,
        place: Callable[[str, Any], LeafPlace],
        background: BackgroundCopier | None,
    ) -> None:
        """`place` is that of `Writer`; `background` copies beside training, if given."""
        self._shared = Writer(arena, StatePart.SHARED, place)
        self._private = Writer(arena, StatePart.PRIVATE, place)
        self._background = background
        # The next forward pass waits for what it changes, which is private; and the engine of a
        # GPU that copies to the host takes all copies in turn, whatever their streams.
        self._by_haste = [self._private, self._shared]
        self._step = 0
        self._guarded = False  # what is being copied may change: it was looked at before
        self._at_once = False  # the next one is not copied beside training
        self._meddled = False  # nor any other: the script changes what it should not
        self._taken_before_s = 0.0  # of `background`, before the newest snapshot
        self.torn = False
        """Whether the newest snapshot is not what it should be."""
        self.waited_s = 0.0
        """How long training has waited for the newest snapshot since `write`."""
        self.taken_s = 0.0
        """What copying it has taken of the cores that training uses, once it has settled."""

    def waits(self, *, urgent: bool) -> bool:
        """Whether training waits for the next snapshot: it is not copied beside it."""
        return self._background is None or self._at_once or self._meddled or urgent

    @property
    def prepare(self) -> Callable[[memoryview], None] | None:
        """Makes memory ready for copies beside training, in any thread; None if it always is."""
        background = self._background
        return background.prepare if background is not None and background.prepares else None

    def encode(self, shared: Tree, private: Tree, label: str = "") -> dict[StatePart, int]:
        """Prepare this state for `write`; returns the sizes of its payloads in bytes.

        Raises `Error` (not-tracked).
        """
        return {
            StatePart.SHARED: self._shared.encode(shared, label=label),
            StatePart.PRIVATE: self._private.encode(private, label=label),
        }

    def write(self, stamp: Stamp, keep: Collection[Key], slots: int, *, urgent: bool) -> Cell:
        """Copy what `encode` prepared into cells that hold nothing of `keep`; returns the private
        one. Both are whole, unless copies are `under_way`, which no urgent ones are."""
        background = None if self.waits(urgent=urgent) else self._background
        self._step, self._guarded, self._at_once, self.torn = stamp.key.step, False, False, False
        self._taken_before_s = background.taken_s if background is not None else 0.0
        self.waited_s = self.taken_s = 0.0
        writers = [self._shared, self._private] if background is None else self._by_haste
        cells = {writer: writer.write(stamp, keep, slots, background) for writer in writers}
        if background is not None and self.under_way:
            background.then(self._complete_early)
        return cells[self._private]

    @property
    def under_way(self) -> bool:
        """Whether the newest snapshot is being copied beside training."""
        return self._shared.beside or self._private.beside

    def guard(self) -> bool:
        """What is being copied may change after this; returns whether it is copied already."""
        if self._guarded or self._background is None or not self.under_way:
            return not self.under_way
        began = time.monotonic()
        over = self._background.guard()
        self._guarded = True
        changed = None if self.torn else self._changed()  # said once
        self.waited_s += time.monotonic() - began
        if changed is not None:
            self.torn = self._meddled = True
            logger.warning(
                "the snapshot of step %d is discarded: %s was changed before the optimizer's "
                "step, while it was being copied; from now on snapshots are taken synchronously "
                "(snapshots.beside: false does so from the start)",
                *(self._step, changed),
            )
        return over

    def require_guarded(self) -> None:
        """A step has passed. Without its optimizer's hook nobody knows what was copied, where
        that cannot be seen."""
        if (
            self._guarded
            or self._background is None
            or not self.under_way
            or not self._background.blind
        ):
            return
        self.torn = self._at_once = True
        logger.warning(
            "the snapshot of step %d is discarded: no tracked optimizer took a step while it was "
            "being copied, or none that runs its hooks; another one is taken immediately (set "
            "snapshots.beside: false if this persists)",
            self._step,
        )

    def settle(self) -> None:
        """Return when both cells are whole, or given up."""
        if self._background is None or not self.under_way:
            return
        self.guard()
        began = time.monotonic()
        self._background.settle()
        self.waited_s += time.monotonic() - began
        self.taken_s = self._background.taken_s - self._taken_before_s
        for writer in (self._shared, self._private):
            writer.give_up() if self.torn else writer.complete()
            writer.let_go()

    def forget(self) -> None:
        """Hold nothing alive of the private part: it had something in it that is not there for
        long. Nothing may be under way."""
        self._private.forget()

    def _changed(self) -> str | None:
        return self._shared.changed() or self._private.changed()

    def _complete_early(self) -> None:
        """All is copied, long before the guard: who dies in between shall not lose it.

        In a thread of `background`, which lets nobody pass the guard meanwhile.
        """
        if self._changed() is None:
            self._shared.complete()
            self._private.complete()
