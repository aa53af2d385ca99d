"""Taking snapshots of the tracked state into the arena, and getting one back.

Ranks meet (`exchange`) at every step that may end with a snapshot, and about once a second besides.
A meeting shows that all ranks have the newest snapshot whole, and settles what happens next: a
snapshot or none, for which durable tiers, urgent because a node is about to go. It is opened in
the optimizer's pre-step hook, so it is normally over when the step is.

A snapshot writes the shared and the private part into cells that hold nothing which is still
needed: the newest snapshot that every rank can get even if a node is lost, one that agents are
copying to other nodes, those that are being saved to durable tiers. Where no such cell is free on
some rank, all ranks wait with the snapshot, never with training.

After a step whose loss or gradient norm is not finite on some rank no snapshot is taken, until the
numbers are finite again: there would soon be none of a sound state left. What is known of the step
under way comes too late for its own snapshot where the meeting runs beside the optimizer, or the
numbers are still on the GPU; so one snapshot may be of the bad step, and the one before it stays.

Copies may go on beside training (`snapshot_writer`). Where one was spoiled, all ranks give that
snapshot up and take another one at once.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable

import torch
from torch.utils.hooks import RemovableHandle

from holdfast.checkpoint.arena import Arena, Cell
from holdfast.checkpoint.contents import LOOP
from holdfast.checkpoint.settings import CheckpointSettings
from holdfast.checkpoint.storage_page import StoragePage
from holdfast.checkpoint.streams import BackgroundCopier
from holdfast.checkpoint.tiers import SnapshotFlag
from holdfast.train.cadence import Cadence
from holdfast.train.candidates import Location
from holdfast.train.capture import Capture
from holdfast.train.exchange import Agreed, Exchange
from holdfast.train.in_use import SnapshotsInUse
from holdfast.train.layout import Ranks
from holdfast.train.loop import LoopPosition
from holdfast.train.meetings import Meetings
from holdfast.train.peer_copies import PeerCopies
from holdfast.train.placement import Placement
from holdfast.train.replicas import ReplicaChecks
from holdfast.train.restore import bring_in
from holdfast.train.save_requests import NO_FLAG, SaveRequests
from holdfast.train.surviving_group import AttemptBrokenError
from holdfast.train.tracked import Tracked, Tree

logger = logging.getLogger(__name__)

END_PAUSE_S, END_TRIES = 0.1, 600  # counted, because all ranks must stop waiting together


class Snapshotter:
    """The snapshots of one rank: at the end of each step `stepped`, `meet`, and perhaps `take`."""

    def __init__(
        self,
        arena: Arena,
        storage_page: StoragePage | None,
        exchange: Exchange | None,
        placement: Placement,
        tracked: Tracked,
        cadence: Cadence,
        settings: CheckpointSettings,
        background: BackgroundCopier | None = None,
        check_every: int = 0,
    ) -> None:
        """`background` carries out copies beside training; None: `take` does. `check_every` is
        `recovery.check_replicas_every` of the job."""
        self.whole: Callable[[int, float], None] = lambda _step, _seconds: None
        """Called when the snapshot of a step is whole here, with what training waited for it."""
        self._arena = arena
        self._exchange = exchange
        self._placement = placement
        self._tracked = tracked
        self.cadence = cadence
        self.loop = LoopPosition()
        self.requests = SaveRequests(settings, storage_page)
        self._in_use = SnapshotsInUse(arena, storage_page, durable=bool(settings.tiers))
        self._peers = PeerCopies(storage_page, exchange, placement, tracked, settings.copies)
        self.capture = Capture(arena, placement, tracked, self._in_use, background)
        first = placement.rank == 0
        replicas = ReplicaChecks(tracked, exchange, check_every, says=first)
        self._meetings = Meetings(
            *(exchange, cadence, self.loop, self._in_use, self.requests),
            *(self.capture, replicas),
        )
        self._restored: Tree | None = None  # until the random numbers are put back
        self._beside = False  # the step under way is the one that the newest is copied beside
        self._start = 0

    @property
    def under_way(self) -> bool:
        """Whether the newest snapshot is being copied beside training."""
        return self.capture.writer.under_way

    def waits(self, flags: SnapshotFlag) -> bool:
        """Whether training waits for a snapshot with these flags."""
        return self.capture.writer.waits(urgent=bool(flags & SnapshotFlag.URGENT))

    @property
    def replicas(self) -> ReplicaChecks:
        """Compares parameters with those of other ranks."""
        return self._meetings.replicas

    @property
    def step(self) -> int:
        """Completed steps in the newest snapshot."""
        return self._in_use.step

    # ── getting one back ──

    def restore(self) -> int:
        """Load the newest snapshot that every rank can get; returns its step, 0 for none.

        The random numbers are put back by `restore_random`, after everything else is set up.
        """
        place = self._placement
        ranks = Ranks(place.rank, place.world_size, place.local_world_size)
        found = bring_in(self._arena, self._exchange, ranks, self._tracked, place.attempt)
        if found is not None:
            self._in_use.restored(found.key)
            self.loop.ranks_before = found.world_size
            self._peers.parent, self._restored = found.parent, found.private
            self._tracked.load(found.shared, found.private)
            elsewhere = found.where is Location.ELSEWHERE  # another job: it is not ended
            self.loop.restored(found.private.get(LOOP, {}), elsewhere=elsewhere)
            if found.where is Location.ARENAS and found.copies_missing:
                # waited for, so that another node may be lost as soon as training goes on
                self._send_copy(self._in_use.private_cell())
                self.finish()
        self._begin(found.key.step if found else 0)
        return self._start

    def restore_random(self) -> None:
        """Put the random number generators back, if a snapshot was restored."""
        if self._restored is not None:
            self._tracked.load_random(self._restored)
            self._restored = None

    def _begin(self, step: int) -> None:
        self._start = self._meetings.last = self.loop.completed = step
        self.loop.held = step > 0
        if self._placement.rank == 0:
            self.requests.decide_from(step)
        self._peers.introduce()
        self.replicas.begin(step)
        self.capture.reserve()

    # ── meeting the other ranks ──

    def stepped(self, step_s: float) -> None:
        """The step under way took this long."""
        waited_s = self.capture.writer.waited_s if self._beside else 0.0
        self.cadence.stepped(step_s - waited_s, beside=self._beside)
        self._beside = False

    def meet(self, completed: int, total: int) -> SnapshotFlag | None:
        """Agree on what follows step number `completed`; a snapshot with these flags, or (None) no
        snapshot."""
        self.loop.completed, self.loop.total = completed, total
        self.capture.writer.require_guarded()
        self._settle()
        if not self._meetings.due(completed):
            return None
        self._meetings.open(completed)
        agreed = self._meetings.close()
        self._meetings.last = completed
        self._learn(agreed)
        due = self.cadence.due(completed, self.step, self.loop.total) or self._meetings.owed
        asked = agreed.torn or agreed.urgent or self.requests.waiting
        full = agreed.blocked or (agreed.pending and agreed.stuck)
        if full or self.loop.unsound or not (due or agreed.tiers or asked):
            return None
        last = completed >= self.loop.total
        waits = self.loop.apart or self.capture.gradients.wait(agreed, last=last)
        self._meetings.owed = waits
        return None if self._meetings.owed else self._flags(agreed)

    def _flags(self, agreed: Agreed) -> SnapshotFlag:
        """What is to become of the snapshot that is taken now."""
        completed = self.loop.completed
        flags = self.requests.flags(agreed, completed, last=completed == self.loop.total)
        return flags | (SnapshotFlag.COPY if self._in_use.copies_next else NO_FLAG)

    def before_optimizer(self, *_: object) -> None:
        """What is copied beside training comes before the next change; let the meeting of this
        step run beside the optimizer, unless a copy is still under way."""
        if self.capture.guard():
            with contextlib.suppress(AttemptBrokenError):  # the loop will see it
                self._settle()
                completed = self.loop.completed + 1
                early = self._exchange is not None and self.capture.gradients.clean_after_step
                if early and self._meetings.due(completed):
                    self._meetings.open(completed, clean=True)

    def end(self, total: int) -> SnapshotFlag | None:
        """After the last step: the flags of a snapshot of it, once there is room for one.

        None where there is one already, or (with a warning) no room came free.
        """
        for _ in range(END_TRIES if self.step < total else 0):
            flags = self.meet(total, total)
            if flags is not None:
                return flags
            if self.loop.unsound:
                why = "replicas differ" if self.loop.replicas_differ else "not finite"
                logger.warning("the last step, %d, is not in a snapshot: %s", total, why)
                return None
            time.sleep(END_PAUSE_S)
        if self.step < total:
            logger.warning("the last step, %d, is not in a snapshot: no free slot", total)
        return None

    def finish(self) -> None:
        """Return when the newest snapshot is whole on all ranks."""
        self._settle()
        if self._meetings.unmet:
            self._meetings.open(self.step, over=True)
            self._learn(self._meetings.close())

    def _learn(self, agreed: Agreed) -> None:
        """All ranks have the newest snapshot whole, and know what all the others know."""
        self.loop.learn(agreed)
        if agreed.torn:  # it counts as not taken, on all ranks; another one follows at once
            self.capture.gradients.spoiled = False
            self._in_use.give_up()
            self.requests.give_up()
        self.loop.held |= self.step > 0 and not agreed.torn
        self._compare()
        if self._peers.hand_over(agreed):
            self._in_use.by_agents = True
        self._in_use.met(pending=bool(agreed.pending))
        self.cadence.decide(self._meetings.last - self._start, agreed.cost_us, agreed.step_us)

    def _compare(self) -> None:
        """What was taken since all replicas were last the same is not gone on from."""
        if self._exchange is None or not self.replicas.learn(self._exchange.heard):
            return
        differ = self.replicas.differ
        assert differ is not None
        self.loop.replicas_differ = self.loop.unsound = True
        if self.step > max(differ.agreed, self._start):
            self._in_use.give_up()

    def intervals(self) -> list[float]:
        """Seconds between two checkpoints of each tier, as planned now; 0 for one that is not used.
        Empty on ranks that do not decide."""
        return self.requests.intervals(self.cadence.cost_us / 1e6)

    # ── taking one ──

    def take(self, step: int, flags: SnapshotFlag = NO_FLAG) -> None:
        """Snapshot the state after this many completed steps. `flags` are those of `meet`.

        Raises `Error` (not-tracked, snapshot-too-large).
        """
        self.replicas.look(step)
        key = self.capture.take(step, flags, self.requests.name or "", self.loop)
        self._in_use.taken(key, flags)
        self.requests.taken(step, flags)
        self._beside = self.capture.writer.under_way
        if not self._beside:
            self._settle()

    def _settle(self) -> None:
        """The newest snapshot is whole here, and its private part on its way to the buddy."""
        private = self.capture.settle()
        if private is None:
            return
        waited_s, taken_s = self.capture.waited_s, self.capture.writer.taken_s
        self.cadence.took(waited_s + self.replicas.cost_s, taken_s)
        if not self.capture.writer.torn:
            self.whole(self.step, waited_s + taken_s)
        self._send_copy(private)

    def _send_copy(self, private: Cell) -> None:
        self._meetings.unmet = True
        if self._exchange is not None and self._exchange.sends_copies:
            inbox = self._arena.target_for(self._exchange.ward, self._in_use.kept)
            self._exchange.start(private, inbox)


def watch_optimizers(
    snapshots: Snapshotter, optimizers: Iterable[torch.optim.Optimizer]
) -> list[RemovableHandle]:
    """Open the meeting of a step when its first optimizer begins, and guard what is copied."""
    return [one.register_step_pre_hook(snapshots.before_optimizer) for one in optimizers]
