"""Saving snapshots to one durable tier: this node's ranks, and the commit where rank 0 is.

Workers have agreed which snapshot is for which tier; it stands in the header of its cells. When all
ranks of the node have it whole and sealed, each writes its part, straight from the arena; the node
of rank 0 (on the disk of a node: each node) waits until all ranks of the world are there, commits,
and thins the history. Snapshots are saved in the order in which they were taken, except for an
urgent one; one that another node has left out is given up. What fails is tried again, later and
later, as long as the snapshot is there; training only ever sees numbers on its storage page. One
thread for each tier, so that a slow one holds up no other.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.agent.notes import note
from holdfast.agent.storage import protocol
from holdfast.agent.storage.previous_parts import PreviousParts
from holdfast.checkpoint import catalog, save, upkeep
from holdfast.checkpoint.arena import OWN, Arena, Cell, StatePart
from holdfast.checkpoint.bandwidth_limit import BandwidthLimit
from holdfast.checkpoint.key import Key
from holdfast.checkpoint.manifest import (
    Manifest,
    RankPart,
    decode,
    manifest_file,
)
from holdfast.checkpoint.open_store import open_store
from holdfast.checkpoint.storage_page import SaveStatus, StoragePage, WorkerInfo
from holdfast.checkpoint.stores import CheckpointStore
from holdfast.checkpoint.tiers import SnapshotFlag, Tier
from holdfast.errors import Error

RETRY_S = 1.0  # after a failure; doubled each time
RETRY_MAX_S = 60.0
FIND_MAX_S = 5.0  # the job waits for the answer
TRIES = 4
FINAL = frozenset(("checkpoint-fenced", "snapshot-changed", "storage-place"))  # not tried again
HELPED = frozenset(("checkpoint-fenced", "storage-denied"))  # what helps is told, too
OTHERS_S = 900.0  # that the slowest rank may take longer than those of this node
POLL_S, POLL_MAX_S = 0.05, 2.0
AT_ONCE = 4  # ranks of a node that save at the same time
UNLIMITED = BandwidthLimit(None)
ALL_TIERS = sum(1 << tier for tier in Tier)


class SaveTask(NamedTuple):
    """A snapshot that is whole on all ranks of this node, and to be saved."""

    key: Key
    flags: SnapshotFlag
    cells: tuple[dict[StatePart, Cell], ...]  # by local rank
    infos: tuple[WorkerInfo, ...]

    @property
    def ranks(self) -> list[int]:
        return [info.rank for info in self.infos]

    def intact(self) -> bool:
        """Whether it still is where it was."""
        found = (cell.header() for cells in self.cells for cell in cells.values())
        return all(header is not None and header.key == self.key for header in found)


def find_tasks(
    arenas: Sequence[Arena], infos: Sequence[WorkerInfo | None], tier: Tier
) -> list[SaveTask]:
    """The snapshots of this attempt that all ranks here have whole, sealed, for this tier; the
    oldest first."""
    known = [info for info in infos if info is not None]
    if len(known) != len(arenas) or len({info.attempt for info in known}) != 1:
        return []
    keys = [_for_tier(arena, known[0].attempt, tier) for arena in arenas]
    tasks = (_whole(arenas, key, known) for key in sorted(frozenset.intersection(*keys)))
    return [task for task in tasks if task is not None]


def _whole(arenas: Sequence[Arena], key: Key, infos: Sequence[WorkerInfo]) -> SaveTask | None:
    cells = [{part: arena.find(part, key) for part in OWN} for arena in arenas]
    whole = [{p: cell for p, cell in found.items() if cell and cell.sealed()} for found in cells]
    if any(len(found) != len(OWN) for found in whole):
        return None
    header = whole[0][StatePart.PRIVATE].header()
    return header and SaveTask(key, SnapshotFlag(header.flags), tuple(whole), tuple(infos))


def _for_tier(arena: Arena, attempt: int, tier: Tier) -> frozenset[Key]:
    found = (cell.header() for cell in arena.cells(StatePart.PRIVATE))
    wanted = 1 << tier
    return frozenset(h.key for h in found if h and h.attempt == attempt and h.flags & wanted)


def asked(arenas: Sequence[Arena], attempt: int) -> dict[Key, int]:
    """Snapshots of this attempt that are in memory and meant for durable tiers, and for which."""
    found = (cell.header() for arena in arenas for cell in arena.cells(StatePart.PRIVATE))
    ours = (header for header in found if header is not None and header.attempt == attempt)
    return {header.key: header.flags & ALL_TIERS for header in ours if header.flags & ALL_TIERS}


def passed(wanted: Mapping[Key, int], reached: Mapping[Tier, Key | None]) -> Key | None:
    """The newest of the wanted snapshots up to which each tier has come; None for none."""
    newest = None
    for key in sorted(wanted):
        behind = (at for tier, at in reached.items() if wanted[key] & 1 << tier)
        if any(at is None or at < key for at in behind):
            break
        newest = key
    return newest


@dataclass(slots=True)
class LastLook:
    """What workers have in memory and say, as of the last look."""

    attempt: int = 0  # the newest: what older ones save does not count
    newest: Key | None = None  # snapshot that is to be saved
    urgent: Key | None = None  # likewise, and before all others


class TierSaver:
    """One tier of this node. `look` starts what is due and never waits."""

    def __init__(
        self,
        place: protocol.DurablePlace,
        job: str,
        storage_pages: Sequence[StoragePage],
        tell: Callable[[protocol.AnyNews], None],
        owner: str = "",
    ) -> None:
        self._place = place
        self._job = job
        self._storage_pages = storage_pages
        self._tell = tell
        self._limit = BandwidthLimit(place.max_bytes_per_s)
        self._store: CheckpointStore | None = None
        self._thread: threading.Thread | None = None
        self._parts: list[RankPart] = []  # of the snapshot that is being saved
        self._previous = PreviousParts(place.fresh, len(storage_pages), owner)
        self._seen = LastLook()
        self._failures = 0
        self.read: Key | None = None  # newest snapshot that this tier does not read any more
        self.settled: Key | None = None  # newest one that is committed, or given up
        self.committed: Key | None = None

    @property
    def tier(self) -> Tier:
        """The tier that it saves to."""
        return self._place.tier

    @property
    def busy(self) -> bool:
        """Whether something is being saved."""
        return self._thread is not None and self._thread.is_alive()

    def look(self, arenas: Sequence[Arena], infos: Sequence[WorkerInfo | None]) -> None:
        """Begin to save what is to be saved."""
        self._seen.attempt = max((r.attempt for r in infos if r is not None), default=0)
        tasks = find_tasks(arenas, infos, self.tier)
        if tasks:
            self._seen.newest = tasks[-1].key
            if tasks[-1].flags & SnapshotFlag.URGENT:
                self._seen.urgent = tasks[-1].key
        if not self.busy and (task := self._next(tasks)) is not None:
            self._thread = threading.Thread(target=self._save, args=(task,), daemon=True)
            self._thread.start()

    def _next(self, tasks: Sequence[SaveTask]) -> SaveTask | None:
        """The oldest that is not settled; the newest where it is urgent, and for a process that has
        saved nothing yet: it cannot tell which older ones had been."""
        if self.settled is None or (tasks and tasks[-1].flags & SnapshotFlag.URGENT):
            tasks = tasks[-1:]
        return next((t for t in tasks if self.settled is None or t.key > self.settled), None)

    def newest_attempt(self) -> int:
        """The newest attempt that has begun there; 0 for none. Waits for storage that does not
        answer: with a number that is taken nothing could be saved."""
        pause = RETRY_S
        while True:
            try:
                return catalog.newest_attempt(self._opened())
            except Error as error:
                note(f"storage: {self._named}: {error.what}: {error.why}")
                if error.slug in FINAL:
                    return 0
            time.sleep(pause)
            pause = min(2 * pause, FIND_MAX_S)

    @property
    def _named(self) -> str:
        return self.tier.name.lower()

    def _opened(self) -> CheckpointStore:
        if self._store is None:
            self._store = open_store(self._place.where)
        return self._store

    # ── one snapshot ──

    def _save(self, task: SaveTask) -> None:
        """Try until it is saved, overtaken, or cannot be."""
        began, pause, tries = time.monotonic(), RETRY_S, 0
        while not self._try(task, began):
            tries += 1
            if tries == TRIES or not self._wait(task, pause):
                break
            pause = min(2 * pause, RETRY_MAX_S)
        self.read = self.settled = task.key

    def _try(self, task: SaveTask, began: float) -> bool:
        """Whether nothing is left to be tried again."""
        try:
            self._save_once(task, began)
        except save.SaveCancelledError:
            return True
        except Error as error:
            self._failed(task, error)
            return error.slug in FINAL
        return True

    def _wait(self, task: SaveTask, seconds: float) -> bool:
        """Whether the snapshot is still wanted, and there if need be, after this time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._unwanted(task):
            time.sleep(POLL_S)
        return not self._unwanted(task) and (self.read == task.key or task.intact())

    def _unwanted(self, task: SaveTask) -> bool:
        """A newer attempt has begun, a newer snapshot is urgent, or this one was given up."""
        overtaken = self._seen.urgent is not None and self._seen.urgent > task.key
        void = self._storage_pages[0].voided == task.key
        return overtaken or void or self._seen.attempt > task.key.attempt

    def _save_once(self, task: SaveTask, began: float) -> None:
        store = self._opened()
        self._previous.begin(store, task.infos[0])
        if self.read != task.key:
            self._parts = self._save_ranks(store, task)
            self.read = task.key
        manifest = self._commit(store, task)
        if manifest is None:
            raise save.SaveCancelledError
        seconds = time.monotonic() - began
        self._previous.parts = {part.rank: part for part in self._parts}
        self.committed, self._failures = task.key, 0
        self._show(SaveStatus(task.key.step, began, seconds))
        if 0 in task.ranks:
            self._tell(_committed(self.tier, manifest, seconds))
        if self._coordinates(task) and not task.flags & SnapshotFlag.URGENT:
            self._thin(store)

    def _save_ranks(self, store: CheckpointStore, task: SaveTask) -> list[RankPart]:
        urgent = bool(task.flags & SnapshotFlag.URGENT)
        limit = UNLIMITED if urgent else self._limit

        def one(number: int) -> RankPart:
            return save.save_rank(
                store,
                task.cells[number],
                job=self._job,
                tier=self.tier,
                previous=self._previous.parts.get(task.ranks[number]),
                limit=limit,
                cancelled=lambda: self._unwanted(task),
            )

        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="save") as pool:
            return list(pool.map(one, range(len(task.cells))))

    # ── all nodes ──

    def _coordinates(self, task: SaveTask) -> bool:
        return self.tier is Tier.LOCAL or 0 in task.ranks

    def _commit(self, store: CheckpointStore, task: SaveTask) -> Manifest | None:
        """Wait for the other nodes and commit, or wait for the node that does. None: given up."""
        ranks = task.ranks if self.tier is Tier.LOCAL else range(task.infos[0].world_size)
        end, pause = time.monotonic() + OTHERS_S, POLL_S
        while not self._unwanted(task):
            if self._coordinates(task):
                if not (missing := save.lacking(store, task.key, ranks)):
                    return save.commit(store, task.key, ranks=list(ranks), now=time.time())
            elif (manifest := _manifest(store, task.key)) is not None:
                return manifest
            else:
                missing = {0}
            if self._left_out(store, task, missing):
                return None
            if time.monotonic() > end:
                why = f"ranks {sorted(missing)[:8]} have not saved their part in {OTHERS_S:g} s"
                raise save.incomplete(store, task.key, why)
            time.sleep(pause)
            pause = min(1.5 * pause, POLL_MAX_S)
        return None

    def _left_out(self, store: CheckpointStore, task: SaveTask, missing: set[int]) -> bool:
        """Whether a rank that is waited for has saved a newer one instead: its storage process had
        been restarted."""
        newer = self._seen.newest
        if newer is None or newer <= task.key:
            return False
        left_out = bool(missing - save.lacking(store, newer, missing))
        if left_out:
            note(f"storage: {self._named}: step {task.key.step} is abandoned: a node skipped it")
        return left_out

    def _thin(self, store: CheckpointStore) -> None:
        """The history is thinned after the commit, and must not undo it when that fails."""
        try:
            for line in upkeep.prune(store, newest=self._place.keep).words:
                note(f"storage: {self._named}: removed steps {line}")
        except Error as error:
            why = f"{error.what}: {error.why}"
            note(f"storage: {self._named}: old checkpoints were not removed: {why}")

    # ── what others see ──

    def _failed(self, task: SaveTask, error: Error) -> None:
        self._failures += 1
        before = self._storage_pages[0].of_tier(self.tier)
        self._show(before._replace(failures=self._failures))
        why = f"{error.what}: {error.why}"
        why += f"; {error.help}" if error.slug in HELPED else ""
        note(f"storage: {self._named}: step {task.key.step} is not saved: {why}")
        key = task.key
        self._tell(
            protocol.SaveFailed(
                tier=self.tier, attempt=key.attempt, step=key.step, why=why,
                failures=self._failures,
            )
        )  # fmt: skip

    def _show(self, saved: SaveStatus) -> None:
        for storage_page in self._storage_pages:
            storage_page.saved(self.tier, saved)


def _manifest(store: CheckpointStore, key: Key) -> Manifest | None:
    """What the coordinator has written, if it has."""
    name = manifest_file(key)
    return None if store.size(name) is None else decode(store.read(name), Manifest, name)


def _committed(tier: Tier, manifest: Manifest, seconds: float) -> protocol.Committed:
    return protocol.Committed(
        tier=tier,
        attempt=manifest.attempt,
        step=manifest.step,
        seconds=round(seconds, 3),
        bytes=manifest.written_bytes,
        name=manifest.name,
    )
