"""What there is to go on from, on all ranks and in all tiers, the best first.

Every rank says which snapshots its memory has, the first of each node also what is on the node's
disk, and rank 0 what is in the tiers that all share. From this table all ranks compute the same
list: the furthest step first, of the same step the newest attempt, of the same snapshot the
cheapest place. What a later attempt has left behind (`checkpoint.lineage`) is not on it, nor what
lies at or beyond a step that was found to lead into a failure.
"""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

import msgspec

from holdfast.checkpoint import shelf
from holdfast.checkpoint.arena import Arena, Header, Part
from holdfast.checkpoint.board import Tier
from holdfast.checkpoint.choose import Holding, plan_for
from holdfast.checkpoint.key import Key, progress
from holdfast.checkpoint.lineage import valid
from holdfast.checkpoint.manifest import Lineage, Manifest, Origin, key_of
from holdfast.checkpoint.settings import place_in
from holdfast.checkpoint.stores import Store, open_store
from holdfast.errors import Error
from holdfast.train.layout import Ranks

logger = logging.getLogger(__name__)

BELOW = "HOLDFAST_RESTORE_BELOW"
FROM = "HOLDFAST_RESTORE_FROM"


class Where(IntEnum):
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
    where: Where
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


class OnShelf(msgspec.Struct, frozen=True, array_like=True):
    """One committed checkpoint."""

    where: int
    attempt: int
    step: int
    world_size: int
    ranks: list[int]  # whose parts are there

    @property
    def key(self) -> Key:
        return Key(self.attempt, self.step)


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """What one rank has to say."""

    cells: list[InMemory]
    shelves: list[OnShelf]
    attempts: list[tuple[int, int | None]]  # with the step that each went on from
    troubles: list[str]


def place_of(where: Where, environ: Mapping[str, str] = os.environ) -> str | None:
    """The folder or URL of a durable tier, or of the other job's checkpoint."""
    if where is Where.ELSEWHERE:
        place = environ.get(FROM)
        return place and split(place)[0]
    return place_in(Tier(where - Where.LOCAL), environ)


def split(place: str) -> tuple[str, Key | None]:
    """A place of checkpoints, and which one, if the path ends with its folder."""
    head, _, last = place.rstrip("/").rpartition("/")
    key = key_of(last)
    return (place, None) if key is None else (head or ".", key)


# ── what this rank has ──


def in_memory(arena: Arena) -> list[InMemory]:
    """The whole cells of this rank's arena, by their headers."""
    headers = [(part, cell.header()) for part in Part for cell in arena.cells(part)]
    return [_cell(part, header) for part, header in headers if header is not None]


def _cell(part: Part, h: Header) -> InMemory:
    return InMemory(part, h.attempt, h.step, h.rank, h.world_size, h.fingerprint)


def on_shelves(ranks: Ranks, environ: Mapping[str, str] = os.environ) -> Offer:
    """What this rank has to say about durable tiers."""
    offer = Offer([], [], [], [])
    first = ranks.rank % ranks.local_world_size == 0
    mine = [Where.LOCAL] if first else []
    if ranks.rank == 0:
        mine += [Where.SHARED, Where.ARCHIVE, Where.ELSEWHERE]
    for where in mine:
        if place := place_of(where, environ):
            _look(where, place, environ, offer)
    return offer


def _look(where: Where, place: str, environ: Mapping[str, str], offer: Offer) -> None:
    only = split(environ[FROM])[1] if where is Where.ELSEWHERE else None
    try:
        found, attempts = _survey(open_store(place))
    except Error as error:
        logger.warning("nothing is found in %s: %s: %s", where.words, error.what, error.why)
        offer.troubles.append(f"{error.what}: {error.why}")
        return
    offer.shelves.extend(
        OnShelf(where, one.attempt, one.step, one.world_size, list(one.ranks))
        for one in found
        if only in (None, one.key)
    )
    if where is not Where.ELSEWHERE:
        offer.attempts.extend((a.attempt, a.parent.step if a.parent else None) for a in attempts)


def _survey(store: Store) -> tuple[Iterable[Manifest], Iterable[Lineage]]:
    found = shelf.survey(store)
    for damage in found.damaged:
        logger.warning("%s: %s: %s", store.where, damage.file, damage.why)
    return found.committed, shelf.lineages(store)[0]


# ── what all have together ──


def candidates(
    offers: Sequence[Offer],
    ranks: Ranks,
    fingerprint: int,
    environ: Mapping[str, str] = os.environ,
) -> list[Candidate]:
    """Everything that is whole, the best first."""
    below = environ.get(BELOW)
    limit = None if below is None else int(below)
    attempts = {attempt: begun for offer in offers for attempt, begun in offer.attempts}
    found = [*_arenas(offers, ranks, fingerprint), *_memory(offers), *_shelves(offers)]
    usable = [
        one
        for one in found
        if (limit is None or one.key.step < limit)
        and (one.where is Where.ELSEWHERE or _counts(one.key, attempts))
    ]
    return sorted(usable, key=_worth, reverse=True)


def _worth(one: Candidate) -> tuple[bool, tuple[int, int], int]:
    return one.where is not Where.ELSEWHERE, progress(one.key), -one.where


def _counts(key: Key, attempts: Mapping[int, int | None]) -> bool:
    return valid(key, (_lineage(attempt, begun) for attempt, begun in attempts.items()))


def _lineage(attempt: int, begun: int | None) -> Lineage:
    return Lineage(attempt=attempt, parent=None if begun is None else Origin(0, begun))


def holdings(offers: Sequence[Offer], ranks: Ranks, fingerprint: int) -> list[Holding]:
    """What every rank has of snapshots in this very layout, for its own use or for its ward's."""
    return [_holding(rank, offer, ranks, fingerprint) for rank, offer in enumerate(offers)]


def _holding(rank: int, offer: Offer, ranks: Ranks, fingerprint: int) -> Holding:
    ward = (rank - ranks.local_world_size) % ranks.world_size
    owner = {Part.SHARED: None, Part.PRIVATE: rank, Part.BUDDY: ward}
    fitting = [
        cell
        for cell in offer.cells
        if (cell.world_size, cell.fingerprint) == (ranks.world_size, fingerprint)
        and owner[Part(cell.part)] in (None, cell.rank)
    ]
    return Holding(*(frozenset(cell.key for cell in fitting if cell.part == part) for part in Part))


def _arenas(offers: Sequence[Offer], ranks: Ranks, fingerprint: int) -> Iterable[Candidate]:
    held = holdings(offers, ranks, fingerprint)
    for key in frozenset[Key]().union(*(h.shared for h in held)):
        if plan_for(key, held, ranks.local_world_size) is not None:
            yield Candidate(key, Where.ARENAS, ranks.world_size, fingerprint)


def _memory(offers: Sequence[Offer]) -> Iterable[Candidate]:
    private: dict[Candidate, set[int]] = {}
    shared: set[Candidate] = set()
    for cell in (cell for offer in offers for cell in offer.cells):
        one = Candidate(cell.key, Where.MEMORY, cell.world_size, cell.fingerprint)
        if cell.part == Part.SHARED:
            shared.add(one)
        else:
            private.setdefault(one, set()).add(cell.rank)
    return [one for one in shared if private.get(one, set()) >= set(range(one.world_size))]


def _shelves(offers: Sequence[Offer]) -> Iterable[Candidate]:
    there: dict[Candidate, set[int]] = {}
    for one in (one for offer in offers for one in offer.shelves):
        candidate = Candidate(one.key, Where(one.where), one.world_size)
        there.setdefault(candidate, set()).update(one.ranks)
    return [one for one, ranks in there.items() if len(ranks) == one.world_size]
