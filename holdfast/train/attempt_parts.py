"""What a run has for one attempt: the traffic about snapshots, and the snapshots.

A process that is kept for the next attempt (`survival`) gets these anew. Shared memory, the group
on which ranks talk, and who copies beside training stay.
"""

import os
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.utils.hooks import RemovableHandle

from holdfast.checkpoint.arena import Arena
from holdfast.checkpoint.arena_ahead import FD, arena_of
from holdfast.checkpoint.settings import settings_in
from holdfast.checkpoint.storage_page import StoragePage
from holdfast.checkpoint.streams import BackgroundCopier, background_copier
from holdfast.train.cadence import Cadence
from holdfast.train.exchange import Exchange
from holdfast.train.layout import Ranks
from holdfast.train.placement import Placement, descriptor, find_placement
from holdfast.train.restore import snapshot_waits
from holdfast.train.snapshots import Snapshotter, watch_optimizers
from holdfast.train.tracked import Tracked


def cores_of(placement: Placement) -> int:
    """For a worker, if all on this node work at the same time."""
    return max(1, len(os.sched_getaffinity(0)) // placement.local_world_size)


class AttemptParts:
    """`snapshots` is None until something is tracked, and without an agent; `exchange` where there
    are no other ranks, or no snapshots."""

    def __init__(
        self, placement: Placement, device: torch.device, group: dist.ProcessGroup | None
    ) -> None:
        """`group` is one of ours, on which ranks talk."""
        self.placement = placement
        self._device, self._group = device, group
        fd, storage_page = descriptor(FD), descriptor("HOLDFAST_STORAGE_PAGE_FD")
        self.arena: Arena | None = None if fd is None else arena_of(fd)
        if self.arena is not None:
            self.arena.look_ahead(cores_of(placement))
        self._storage_page = None if storage_page is None else StoragePage(storage_page)
        self.settings = settings_in()
        self.snapshots: Snapshotter | None = None
        self._copier: BackgroundCopier | None = None
        self._watching: list[RemovableHandle] = []
        self.exchange = self._talk()

    def _talk(self) -> Exchange | None:
        if self.arena is None or self._group is None or self.placement.world_size == 1:
            return None
        return Exchange(self.placement, self._group, copies=self.settings.copies)

    @property
    def gather(self) -> Callable[[bytes], list[bytes]] | None:
        """Brings every rank's bytes to all of them."""
        return None if self.exchange is None else self.exchange.gather_bytes

    def snapshot_waits(self, ranks: Ranks) -> bool:
        """Whether all ranks will load the same snapshot, as far as headers tell."""
        if self.arena is None or (self.exchange is None and self.placement.world_size > 1):
            return False
        return snapshot_waits(self.arena, self.exchange, ranks)

    def watch(self, tracked: Tracked) -> Snapshotter | None:
        """Snapshots of these objects, from now on."""
        for watching in self._watching:
            watching.remove()
        self.snapshots = self._snapshots(tracked)
        if self.snapshots is not None:
            self._watching = watch_optimizers(self.snapshots, tracked.optimizers.values())
        return self.snapshots

    def _snapshots(self, tracked: Tracked) -> Snapshotter | None:
        if self.arena is None:
            return None
        if self._copier is None and self.settings.beside and tracked.optimizers:
            self._copier = background_copier(self._device, self.placement.local_world_size)
        return Snapshotter(
            self.arena,
            self._storage_page,
            self.exchange,
            self.placement,
            tracked,
            Cadence.from_environment(),
            self.settings,
            self._copier,
            int(os.environ.get("HOLDFAST_CHECK_REPLICAS", "0")),
        )

    def leave_off(self) -> None:
        """The attempt is broken: nothing is written any more, and what is there can be verified
        until the next one begins."""
        if self.snapshots is not None:
            self.snapshots.capture.settle()
        if self.arena is not None:
            self.arena.look_ahead(cores_of(self.placement))

    def begin_again(self) -> None:
        """The environment is that of another attempt."""
        self.placement = find_placement()
        self.exchange = self._talk()
