"""Taking snapshots of the tracked state into the arena, and getting one back.

A snapshot writes the shared and the private part into the cells that do not hold the newest
snapshot known to be whole on every rank, then starts the exchange of private parts. Two cells are
enough: before the next snapshot overwrites anything, a fence has shown that every rank has the
previous one whole, copy for its ward included (see `exchange`). The fence is opened in the
optimizer's pre-step hook, so it is normally over when the snapshot asks for it.
"""

import time

import torch

from holdfast.checkpoint.arena import Arena, Cell, Key, Part
from holdfast.checkpoint.tensors import Stamp, Writer, read
from holdfast.train.cadence import Cadence
from holdfast.train.exchange import Agreed, Exchange
from holdfast.train.placement import Placement
from holdfast.train.restore import bring_in
from holdfast.train.tracked import Tracked


class Snapshots:
    """The snapshots of one rank. `_kept` is whole on all ranks, `_newest` at least here."""

    def __init__(
        self,
        arena: Arena,
        exchange: Exchange | None,
        placement: Placement,
        tracked: Tracked,
        cadence: Cadence,
    ) -> None:
        self._arena = arena
        self._exchange = exchange
        self._placement = placement
        self._tracked = tracked
        self.cadence = cadence
        self._shared = Writer(arena, Part.SHARED, tracked.place)
        self._private = Writer(arena, Part.PRIVATE, tracked.place)
        self._fingerprint = tracked.fingerprint()
        self._kept: Key | None = None
        self._newest: Key | None = None
        self._unfenced = False  # the newest snapshot has not been shown to be whole everywhere
        self._start = 0
        self._private_bytes = 0

    @property
    def step(self) -> int:
        """Completed steps in the newest snapshot."""
        return self._newest.step if self._newest else 0

    def restore(self) -> int:
        """Load the newest snapshot that every rank can get; returns its step, 0 for none.

        The random numbers are put back by `restore_random`, after everything else is set up.
        """
        found = bring_in(self._arena, self._exchange, self._placement, self._fingerprint)
        if found is None:
            return 0
        self._newest = self._kept = found.key
        self._start = found.key.step
        shared, private = self._cell(Part.SHARED), self._cell(Part.PRIVATE)
        self._tracked.load(read(shared), read(private))
        if found.copies_missing:
            # waited for, so that another node may be lost as soon as training goes on
            self._send_copy(private)
            self.finish()
        return found.key.step

    def restore_random(self) -> None:
        """Put the random number generators back, if a snapshot was restored."""
        if self._newest is not None:
            self._tracked.load_random(read(self._cell(Part.PRIVATE)))

    def take(self, step: int) -> None:
        """Snapshot the state after this many completed steps.

        Raises `Error` (not-tracked, snapshot-too-large).
        """
        began = time.monotonic()
        shared, own = self._tracked.capture()
        self._shared.encode(shared)
        self._private_bytes = self._private.encode(own)
        waited = self._make_previous_safe(step)
        key = Key(self._placement.attempt, step)
        stamp = Stamp(key, self._placement.rank, self._placement.world_size, self._fingerprint)
        keep = [] if self._kept is None else [self._kept]
        self._shared.write(stamp, keep)
        private = self._private.write(stamp, keep)
        self._newest = key
        self._send_copy(private)
        self.cadence.took(time.monotonic() - began - waited)

    def open_fence(self, *_: object) -> None:
        """Let the fence of the newest snapshot run beside the optimizer step."""
        if self._exchange is not None and self._unfenced:
            cadence = self.cadence
            mine = Agreed(self._private_bytes, cadence.cost_us, cadence.step_us)
            self._exchange.open_fence(mine)

    def finish(self) -> None:
        """Return when the newest snapshot is whole on all ranks."""
        self._make_previous_safe(self.step)

    def _make_previous_safe(self, step: int) -> float:
        """Pass the fence of the newest snapshot; returns the seconds spent waiting."""
        began = time.monotonic()
        agreed = Agreed(0, self.cadence.cost_us, self.cadence.step_us)
        if self._exchange is not None and self._unfenced:
            self.open_fence()
            agreed = self._exchange.pass_fence()
            self._unfenced = False
        self._kept = self._newest
        self.cadence.decide(step - self._start, agreed.cost_us, agreed.step_us)
        return time.monotonic() - began

    def _send_copy(self, private: Cell) -> None:
        if self._exchange is not None:
            self._exchange.start(private, self._arena.target_for(self._exchange.ward, self._kept))
            self._unfenced = True

    def _cell(self, part: Part) -> Cell:
        cell = self._newest and self._arena.find(part, self._newest)
        assert cell, "a restored snapshot stays until the next one is whole everywhere"
        return cell


def watch_optimizers(snapshots: Snapshots, optimizers: list[torch.optim.Optimizer]) -> None:
    """Open the fence of each snapshot when the next optimizer step begins."""
    for optimizer in optimizers[:1]:
        optimizer.register_step_pre_hook(snapshots.open_fence)
