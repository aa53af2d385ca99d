"""Taking snapshots of the tracked state into the arena, and getting one back.

Ranks meet (`exchange`) at every step that may end with a snapshot, and about once a second besides.
A meeting shows that all ranks have the newest snapshot whole, and settles what happens next: a
snapshot or none, for which durable tiers, in a hurry because a node is about to go. It is opened in
the optimizer's pre-step hook, so it is normally over when the step is.

A snapshot writes the shared and the private part into cells that hold nothing which is still
needed: the newest snapshot that every rank can get even if a node is lost, one that agents are
copying to other nodes, those that are being saved to durable tiers. Where no such cell is free on
some rank, all ranks wait with the snapshot, never with training.

Copies may go on beside training (`copies`). Where one was spoiled, all ranks give that snapshot up
and take another one at once.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable

import msgspec
import torch

from holdfast.checkpoint.arena import OWN, Arena, Cell, Key, Part
from holdfast.checkpoint.board import Board, Flag, Peer, Roster, Saved, Tier
from holdfast.checkpoint.contents import GRADIENTS, LOOP
from holdfast.checkpoint.placement import keepers
from holdfast.checkpoint.schedule import Schedule
from holdfast.checkpoint.settings import Settings
from holdfast.checkpoint.streams import Later
from holdfast.checkpoint.tensors import Stamp
from holdfast.errors import Error
from holdfast.train.cadence import Cadence
from holdfast.train.candidates import Where
from holdfast.train.copies import Copies
from holdfast.train.exchange import COPY_LIMIT_BYTES, Agreed, Exchange
from holdfast.train.gradients import Gradients
from holdfast.train.layout import Ranks, groups_of
from holdfast.train.placement import Placement
from holdfast.train.restore import bring_in
from holdfast.train.tracked import Tracked, Tree

logger = logging.getLogger(__name__)

NO_FLAG = Flag(0)
RESERVE_SLACK = 64 * 1024  # bytes: the index grows with the optimizer's state
END_PAUSE_S, END_TRIES = 0.1, 600  # counted, because all ranks must stop waiting together
COPY_PATIENCE_S = 60.0  # a copy that takes longer is not waited for any more


class Snapshots:
    """The snapshots of one rank.

    `_newest` is whole here, and everywhere after the next meeting. `_kept` is whole on all ranks
    and as many copies of it exist as there are to be. `_copying` is with the agents, `_saving` are
    on their way to durable tiers, the oldest first.
    """

    def __init__(
        self,
        arena: Arena,
        board: Board | None,
        exchange: Exchange | None,
        placement: Placement,
        tracked: Tracked,
        cadence: Cadence,
        settings: Settings,
        later: Later | None = None,
    ) -> None:
        """`later` carries out copies beside training; None: `take` does."""
        self.whole: Callable[[int, float], None] = lambda _step, _seconds: None
        """Called when the snapshot of a step is whole here, with what training waited for it."""
        self._arena = arena
        self._copies = Copies(arena, tracked.place, later)
        self._gradients = Gradients(tracked)
        self._gradients.room, self._gradients.discard = self._has_memory_for, self._discard_newest
        self._owed = False  # a snapshot that was due waits for its turn (`gradients`)
        self._holds_gradients = False  # the private part that was written last
        self._asks_end = False
        self.ended = False
        """Whether all ranks know that some rank wants the loop to end."""
        self.stopping = False
        """Whether all ranks know that the job is to stop, or that some node is about to go."""
        self._unsettled: Cell | None = None  # the private cell, until copies have settled
        self._again = NO_FLAG  # what was to become of a snapshot that was given up
        self._flagged = NO_FLAG  # the same of the newest one, and its name
        self._labelled: str | None = None
        self._taking_s = 0.0  # what training waited in `take`
        self._beside = False  # the step under way is the one that the newest is copied beside
        self._board = board
        self._exchange = exchange
        self._placement = placement
        self._tracked = tracked
        self.cadence = cadence
        self._settings = settings
        self._fingerprint = tracked.fingerprint()
        self._kept: Key | None = None
        self._restored: Tree | None = None  # until the random numbers are put back
        self._newest: Key | None = None
        self._parent: Key | None = None
        self._copying: Key | None = None
        self._copying_since = 0.0
        self._saving: list[Key] = []
        self._by_agents = False  # private parts are copied by the agents' side
        self._refused = False  # or would be, if every node had somebody to do so
        self._unmet = False  # no meeting since the newest snapshot
        self._met = 0  # completed steps at the last meeting
        self._completed = 0
        self._total = 0
        self._start = 0
        self._private_bytes = 0
        self._expected_bytes = 0  # of the private part, without gradients
        self._mine = Agreed()
        self._named: str | None = None
        self._hurried = False
        self._schedule: Schedule | None = None

    @property
    def under_way(self) -> bool:
        """Whether the newest snapshot is being copied beside training."""
        return self._copies.under_way

    def waits(self, flags: Flag) -> bool:
        """Whether training waits for a snapshot with these flags."""
        return self._copies.waits(hurry=bool(flags & Flag.URGENT))

    @property
    def step(self) -> int:
        """Completed steps in the newest snapshot."""
        return self._newest.step if self._newest else 0

    @property
    def requested(self) -> str | None:
        """What the checkpoint is called that was asked for and has not been taken."""
        return self._named

    # ── getting one back ──

    def restore(self) -> int:
        """Load the newest snapshot that every rank can get; returns its step, 0 for none.

        The random numbers are put back by `restore_random`, after everything else is set up.
        """
        place = self._placement
        ranks = Ranks(place.rank, place.world_size, place.local_world_size)
        found = bring_in(self._arena, self._exchange, ranks, self._tracked, place.attempt)
        if found is not None:
            self._newest = self._kept = found.key
            self._parent, self._restored = found.parent, found.private
            self._tracked.load(found.shared, found.private)
            elsewhere = found.where is Where.ELSEWHERE  # another job: it is not ended
            self.ended = not elsewhere and bool(found.private.get(LOOP))
            if found.where is Where.ARENAS and found.copies_missing:
                # waited for, so that another node may be lost as soon as training goes on
                self._send_copy(self._cell(Part.PRIVATE))
                self.finish()
        self._begin(found.key.step if found else 0)
        return self._start

    def restore_random(self) -> None:
        """Put the random number generators back, if a snapshot was restored."""
        if self._restored is not None:
            self._tracked.load_random(self._restored)
            self._restored = None

    def _begin(self, step: int) -> None:
        self._start = self._met = self._completed = step
        if self._placement.rank == 0 and self._board is not None:
            self._schedule = Schedule(self._settings, self._saved(), time.monotonic(), step)
        self._introduce(())
        self._reserve()

    def _reserve(self) -> None:
        """Find all memory now: touching it in a step would cost many times the copy itself.

        Raises `Error` (not-tracked, snapshot-too-large).
        """
        lengths = self._copies.encode(*self._tracked.capture())
        grows = Part.SHARED if self._tracked.replicated else Part.PRIVATE
        lengths[grows] += self._tracked.coming_bytes()
        self._expected_bytes = lengths[Part.PRIVATE]
        for part, length in lengths.items():
            for cell in self._arena.cells(part)[: self._slots]:
                cell.reserve(length + RESERVE_SLACK + length // 256)

    def _has_memory_for(self, more_bytes: int) -> bool:
        """Find memory for a private part that is so much larger, now."""
        length = self._expected_bytes + more_bytes
        try:
            for cell in self._arena.cells(Part.PRIVATE)[: self._slots]:
                cell.reserve(length + RESERVE_SLACK + length // 256)
        except Error:
            return False
        return True

    def _introduce(self, peers: Iterable[Peer]) -> None:
        if self._board is None:
            return
        place = self._placement
        roster = Roster(
            attempt=place.attempt,
            rank=place.rank,
            world_size=place.world_size,
            local_world_size=place.local_world_size,
            parent=self._parent,
            peers=tuple(peers),
        )
        self._board.introduce(roster)

    # ── meeting the other ranks ──

    def request(self, name: str) -> None:
        """The step under way is to end with a snapshot that is saved under this name.

        Called by all ranks in the same step.
        """
        if self._named not in (None, name):
            logger.warning(
                "the checkpoint %s could not be taken yet, it is called %s now",
                *(self._named, name),
            )
        self._named = name

    def ask_end(self) -> None:
        """The loop is to end, on all ranks, once they have met. May be called by any of them."""
        self._asks_end = True

    def stepped(self, step_s: float) -> None:
        """The step under way took this long."""
        waited_s = self._copies.waited_s if self._beside else 0.0
        self.cadence.stepped(step_s - waited_s, beside=self._beside)
        self._beside = False

    def meet(self, completed: int, total: int) -> Flag | None:
        """Agree on what follows step number `completed`; a snapshot with these flags, or (None) no
        snapshot."""
        self._completed, self._total = completed, total
        self._copies.require_guarded()
        self._settle()
        if not self._meets(completed):
            return None
        self._open(completed)
        agreed = self._exchange.pass_fence() if self._exchange is not None else self._mine
        self._met = completed
        self._learn(agreed)
        due = self.cadence.due(completed, self.step, self._total) or self._owed
        tiers = agreed.local or agreed.shared or agreed.archive
        asked = agreed.torn or self._again or agreed.urgent or self._named is not None
        full = agreed.blocked or (agreed.pending and agreed.stuck)
        if full or not (due or tiers or asked):
            return None
        self._owed = self._gradients.wait(agreed, last=completed >= self._total)
        return None if self._owed else self._flags(agreed)

    def before_optimizer(self, *_: object) -> None:
        """What is copied beside training comes before the next change; let the meeting of this
        step run beside the optimizer, unless a copy is still under way."""
        if self._unsettled is not None and not self._copies.guard():
            return
        self._settle()
        early = self._exchange is not None and self._gradients.clean_after_step
        if early and self._meets(self._completed + 1):
            self._open(self._completed + 1, clean=True)

    def end(self, total: int) -> Flag | None:
        """After the last step: the flags of a snapshot of it, once there is room for one.

        None where there is one already, or (with a warning) no room came free.
        """
        for _ in range(END_TRIES if self.step < total else 0):
            flags = self.meet(total, total)
            if flags is not None:
                return flags
            time.sleep(END_PAUSE_S)
        if self.step < total:
            logger.warning("step %d, the last one, is in no snapshot: no room came free", total)
        return None

    def finish(self) -> None:
        """Return when the newest snapshot is whole on all ranks."""
        self._settle()
        if self._exchange is not None and self._unmet:
            self._open(self.step)
            self._learn(self._exchange.pass_fence())

    def close_loop(self) -> None:
        """A loop is over; another one is asked to end anew."""
        self.ended = self._asks_end = False

    def _meets(self, completed: int) -> bool:
        """Whether all ranks meet at the end of this step: they all compute the same. They do so a
        step after a snapshot, to learn whether it is whole everywhere."""
        due = self.cadence.due(completed, self.step, self._total)
        asked = self._named is not None or bool(self._again) or self._owed
        asked |= self._asks_end and self._exchange is None  # others do not know of it
        taken = self._met == self.step
        return due or asked or taken or completed - self._met >= self.cadence.meet_every

    def _open(self, completed: int, *, clean: bool = False) -> None:
        """`clean`: the turn is to end without pending gradients, for all that is known now."""
        self._settle()
        if self._exchange is None or not self._exchange.fence_open:
            self._mine = self._say(completed, clean)
        if self._exchange is not None:
            self._exchange.open_fence(self._mine)

    def _say(self, completed: int, clean: bool) -> Agreed:
        """What this rank has to say at the meeting of this step."""
        tiers = self._due_tiers(completed)
        urgent = self._in_a_hurry()
        carried, keep = (0, 0) if clean else self._gradients.say(hurry=urgent)
        return Agreed(
            step=completed,
            minus_step=-completed,
            private_bytes=self._private_bytes,
            cost_us=self.cadence.cost_us,
            step_us=self.cadence.step_us,
            pending=int(self._copy_pending()),
            blocked=int(not self._has_room(pending=False)),
            stuck=int(not self._has_room(pending=True)),
            urgent=int(urgent),
            local=int(Tier.LOCAL in tiers),
            shared=int(Tier.SHARED in tiers),
            archive=int(Tier.ARCHIVE in tiers),
            milestone=int(any(self._is_milestone(tier, completed) for tier in tiers)),
            torn=int(self._unmet and (self._copies.torn or self._gradients.spoiled)),
            carried=carried,
            keep=keep,
            end=int(self._asks_end),
        )

    def _learn(self, agreed: Agreed) -> None:
        """All ranks have the newest snapshot whole, and know what all the others know."""
        if not agreed.together:
            raise Error(
                "ranks-apart",
                f"ranks are at different steps: {-agreed.minus_step} and {agreed.step}",
                why="a snapshot is of one step on all ranks",
                help="call run.checkpoint() on every rank, and give steps() the same total",
            )
        self._unmet = False
        self.stopping |= bool(agreed.urgent)
        if agreed.end:
            self.ended, self._total = True, self._completed
        if agreed.torn:
            self._gradients.spoiled = False
            self._give_up()
        if self._too_large(agreed):
            self._hand_over()
        if not self._by_agents:
            self._kept = self._newest
        elif not agreed.pending:
            self._kept, self._copying = self._copying or self._kept, None
        self.cadence.decide(self._met - self._start, agreed.cost_us, agreed.step_us)

    def _due_tiers(self, completed: int) -> frozenset[Tier]:
        if self._schedule is None or self._needed():
            return frozenset()  # one at a time: the last one is still being saved
        stall_s = self.cadence.cost_us / 1e6
        return self._schedule.due(time.monotonic(), completed, self._saved(), stall_s)

    def intervals(self) -> list[float]:
        """Seconds between two checkpoints of each tier, as planned now; 0 for one that is not used.
        Empty on ranks that do not decide."""
        if self._schedule is None:
            return []
        stall_s, saved = self.cadence.cost_us / 1e6, self._saved()
        used = self._settings.tiers
        every = self._schedule.every_s
        return [every(tier, saved[tier], stall_s) if tier in used else 0.0 for tier in Tier]

    def _is_milestone(self, tier: Tier, completed: int) -> bool:
        return self._schedule is not None and self._schedule.passed(tier, completed)

    def _saved(self) -> dict[Tier, Saved]:
        assert self._board is not None
        return {tier: self._board.of_tier(tier) for tier in Tier}

    def _in_a_hurry(self) -> bool:
        """Whether this node is about to go and no snapshot has been taken for that yet."""
        urgent = self._board is not None and self._board.urgent
        self._hurried = self._hurried and urgent
        return urgent and not self._hurried

    def _flags(self, agreed: Agreed) -> Flag:
        """What is to become of the snapshot that is taken now."""
        asked = {Tier.LOCAL: agreed.local, Tier.SHARED: agreed.shared, Tier.ARCHIVE: agreed.archive}
        tiers = {tier for tier, wanted in asked.items() if wanted or self._again & (1 << tier)}
        if agreed.milestone:
            self._named = self._named or f"step-{self._completed}"
        elif self._named is not None:
            tiers |= self._first_of(Tier.ARCHIVE, Tier.SHARED, Tier.LOCAL)
        if agreed.urgent:
            tiers |= self._first_of(Tier.SHARED, Tier.ARCHIVE, Tier.LOCAL)
        if self._completed == self._total:
            distant = {Tier.SHARED, Tier.ARCHIVE}.intersection(self._settings.tiers)
            tiers |= distant or set(self._settings.tiers)
        flags = Flag(sum(1 << tier for tier in tiers))
        flags |= Flag.URGENT if agreed.urgent else self._again & Flag.URGENT
        return flags | (Flag.COPY if self._by_agents and self._copying is None else NO_FLAG)

    def _first_of(self, *tiers: Tier) -> set[Tier]:
        return set([tier for tier in tiers if tier in self._settings.tiers][:1])

    # ── copies by the agents' side ──

    def _too_large(self, agreed: Agreed) -> bool:
        """Whether the agents' side has to make the copies from now on."""
        if self._exchange is None or self._refused or self._by_agents:
            return False
        several = self._settings.copies > 1
        large = self._settings.copies == 1 and agreed.private_bytes > COPY_LIMIT_BYTES
        return (several or large) and self._exchange.nodes > 1

    def _hand_over(self) -> None:
        """Tell the agents' side who keeps the copies of this rank. All ranks do so together."""
        assert self._exchange is not None
        address = os.environ.get("HOLDFAST_STORAGE_ADDRESS", "")
        addresses = [one.decode() for one in self._exchange.gather_bytes(address.encode())]
        if not all(addresses):
            self._refused = True
            logger.warning("no copies on other nodes: %d of them take none", addresses.count(""))
            return
        self._by_agents = True
        local = self._placement.local_world_size
        everyone = keepers(len(addresses), local, self._groups(), self._settings.copies)
        mine = everyone[self._placement.rank]
        self._introduce(Peer(rank, addresses[rank], rank % local) for rank in mine)

    def _groups(self) -> list[tuple[int, ...]]:
        """The parallel groups that any rank knows of."""
        assert self._exchange is not None
        mine = [*groups_of(self._tracked.parameters().values())]
        told = self._exchange.gather_bytes(msgspec.msgpack.encode(mine))
        decoded = (msgspec.msgpack.decode(one, type=list[tuple[int, ...]]) for one in told)
        return sorted({group for one in decoded for group in one})

    def _copy_pending(self) -> bool:
        if self._copying is None or self._board is None:
            return False
        copied = self._board.newest_copied
        late = time.monotonic() - self._copying_since > COPY_PATIENCE_S
        return not late and (copied is None or copied < self._copying)

    # ── taking one ──

    def take(self, step: int, flags: Flag = NO_FLAG) -> None:
        """Snapshot the state after this many completed steps. `flags` are those of `meet`.

        Raises `Error` (not-tracked, snapshot-too-large).
        """
        began = time.monotonic()
        shared, private = self._tracked.capture()
        kept = self._gradients.keep(last=step >= self._total)
        private |= {GRADIENTS: kept.tree} if kept.tree else {}
        private |= {LOOP: {"ended": True}} if self.ended else {}
        self._holds_gradients = kept.pending
        lengths = self._copies.encode(shared, private, label=self._named or "")
        self._private_bytes = lengths[Part.PRIVATE]
        key = Key(self._placement.attempt, step)
        place = self._placement
        stamp = Stamp(key, place.rank, place.world_size, self._fingerprint, flags)
        needed = self._needed(self._kept, self._copying)
        hurry = bool(flags & Flag.URGENT)
        self._unsettled = self._copies.write(stamp, needed, self._slots, hurry=hurry)
        self._newest = key
        self._note(key, flags)
        self._taking_s = time.monotonic() - began
        self._beside = self._copies.under_way
        if not self._copies.under_way:
            self._settle()

    def _settle(self) -> None:
        """The newest snapshot is whole here, and its private part on its way to the buddy."""
        private, self._unsettled = self._unsettled, None
        if private is None:
            return
        self._copies.settle()
        if self._holds_gradients:
            self._copies.forget()
        waited_s, taken_s = self._taking_s + self._copies.waited_s, self._copies.taken_s
        self.cadence.took(waited_s, taken_s)
        if not self._copies.torn:
            self.whole(self.step, waited_s + taken_s)
        self._send_copy(private)

    def _give_up(self) -> None:
        """The newest snapshot counts as not taken, on all ranks; another one follows at once."""
        void = self._newest
        assert void is not None, "only a snapshot can be torn"
        self._discard_newest()
        if self._board is not None:
            self._board.void(void)
        self._saving = [key for key in self._saving if key != void]
        self._copying = None if self._copying == void else self._copying
        self._newest = self._kept
        self._again, self._named = self._flagged, self._named or self._labelled

    def _discard_newest(self) -> None:
        """Nobody goes on from the newest snapshot, as far as it lies here."""
        for part in Part:
            cell = self._newest and self._arena.find(part, self._newest)
            if cell is not None:
                cell.discard()

    def _note(self, key: Key, flags: Flag) -> None:
        """Remember who reads this snapshot from now on."""
        if flags & Flag.COPY:
            self._copying, self._copying_since = key, time.monotonic()
        tiers = [tier for tier in Tier if flags & (1 << tier)]
        if tiers:
            self._saving.append(key)
        if self._schedule is not None:
            self._schedule.asked(tiers, time.monotonic(), key.step)
        if flags & Flag.URGENT:
            self._hurried = True
        self._flagged, self._labelled = flags, self._named
        self._again, self._named = NO_FLAG, None

    def _send_copy(self, private: Cell) -> None:
        self._unmet = True
        if self._exchange is not None and self._exchange.sends_copies:
            self._exchange.start(private, self._arena.target_for(self._exchange.ward, self._kept))

    # ── cells ──

    @property
    def _slots(self) -> int:
        """With readers on the agents' side a third cell, so that they hold up no snapshot."""
        return 3 if self._by_agents or self._settings.tiers else 2

    def _needed(self, *keys: Key | None) -> list[Key]:
        """These, and what is being saved: not to be overwritten."""
        released = self._board.released if self._board is not None else None
        self._saving = [key for key in self._saving if released is None or key > released]
        return [*(key for key in keys if key is not None), *self._saving]

    def _has_room(self, *, pending: bool) -> bool:
        """Whether a snapshot can be written after the meeting that is to come."""
        if not self._by_agents:
            needed = self._needed(self._newest)
        elif pending:
            needed = self._needed(self._kept, self._copying)
        else:
            needed = self._needed(self._copying or self._kept)
        return all(self._arena.target(part, needed, self._slots) for part in OWN)

    def _cell(self, part: Part) -> Cell:
        cell = self._newest and self._arena.find(part, self._newest)
        assert cell, "a restored snapshot stays until the next one is whole everywhere"
        return cell


def watch_optimizers(snapshots: Snapshots, optimizers: list[torch.optim.Optimizer]) -> None:
    """Open the meeting of a step when its first optimizer begins, and guard what is copied."""
    for optimizer in optimizers:
        optimizer.register_step_pre_hook(snapshots.before_optimizer)
