"""What there is to go on from, on all ranks and in all tiers, the best first.

Every rank says which snapshots its memory has, the first of each node also what is on the node's
disk, and rank 0 what is in the tiers that all share; also what of it cannot be read. From this
table all ranks compute the same list: the furthest step first, of the same step the newest attempt,
of the same snapshot the cheapest place. What a later attempt has left behind (`checkpoint.lineage`)
is not on it, nor what lies at or beyond a step that was found to lead into a failure, nor what an
attempt has saved with bad numbers, nor, in a job that begins anew, what was there before.
"""

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

import msgspec

from holdfast.checkpoint import catalog, presence
from holdfast.checkpoint.arena import Arena, CellHeader, StatePart
from holdfast.checkpoint.catalog import Damage
from holdfast.checkpoint.choose import Holding, Snapshot, assembled, plan_for
from holdfast.checkpoint.key import Key, progress
from holdfast.checkpoint.lineage import bad_steps, implied, is_bad, valid
from holdfast.checkpoint.manifest import Lineage, attempt_of, key_of
from holdfast.checkpoint.open_store import open_store
from holdfast.checkpoint.settings import place_in, settings_in
from holdfast.checkpoint.tiers import Tier
from holdfast.errors import Error
from holdfast.train.layout import Ranks

logger = logging.getLogger(__name__)

BELOW = "HOLDFAST_RESTORE_BELOW"
COMMITTED = "HOLDFAST_RESTORE_COMMITTED"
FROM = "HOLDFAST_RESTORE_FROM"
FRESH = "HOLDFAST_RESTORE_FRESH"


class Location(IntEnum):
    """Where a candidate lies, the cheapest first."""

    ARENAS = 0  # in memory, in this very layout
    MEMORY = 1  # in memory, in whatever layout
    LOCAL = 2
    SHARED = 3
    ARCHIVE = 4
    ELSEWHERE = 5  # a checkpoint of another job

    @property
    def words(self) -> str:
        """For people."""
        return ("memory", "memory", "local disks", "the shared tier", "the archive", "elsewhere")[
            self
        ]


class Candidate(NamedTuple):
    """One snapshot or checkpoint in one place."""

    key: Key
    where: Location
    world_size: int
    fingerprint: int = 0  # of a snapshot


class InMemory(msgspec.Struct, frozen=True, array_like=True):
    """One whole cell."""

    part: int
    attempt: int
    step: int
    rank: int
    world_size: int
    fingerprint: int

    @property
    def key(self) -> Key:
        return Key(self.attempt, self.step)


class InTier(msgspec.Struct, frozen=True, array_like=True):
    """One committed checkpoint."""

    where: int
    attempt: int
    step: int
    world_size: int
    ranks: list[int]  # whose parts are there

    @property
    def key(self) -> Key:
        return Key(self.attempt, self.step)


class Away(msgspec.Struct, frozen=True, array_like=True):
    """A place that could not be looked at."""

    where: int
    text: str


class Unread(msgspec.Struct, frozen=True, array_like=True):
    """A manifest or a lineage that cannot be used: damaged, or not given by the storage now."""

    where: int
    attempt: int
    step: int | None  # of a manifest
    damaged: bool
    text: str


class RankInventory(msgspec.Struct, frozen=True, array_like=True):
    """What one rank has to say."""

    cells: list[InMemory]
    checkpoints: list[InTier] = []
    attempts: list[Lineage] = []
    away: list[Away] = []
    unread: list[Unread] = []
    rivals: list[str] = []  # other jobs of this name that live and save in the same place


def place_of(where: Location, environ: Mapping[str, str] = os.environ) -> str | None:
    """The folder or URL of a durable tier, or of the other job's checkpoint."""
    if where is Location.ELSEWHERE:
        place = environ.get(FROM)
        return place and split(place)[0]
    return place_in(Tier(where - Location.LOCAL), environ)


def split(place: str) -> tuple[str, Key | None]:
    """A place of checkpoints, and which one, if the path ends with its folder."""
    head, _, last = place.rstrip("/").rpartition("/")
    key = key_of(last)
    return (place, None) if key is None else (head or ".", key)


# ── what this rank has ──


def in_memory(arena: Arena) -> list[InMemory]:
    """The whole cells of this rank's arena, by their headers."""
    headers = [(part, cell.header()) for part in StatePart for cell in arena.cells(part)]
    return [_cell(part, header) for part, header in headers if header is not None]


def _cell(part: StatePart, h: CellHeader) -> InMemory:
    return InMemory(part, h.attempt, h.step, h.rank, h.world_size, h.fingerprint)


def in_tiers(ranks: Ranks, environ: Mapping[str, str] = os.environ) -> RankInventory:
    """What this rank has to say about durable tiers."""
    inventory = RankInventory([], [], [], [], [], [])
    first = ranks.rank % ranks.local_world_size == 0
    mine = [Location.LOCAL] if first else []
    if ranks.rank == 0:
        mine += [Location.SHARED, Location.ARCHIVE, Location.ELSEWHERE]
    for where in mine:
        if place := place_of(where, environ):
            _look(where, place, environ, inventory)
    return inventory


def _look(
    where: Location, place: str, environ: Mapping[str, str], inventory: RankInventory
) -> None:
    only = split(environ[FROM])[1] if where is Location.ELSEWHERE else None
    try:
        if where in (Location.SHARED, Location.ARCHIVE):
            inventory.rivals.extend(_rivals(place, environ))
        found = catalog.survey(open_store(place))
    except Error as error:
        logger.warning("cannot read checkpoints in %s: %s: %s", where.words, error.what, error.why)
        inventory.away.append(Away(where, f"{error.what}: {error.why}"))
        return
    named = found.committed if only is None else (*found.committed, *found.void)
    inventory.checkpoints.extend(
        InTier(where, one.attempt, one.step, one.world_size, list(one.ranks))
        for one in named
        if only in (None, one.key)
    )
    unread = [_unread(where, place, one, True) for one in found.damaged]
    unread += [_unread(where, place, one, False) for one in found.unreadable]
    for one in unread:
        logger.warning("a file in %s is skipped: %s", where.words, one.text)
    if where is Location.ELSEWHERE:
        unread = [one for one in unread if only in (None, Key(one.attempt, one.step or 0))]
    else:
        inventory.attempts.extend(found.attempts)
    inventory.unread.extend(unread)


def _rivals(place: str, environ: Mapping[str, str]) -> list[str]:
    """Who else saves there, if that matters. Waits until it is known."""
    settings = settings_in(environ)
    if not settings.owner or settings.take_over:
        return []

    def waits() -> None:
        logger.warning(
            "another job of this name has saved in %s: waiting up to %.0f s to see whether it is "
            "still running",
            *(place, presence.PATIENCE_S),
        )

    found = presence.rival(open_store(place), settings.owner, waits=waits)
    return [] if found is None else [found]


def _unread(where: Location, place: str, wrong: Damage, damaged: bool) -> Unread:
    key, text = wrong.key, f"{place}/{wrong.file}: {wrong.why}"
    attempt = key.attempt if key else attempt_of(wrong.file.rpartition("/")[2])
    return Unread(where, attempt or 0, key.step if key else None, damaged, text)


# ── what all have together ──


Counts = Callable[[Key, Location], bool]


def candidates(
    inventories: Sequence[RankInventory],
    ranks: Ranks,
    fingerprint: int,
    environ: Mapping[str, str] = os.environ,
) -> list[Candidate]:
    """Everything that is whole, the best first."""
    counts = counting(inventories, environ)
    found = [
        *_arenas(inventories, ranks, fingerprint),
        *_memory(inventories),
        *_durable(inventories),
    ]
    usable = [one for one in found if counts(one.key, one.where)]
    return sorted(usable, key=lambda one: (worth(one.key, one.where), -one.where), reverse=True)


def worth(key: Key, where: Location) -> tuple[bool, tuple[int, int]]:
    """What makes one better than another, wherever it lies in this job."""
    return where is not Location.ELSEWHERE, progress(key)


def counting(inventories: Sequence[RankInventory], environ: Mapping[str, str]) -> Counts:
    """Tells whether a snapshot or checkpoint may be gone on from."""
    below = int(environ[BELOW]) if BELOW in environ else None
    known = {one.attempt: one for inventory in inventories for one in inventory.attempts}
    saved = [
        one
        for inventory in inventories
        for one in inventory.checkpoints
        if one.where != Location.ELSEWHERE
    ]
    attempts = [*known.values(), *implied((one.key for one in saved), known.values())]
    word, before = environ.get(FRESH), _before(environ)
    bad = bad_steps(environ)

    def ours(attempt: int) -> bool:
        if word is None:
            return True
        return known[attempt].fresh == word if attempt in known else attempt > before

    def counts(key: Key, where: Location) -> bool:
        if below is not None and key.step >= below:
            return False
        if where is Location.ELSEWHERE:
            return True
        if is_bad(key, bad):
            return False
        return valid(key, attempts) and (where <= Location.MEMORY or ours(key.attempt))

    return counts


def _before(environ: Mapping[str, str]) -> int:
    """The newest attempt from before this job began, as far as its controller knows."""
    restarts = int(environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return int(environ.get("HOLDFAST_ATTEMPT", "0")) - 1 - restarts


def holdings(inventories: Sequence[RankInventory], ranks: Ranks, fingerprint: int) -> list[Holding]:
    """What every rank has of snapshots in this very layout, for its own use or for its ward's."""
    return [
        _holding(rank, inventory, ranks, fingerprint) for rank, inventory in enumerate(inventories)
    ]


def _holding(rank: int, inventory: RankInventory, ranks: Ranks, fingerprint: int) -> Holding:
    ward = (rank - ranks.copy_distance) % ranks.world_size
    owner = {StatePart.SHARED: None, StatePart.PRIVATE: rank, StatePart.BUDDY: ward}
    fitting = [
        cell
        for cell in inventory.cells
        if (cell.world_size, cell.fingerprint) == (ranks.world_size, fingerprint)
        and owner[StatePart(cell.part)] in (None, cell.rank)
    ]
    return Holding(
        *(frozenset(cell.key for cell in fitting if cell.part == part) for part in StatePart)
    )


def _arenas(
    inventories: Sequence[RankInventory], ranks: Ranks, fingerprint: int
) -> Iterable[Candidate]:
    held = holdings(inventories, ranks, fingerprint)
    for key in frozenset[Key]().union(*(h.shared for h in held)):
        if plan_for(key, held, ranks.copy_distance) is not None:
            yield Candidate(key, Location.ARENAS, ranks.world_size, fingerprint)


def _memory(inventories: Sequence[RankInventory]) -> Iterable[Candidate]:
    private: dict[Snapshot, set[int]] = {}
    shared: set[Snapshot] = set()
    for cell in (cell for inventory in inventories for cell in inventory.cells):
        one = Snapshot(cell.key, cell.world_size, cell.fingerprint)
        if cell.part == StatePart.SHARED:
            shared.add(one)
        else:
            private.setdefault(one, set()).add(cell.rank)
    whole = assembled(shared, private)
    return [Candidate(s.key, Location.MEMORY, s.world_size, s.fingerprint) for s in whole]


def _durable(inventories: Sequence[RankInventory]) -> Iterable[Candidate]:
    there: dict[Candidate, set[int]] = {}
    for one in (one for inventory in inventories for one in inventory.checkpoints):
        candidate = Candidate(one.key, Location(one.where), one.world_size)
        there.setdefault(candidate, set()).update(one.ranks)
    return [one for one, ranks in there.items() if len(ranks) == one.world_size]
