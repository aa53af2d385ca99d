"""Bringing every rank to the same snapshot: agree, verify, hand out, until it holds.

Ranks gather what each has whole, compute the same choice (`checkpoint.choose`), verify the
checksums of what will be used, and pass on what somebody lacks. A part found damaged is thrown
away by its holder and the choice is repeated with what remains, so damage costs steps, not the job.
Afterwards every rank holds its own parts of the chosen snapshot in its own arena.
"""

import logging
from collections.abc import Iterator
from typing import NamedTuple

from holdfast.checkpoint.arena import Arena, Cell, Header, Key, Part
from holdfast.checkpoint.choose import Holding, Plan, choose
from holdfast.errors import Error
from holdfast.train.exchange import Exchange
from holdfast.train.placement import Placement

logger = logging.getLogger(__name__)

_ROUNDS = 16  # six cells a rank: more rounds mean that memory changes under our hands


class Found(NamedTuple):
    """The snapshot that every rank now has, and whether a buddy's copy of some rank is missing."""

    key: Key
    copies_missing: bool


def bring_in(
    arena: Arena, exchange: Exchange | None, placement: Placement, fingerprint: int
) -> Found | None:
    """Fetch the newest snapshot all ranks can get; None where there is none.

    Raises `Error` (snapshot-unreadable) when parts keep arriving damaged.
    """
    for round_number in range(_ROUNDS):
        mine = inventory(arena, placement, fingerprint)
        held = exchange.gather(mine) if exchange else [mine]
        plan = choose(held, placement.local_world_size)
        if plan is None:
            if placement.rank == 0:
                _say_what_was_lost(held, damaged=round_number > 0)
            return None
        if _deliver(plan, arena, exchange, placement.rank):
            return Found(plan.key, any(plan.key not in h.buddy for h in held))
    raise Error(
        "snapshot-unreadable",
        "snapshots keep arriving damaged",
        why=f"checksums did not match after {_ROUNDS} rounds of handing parts around",
        help="check the memory and the network of these nodes",
    )


def inventory(arena: Arena, placement: Placement, fingerprint: int | None = None) -> Holding:
    """What this rank has that belongs to it, by the headers alone. None fits any model."""
    ward = (placement.rank - placement.local_world_size) % placement.world_size
    owner = {Part.SHARED: None, Part.PRIVATE: placement.rank, Part.BUDDY: ward}
    keys: dict[Part, frozenset[Key]] = {}
    for part, rank in owner.items():
        headers = [cell.header() for cell in arena.cells(part)]
        ours = (h for h in headers if h and _fits(h, rank, placement, fingerprint))
        keys[part] = frozenset(h.key for h in ours)
    return Holding(keys[Part.SHARED], keys[Part.PRIVATE], keys[Part.BUDDY])


def _fits(header: Header, rank: int | None, placement: Placement, model: int | None) -> bool:
    same_world = header.world_size == placement.world_size
    if same_world and model in (None, header.fingerprint) and rank in (None, header.rank):
        return True
    logger.warning(
        "a snapshot of step %d is left aside: it is of rank %d of %d or of a different model",
        header.step,
        header.rank,
        header.world_size,
    )
    return False


def _deliver(plan: Plan, arena: Arena, exchange: Exchange | None, rank: int) -> bool:
    good = _verify(list(_used(plan, arena, rank)))
    if exchange is None:
        return good
    if not exchange.all_true(good):
        return False
    return exchange.all_true(_verify(exchange.hand_out(plan, arena)))


def _used(plan: Plan, arena: Arena, rank: int) -> Iterator[Cell]:
    """The cells of this rank that somebody will read."""
    wards = (r for r, giver in enumerate(plan.private_from) if giver == rank and r != rank)
    wanted = {
        Part.SHARED: rank in plan.shared_from,
        Part.PRIVATE: plan.private_from[rank] == rank,
        Part.BUDDY: any(True for _ in wards),
    }
    for part in (part for part, needed in wanted.items() if needed):
        cell = arena.find(part, plan.key)
        assert cell is not None, "the inventory has just seen it"
        yield cell


def _verify(cells: list[Cell]) -> bool:
    damaged = [cell for cell in cells if not cell.intact()]
    for cell in damaged:
        logger.warning("a damaged part of a snapshot was found and dropped")
        cell.discard()
    return not damaged


def _say_what_was_lost(held: list[Holding], *, damaged: bool) -> None:
    steps = [key.step for h in held for key in h.shared | h.private]
    if steps or damaged:
        newest = f" (the newest of some rank is of step {max(steps)})" if steps else ""
        logger.warning("no snapshot that every rank can get%s: starting from step 0", newest)
