"""Before workers are ended on purpose: one more snapshot, brought to where it survives.

The storage pages tell the workers, who agree on a snapshot at the end of a step; the storage
process says when it is safe. All of it is bounded by the grace time, a part of which is left for
the workers to end in, and nothing happens for a script that takes no snapshots.
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence

from holdfast.agent.notes import note
from holdfast.agent.storage import protocol
from holdfast.agent.storage.handle import StorageHandle
from holdfast.agent.storage.tier_saver import asked
from holdfast.checkpoint.arena import Arena
from holdfast.checkpoint.key import Key
from holdfast.checkpoint.storage_page import StoragePage

SHARE = 0.7  # of the grace time; the rest is for the workers
FINAL_SAVE_S = 900.0  # for the checkpoint of the last step, when nothing is urgent
LOOK_S = 0.05


class UrgentSaves:
    """What is known of snapshots that must not be lost."""

    def __init__(
        self, arenas: Sequence[Arena], storage_pages: Sequence[StoragePage], storage: StorageHandle
    ) -> None:
        self._arenas = arenas
        self._storage_pages = storage_pages
        self._storage = storage
        self._safe = asyncio.Event()
        self._settled = Key(0, 0)

    def hear(self, news: protocol.UrgentSaved | protocol.Settled) -> None:
        """The storage process has something in safety."""
        match news:
            case protocol.UrgentSaved():
                note(f"agent: step {news.step} is persisted in {news.where}")
                self._safe.set()
            case protocol.Settled():
                self._settled = Key(news.attempt, news.step)

    def can(self, attempt: int) -> bool:
        """Whether the workers of this attempt take snapshots."""
        infos = [storage_page.info() for storage_page in self._storage_pages]
        return all(info is not None and info.attempt == attempt for info in infos)

    async def save(self, grace_s: float, *, node_goes: bool, job_ends: bool, holds: bool) -> None:
        """Return once a snapshot is safe, or its share of the grace time is over. `holds`: the
        workers of all nodes are to be ended with it."""
        within_s = SHARE * grace_s
        self._safe.clear()
        for storage_page in self._storage_pages:
            storage_page.warn(time.monotonic() + within_s, holds=holds)
        warning = protocol.Warn(within_s=within_s, node_goes=node_goes, job_ends=job_ends)
        self._storage.warn(warning)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._safe.wait()
        if not self._safe.is_set():
            note(f"agent: no snapshot could be persisted within {within_s:.1f} s")
        self.over()

    def over(self) -> None:
        """Nothing is to be feared any more, or it has come."""
        for storage_page in self._storage_pages:
            storage_page.warn(0.0)
        self._storage.warn(protocol.Warn(within_s=0.0))

    def unsaved(self, attempt: int) -> bool:
        """Whether a snapshot that is for a durable tier has not come there yet."""
        return any(key > self._settled for key in asked(self._arenas, attempt))

    async def until_saved(self, attempt: int, within_s: float = FINAL_SAVE_S) -> None:
        """Return once everything is saved or given up, or after this time."""
        end = time.monotonic() + within_s
        while self.unsaved(attempt) and time.monotonic() < end:
            await asyncio.sleep(LOOK_S)
