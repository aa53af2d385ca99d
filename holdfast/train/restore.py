"""Bringing every rank to the same snapshot or checkpoint: agree, verify, fetch, until one holds.

All ranks try the same list (`candidates`) in the same order, the newest first, and vote after each
stage. A snapshot in memory that was taken in this very layout is used as it lies there; everything
else goes through one mechanism (`sources`, `reshard`, `fetch`), from whichever layout it comes.

What cannot be loaded is one of three things (`load_failure`). What turns out to be damaged on any
rank is given up by all and named; damaged memory is thrown away and the list is made anew, because
another copy may do. So damage costs steps, not the job. What storage does not give is waited for,
and then not gone past lightly (`possibly_newer`). And a checkpoint of another model ends the job
with an explanation: who begins anew does so on purpose, never because nothing could be used.
"""

import logging
import os
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from holdfast.checkpoint import catalog
from holdfast.checkpoint.arena import Arena, Cell, Key, StatePart
from holdfast.checkpoint.catalog import Opened
from holdfast.checkpoint.choose import RestorePlan, plan_for
from holdfast.checkpoint.lineage import bad_steps
from holdfast.checkpoint.open_store import open_store
from holdfast.checkpoint.tensors import read
from holdfast.errors import Error
from holdfast.train import candidates, refusals
from holdfast.train.candidates import Candidate, InMemory, Location, RankInventory
from holdfast.train.exchange import Exchange, transfers
from holdfast.train.fetch import fetch, read_bytes
from holdfast.train.layout import Ranks
from holdfast.train.load_failure import FailureKind, LoadFailure, failure_of, worst
from holdfast.train.possibly_newer import possibly_newer
from holdfast.train.read_plan import MisfitError
from holdfast.train.reshard import Assembly
from holdfast.train.soundness import nan_in
from holdfast.train.sources import Disks, Files, Memory, ReadablePart, StateSource, readable_parts
from holdfast.train.tracked import Tracked, Tree

logger = logging.getLogger(__name__)

_ROUNDS = 64  # damaged cells and checkpoints: more means that memory changes under our hands
_WORDS = {
    FailureKind.MISFIT: "is of a different model",
    FailureKind.DAMAGED: "is damaged",
    FailureKind.STORAGE: "cannot be read at the moment",
}
_inventories = msgspec.msgpack.Decoder(RankInventory)  # made ahead: it takes milliseconds
_failures = msgspec.msgpack.Decoder(LoadFailure | None)
_memories = msgspec.msgpack.Decoder(list[InMemory])
PAUSES_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)  # between looks at storage that does not answer


class Restored(NamedTuple):
    """What every rank now has: two trees as `Tracked.capture` gives them."""

    key: Key
    where: Location
    shared: Tree
    private: Tree
    world_size: int  # that left it
    copies_missing: bool  # a buddy's copy of some rank is missing, and everybody has its own

    @property
    def parent(self) -> Key | None:
        """What of this job training goes on from; None for a checkpoint of another job."""
        return None if self.where is Location.ELSEWHERE else self.key


def bring_in(
    arena: Arena,
    exchange: Exchange | None,
    ranks: Ranks,
    tracked: Tracked,
    attempt: int,
    environ: Mapping[str, str] = os.environ,
) -> Restored | None:
    """Fetch the newest state that all ranks can get; None where there is none.

    `attempt` is the number of the one that begins.

    Raises `Error`: snapshot-unreadable when parts keep arriving damaged, layout-unknown when there
    is one that cannot be given to this layout, checkpoint-unusable when the newest one is of
    another model or none is sound, storage-unreachable when there may be a newer one that storage
    does not give now, storage-ahead when storage knows later attempts, storage-missing when all
    that this job has saved is gone, checkpoint-not-found when there is none where the job is to
    begin from, checkpoint-in-use when another job of this name lives where this one saves.
    """
    restoring = _Restoring(arena, exchange, ranks, tracked, attempt, environ)
    began = time.monotonic()
    found = restoring.run()
    if found is not None:
        _discard_newer(arena, found)
        if ranks.rank == 0:
            seconds, size = time.monotonic() - began, restoring.bytes / (1 << 20)
            level = logging.INFO if found.where is Location.ARENAS else logging.WARNING
            logger.log(
                level,
                "restored step %d of attempt %d from %s: %.0f MiB on rank 0 in %.2f s",
                *(found.key.step, found.key.attempt, _named(found.where, environ), size, seconds),
            )
    return found


def _named(where: Location, environ: Mapping[str, str]) -> str:
    return environ[candidates.FROM] if where is Location.ELSEWHERE else where.words


class _Restoring:
    """One restore. `_dropped` is the same on all ranks."""

    def __init__(
        self,
        arena: Arena,
        exchange: Exchange | None,
        ranks: Ranks,
        tracked: Tracked,
        attempt: int,
        environ: Mapping[str, str],
    ) -> None:
        self._arena = arena
        self._exchange = exchange
        self._ranks = ranks
        self._tracked = tracked
        self._attempt = attempt
        self._environ = environ
        self._bad_steps = bad_steps(environ)
        self._fingerprint = tracked.fingerprint()
        self._dropped: dict[Candidate, LoadFailure] = {}
        self._unread: dict[Candidate, str] = {}  # storage did not give it, since we last waited
        self._pauses = list(PAUSES_S)
        self._inventories: list[RankInventory] = []
        self._listed: list[Candidate] = []
        self.bytes = 0

    def run(self) -> Restored | None:
        checkpoints: RankInventory | None = None
        for _ in range(_ROUNDS):
            candidate = self._best(checkpoints or RankInventory([]))
            self._require_newest()
            if checkpoints is None and not self._surely_newest(candidate):
                checkpoints = candidates.in_tiers(self._ranks, self._environ)
                continue
            if self._waits(candidate):
                checkpoints = candidates.in_tiers(self._ranks, self._environ)
                continue
            if candidate is None or candidate.where is Location.ELSEWHERE:
                self._require_what_was_committed()
            if candidate is None:
                self._say_nothing_is_there()
                return None
            found = self._try(candidate)
            if found is not None and self._is_sound(candidate, found):
                return found
            checkpoints = checkpoints or candidates.in_tiers(self._ranks, self._environ)
        raise Error(
            "snapshot-unreadable",
            "snapshots are repeatedly damaged in transfer",
            why=f"checksum mismatch after {_ROUNDS} rounds of transfers",
            help="check the memory and the network of these nodes",
        )

    def _waits(self, one: Candidate | None) -> bool:
        """Whether it was waited for something newer than this, and is to be looked again.

        All ranks know the same and do the same. Raises `Error` storage-unreachable.
        """
        counts = candidates.counting(self._inventories, self._environ)
        found = possibly_newer(one, self._listed, self._inventories, self._unread, counts)
        if not found:
            return False
        why = "; ".join(dict.fromkeys(newer.text for newer in found))
        if self._pauses:
            time.sleep(self._pauses.pop(0))
            self._unread.clear()
            return True
        if one is None or any(newer.firm for newer in found):
            raise refusals.unreachable(one, why)
        if self._ranks.rank == 0:
            logger.warning(
                "resuming from step %d although some checkpoints cannot be read: %s",
                one.key.step,
                why,
            )
        return False

    def _best(self, known: RankInventory) -> Candidate | None:
        """What to try next, from what all ranks have now."""
        mine = msgspec.structs.replace(known, cells=candidates.in_memory(self._arena))
        packed = self._gather(msgspec.msgpack.encode(mine))
        self._inventories = [_inventories.decode(one) for one in packed]
        listed = candidates.candidates(
            self._inventories, self._ranks, self._fingerprint, self._environ
        )
        self._listed = [one for one in listed if one not in self._dropped]
        return next((one for one in self._listed if one not in self._unread), None)

    def _require_newest(self) -> None:
        """What this attempt saves would not count where a later one has been, or what another job
        saves where it lives.

        Raises `Error` storage-ahead, checkpoint-in-use.
        """
        if rivals := [one for inventory in self._inventories for one in inventory.rivals]:
            raise refusals.in_use(rivals)
        known = max(
            (one.attempt for inventory in self._inventories for one in inventory.attempts),
            default=0,
        )
        if 0 < self._attempt <= known:
            raise refusals.ahead(self._attempt, known)

    def _surely_newest(self, one: Candidate | None) -> bool:
        """Whether no tier has to be looked at, which takes its time: the previous attempt
        has left it in memory, nobody has anything newer, and nothing in between can have left it
        behind."""
        steps = [cell.step for inventory in self._inventories for cell in inventory.cells]
        return (
            one is not None
            and one.where is Location.ARENAS
            and one.key == Key(self._attempt - 1, max(steps))
        )

    # ── talking ──

    def _gather(self, mine: bytes) -> list[bytes]:
        return [mine] if self._exchange is None else self._exchange.gather_bytes(mine)

    def _agree(self, failure: LoadFailure | None) -> LoadFailure | None:
        """What is wrong on any rank; None if nothing is."""
        packed = self._gather(msgspec.msgpack.encode(failure))
        said = [_failures.decode(one) for one in packed]
        found = ((rank, one) for rank, one in enumerate(said) if one is not None)
        return worst(LoadFailure(one.kind, f"rank {rank}: {one.text}") for rank, one in found)

    # ── one candidate ──

    def _try(self, one: Candidate) -> Restored | None:
        if one.where is Location.ARENAS:
            return self._as_it_lies(one)
        failure, source = self._open(one)
        if failure is None and source is not None:
            return self._load(one, source)
        self._drop(one, failure)
        return None

    def _load(self, one: Candidate, source: StateSource) -> Restored | None:
        assembly = None
        wrong: LoadFailure | None = None
        try:
            assembly = Assembly(self._tracked, source, self._ranks.rank)
        except MisfitError as error:
            wrong = LoadFailure(error.kind, str(error))
        failure = self._agree(wrong)
        if failure is None and assembly is not None:
            failure = self._agree(fetch(source, assembly.reads, self._exchange, self._ranks.rank))
        if failure is not None or assembly is None:
            self._drop(one, failure)
            return None
        self.bytes = sum(read_bytes(read) for read in assembly.reads)
        if one.world_size != self._ranks.world_size and self._ranks.rank == 0:
            logger.warning(
                "resharding state of %d ranks to %d ranks: per-rank state comes from the rank "
                "with the same number modulo %d",
                *(one.world_size, self._ranks.world_size, one.world_size),
            )
        return Restored(one.key, one.where, *assembly.trees(), one.world_size, copies_missing=False)

    def _drop(self, one: Candidate, failure: LoadFailure | None) -> None:
        """Give this candidate up: for good, or until storage may be back. Another copy of damaged
        memory may do. Raises `Error` for what fits neither this model nor another layout of it."""
        assert failure is not None, "it could be loaded"
        durable = one.where > Location.MEMORY
        if failure.kind is FailureKind.UNCLEAR or (failure.kind is FailureKind.MISFIT and durable):
            raise refusals.misfit(one, failure, self._named(one))
        if failure.kind is FailureKind.STORAGE:
            self._unread[one] = failure.text
        elif durable or failure.kind is FailureKind.MISFIT:
            self._dropped[one] = failure
        if self._ranks.rank == 0:
            logger.warning(
                "step %d in %s is skipped, it %s: %s",
                *(one.key.step, one.where.words, _WORDS[failure.kind], failure.text),
            )

    def _is_sound(self, one: Candidate, found: Restored) -> bool:
        """After a failure that is to be left behind, or of an attempt that had one: whether nothing
        in it is NaN on any rank. A loss may turn NaN a step after the parameters did."""
        broke = one.where is not Location.ELSEWHERE and one.key.attempt in self._bad_steps
        if candidates.BELOW not in self._environ and not broke:
            return True
        failure = self._agree(nan_in(found.shared, found.private, self._tracked))
        if failure is not None:
            self._drop(one, failure)
            self._dropped[one] = failure
        return failure is None

    def _named(self, one: Candidate) -> str:
        if one.where <= Location.MEMORY:
            return one.where.words
        return candidates.place_of(one.where, self._environ) or one.where.words

    def _open(self, one: Candidate) -> tuple[LoadFailure | None, StateSource | None]:
        """Verify what lies here and tell each other what there is."""
        cells: list[tuple[StatePart, Cell]] = []
        disk: tuple[Opened, list[ReadablePart]] | None = None
        files: Files | None = None
        wrong = None
        try:
            if one.where is Location.MEMORY:
                cells = _cells_of(one, self._arena)
                sound = verify([cell for _, cell in cells])
                wrong = None if sound else LoadFailure(FailureKind.DAMAGED, "in memory")
            elif one.where is Location.LOCAL:
                disk = self._disk(one)
            else:
                place = candidates.place_of(one.where, self._environ)
                assert place, "rank 0 has looked there"
                opened = catalog.open_checkpoint(open_store(place), one.key)
                files = Files(opened, self._ranks.world_size)
        except Error as error:
            wrong = failure_of(error)
        failure = self._agree(wrong)
        if failure is not None:
            return failure, None
        if one.where is Location.MEMORY:
            return None, Memory(one.world_size, cells, self._gather)
        local = self._ranks.local_world_size
        return None, files or Disks(one.world_size, disk, self._gather, local)

    def _disk(self, one: Candidate) -> tuple[Opened, list[ReadablePart]] | None:
        """What the disk of this node has of a checkpoint."""
        first = self._ranks.node(self._ranks.rank) * self._ranks.local_world_size
        place = candidates.place_of(Location.LOCAL, self._environ)
        here = [s for s in self._inventories[first].checkpoints if s.where == one.where]
        if place is None or one.key not in [s.key for s in here]:
            return None
        opened = catalog.open_checkpoint(open_store(place), one.key)
        return opened, readable_parts(opened) if self._ranks.rank == first else []

    # ── memory of this very layout ──

    def _as_it_lies(self, one: Candidate) -> Restored | None:
        held = candidates.holdings(self._inventories, self._ranks, self._fingerprint)
        plan = plan_for(one.key, held, self._ranks.copy_distance)
        assert plan is not None, "it is on the list"
        if not self._deliver(plan):
            return None
        shared, private = (
            self._arena.find(p, one.key) for p in (StatePart.SHARED, StatePart.PRIVATE)
        )
        assert shared and private, "every rank has its parts now"
        self.bytes = sum(h.payload_bytes for cell in (shared, private) if (h := cell.header()))
        missing = any(one.key not in h.buddy for h in held)
        trees = read(shared), read(private)
        return Restored(one.key, one.where, *trees, one.world_size, missing)

    def _deliver(self, plan: RestorePlan) -> bool:
        good = verify(list(_used(plan, self._arena, self._ranks.rank)))
        if self._exchange is None:
            return good
        if not self._exchange.all_true(good):
            return False
        if not transfers(plan):  # everybody has verified what it will use
            return True
        return self._exchange.all_true(verify(self._exchange.hand_out(plan, self._arena)))

    # ── none ──

    def _require_what_was_committed(self) -> None:
        """Raises `Error` storage-missing where this job has saved and everything is gone."""
        kept = (Location.SHARED, Location.ARCHIVE)
        seen = any(
            one.where in kept for inventory in self._inventories for one in inventory.checkpoints
        )
        step = self._environ.get(candidates.COMMITTED)
        if step is not None and not seen:
            raise refusals.vanished(step, self._environ)

    def _say_nothing_is_there(self) -> None:
        """Raises `Error` where beginning anew would not be right; else says what was lost."""
        if error := refusals.refusal(self._dropped, self._inventories, self._environ):
            raise error
        if self._ranks.rank == 0:
            self._say_what_was_lost()

    def _say_what_was_lost(self) -> None:
        steps = [cell.step for inventory in self._inventories for cell in inventory.cells]
        steps += [one.step for inventory in self._inventories for one in inventory.checkpoints]
        if steps or self._dropped:
            newest = f" (the newest snapshot of any rank is of step {max(steps)})" if steps else ""
            logger.warning("no snapshot is available to all ranks%s: starting from step 0", newest)


def snapshot_waits(arena: Arena, exchange: Exchange | None, ranks: Ranks) -> bool:
    """Whether all ranks will load the same snapshot from memory, as far as headers tell; `exchange`
    is None for a single rank."""
    mine = msgspec.msgpack.encode(candidates.in_memory(arena))
    told = [mine] if exchange is None else exchange.gather_bytes(mine)
    inventories = [RankInventory(_memories.decode(one)) for one in told]
    prints = {cell.fingerprint for inventory in inventories for cell in inventory.cells}
    return any(
        one.where is Location.ARENAS
        for fingerprint in prints
        for one in candidates.candidates(inventories, ranks, fingerprint)
    )


def _cells_of(one: Candidate, arena: Arena) -> list[tuple[StatePart, Cell]]:
    """What memory of this node has of a snapshot."""
    found = [(part, cell, cell.header()) for part in StatePart for cell in arena.cells(part)]
    return [
        (part, cell)
        for part, cell, h in found
        if h and (h.key, h.world_size, h.fingerprint) == (one.key, *one[2:])
    ]


def _used(plan: RestorePlan, arena: Arena, rank: int) -> Iterator[Cell]:
    """The cells of this rank that somebody will read."""
    wards = [r for r, giver in enumerate(plan.private_from) if giver == rank and r != rank]
    wanted = {
        StatePart.SHARED: rank in plan.shared_from,
        StatePart.PRIVATE: plan.private_from[rank] == rank,
        StatePart.BUDDY: bool(wards),
    }
    for part in (part for part, needed in wanted.items() if needed):
        cell = arena.find(part, plan.key)
        assert cell is not None, "the inventory has just seen it"
        yield cell


def verify(cells: list[Cell]) -> bool:
    """Whether all of these are as they were sealed; those that are not are thrown away."""
    damaged = [cell for cell in cells if not cell.intact()]
    for cell in damaged:
        header = cell.header()
        logger.warning(
            "a damaged part of a snapshot was discarded: step %d of rank %d",
            *((header.step, header.rank) if header else (-1, -1)),
        )
        cell.discard()
    return not damaged


def _discard_newer(arena: Arena, found: Restored) -> None:
    """What lies beyond the step that training goes on from belongs to a branch that is left."""
    for cell in (cell for part in StatePart for cell in arena.cells(part)):
        header = cell.header()
        if header is not None and header.step > found.key.step:
            cell.discard()
