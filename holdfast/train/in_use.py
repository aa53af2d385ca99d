"""Which snapshots of this rank are still needed, and whether there is room for another.

Not to be overwritten is the newest snapshot that every rank can get even if a node is lost, one
that agents are copying to other nodes, and those that are being saved to durable tiers.
"""

import time

from holdfast.checkpoint.arena import OWN, Arena, Cell, Key, StatePart
from holdfast.checkpoint.storage_page import StoragePage
from holdfast.checkpoint.tiers import SnapshotFlag, Tier

COPY_PATIENCE_S = 60.0  # a copy that takes longer is not waited for any more


class SnapshotsInUse:
    """`newest` is whole here, and everywhere after the next meeting. `kept` is whole on all ranks
    and as many copies of it exist as there are to be. `_copying` is with the agents, `_saving` are
    on their way to durable tiers, the oldest first.
    """

    def __init__(self, arena: Arena, storage_page: StoragePage | None, *, durable: bool) -> None:
        """`durable`: snapshots are saved to durable tiers."""
        self._arena = arena
        self._storage_page = storage_page
        self._durable = durable
        self.newest: Key | None = None
        self.kept: Key | None = None
        self._copying: Key | None = None
        self._copying_since = 0.0
        self._saving: list[Key] = []
        self.by_agents = False
        """Whether private parts are copied by the agents' side."""

    @property
    def step(self) -> int:
        """Completed steps in the newest snapshot."""
        return self.newest.step if self.newest else 0

    @property
    def slots(self) -> int:
        """Cells of a part. With readers on the agents' side a third, so that they hold up no
        snapshot."""
        return 3 if self.by_agents or self._durable else 2

    # ── what happens to them ──

    def restored(self, key: Key) -> None:
        """All ranks go on from this one."""
        self.newest = self.kept = key

    def taken(self, key: Key, flags: SnapshotFlag) -> None:
        """This is the newest one; remember who reads it from now on."""
        self.newest = key
        if flags & SnapshotFlag.COPY:
            self._copying, self._copying_since = key, time.monotonic()
        if any(flags & (1 << tier) for tier in Tier):
            self._saving.append(key)

    def met(self, *, pending: bool) -> None:
        """All ranks have the newest one whole; `pending`: some rank's is still being copied."""
        if self._storage_page is not None:
            self._storage_page.met(self.newest)
        if not self.by_agents:
            self.kept = self.newest
        elif not pending:
            self.kept, self._copying = self._copying or self.kept, None

    def give_up(self) -> None:
        """The newest one counts as not taken, on all ranks."""
        void = self.newest
        assert void is not None, "only a snapshot can be torn"
        self.discard_newest()
        if self._storage_page is not None:
            self._storage_page.void(void)
        self._saving = [key for key in self._saving if key != void]
        self._copying = None if self._copying == void else self._copying
        self.newest = self.kept

    def discard_newest(self) -> None:
        """Nobody goes on from the newest one, as far as it lies here."""
        for part in StatePart:
            cell = self.newest and self._arena.find(part, self.newest)
            if cell is not None:
                cell.discard()

    # ── what is needed ──

    def saving(self) -> list[Key]:
        """Those that durable tiers still read."""
        released = self._storage_page.released if self._storage_page is not None else None
        self._saving = [key for key in self._saving if released is None or key > released]
        return self._saving

    def needed(self) -> list[Key]:
        """What the next snapshot must not overwrite."""
        return self._with_saving(self.kept, self._copying)

    def has_room(self, *, pending: bool) -> bool:
        """Whether a snapshot can be written after the meeting that is to come; `pending`: where
        that finds some copy still under way."""
        if not self.by_agents:
            needed = self._with_saving(self.newest)
        elif pending:
            needed = self.needed()
        else:
            needed = self._with_saving(self._copying or self.kept)
        return all(self._arena.target(part, needed, self.slots) for part in OWN)

    def _with_saving(self, *keys: Key | None) -> list[Key]:
        return [*(key for key in keys if key is not None), *self.saving()]

    @property
    def copies_next(self) -> bool:
        """Whether the next snapshot is to be copied by the agents' side."""
        return self.by_agents and self._copying is None

    def copy_pending(self) -> bool:
        """Whether a copy is under way, and still waited for."""
        if self._copying is None or self._storage_page is None:
            return False
        copied = self._storage_page.newest_copied
        late = time.monotonic() - self._copying_since > COPY_PATIENCE_S
        return not late and (copied is None or copied < self._copying)

    def private_cell(self) -> Cell:
        """The private part of the newest one."""
        cell = self.newest and self._arena.find(StatePart.PRIVATE, self.newest)
        assert cell, "a restored snapshot stays until the next one is whole everywhere"
        return cell
