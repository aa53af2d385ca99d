"""When a snapshot of the trees is taken, and what becomes of it. Rank 0 decides for all.

One is due by the job's setting, or as often as its share of the time allows; and, for durable
tiers, by the same schedule as elsewhere. The next one is not begun before all ranks have told that
they have the last one whole: so there is always one that every rank has.
"""

import math
import time
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any

import msgspec

from holdfast.checkpoint.arena import Arena
from holdfast.checkpoint.key import Key
from holdfast.checkpoint.schedule import CheckpointSchedule
from holdfast.checkpoint.settings import CheckpointSettings
from holdfast.checkpoint.storage_page import SaveStatus, StoragePage, WorkerInfo
from holdfast.checkpoint.tiers import SnapshotFlag, Tier
from holdfast.errors import Error
from holdfast.pytrees import cells
from holdfast.pytrees.channel import Channel

_WARM_UP = 2  # the first snapshots touch the memory of all cells
_LAST_TRIES, _LAST_PAUSE_S = 600, 0.1
_LOOK_S = 0.005


class _Word(msgspec.Struct, frozen=True, array_like=True):
    """What rank 0 tells after a step: None for no snapshot. `hold_s`: how long all stand still with
    it, because the attempt ends there."""

    flags: int | None
    hold_s: float = 0.0


class _Report(msgspec.Struct, frozen=True, array_like=True):
    """What a rank tells: its newest whole snapshot, whether it has room, whether its node goes or
    still reads one for a durable tier."""

    step: int
    room: bool
    urgent: bool
    hold_s: float = 0.0
    saving: bool = False


class Rhythm:
    """How many steps lie between two snapshots."""

    def __init__(self, every: str, max_overhead: float) -> None:
        self._fixed = None if every == "auto" else int(every)
        self._max_overhead = max_overhead
        self._costs: deque[float] = deque(maxlen=8)
        self._steps: deque[float] = deque(maxlen=32)
        self._taken = 0

    def stepped(self, step_s: float) -> None:
        """A step took this long, without its snapshot."""
        self._steps.append(step_s)

    def took(self, seconds: float) -> None:
        """A snapshot took this long."""
        self._taken += 1
        if self._taken > _WARM_UP:
            self._costs.append(seconds)

    @property
    def cost_s(self) -> float:
        """What a snapshot costs; 0 while that is not known."""
        return median(self._costs) if self._costs else 0.0

    @property
    def every(self) -> int:
        """Steps."""
        if self._fixed is not None:
            return self._fixed
        if not self._costs or not self._steps:
            return 1
        step_s = max(median(self._steps), 1e-6)
        return max(1, math.ceil(self.cost_s / (self._max_overhead * step_s)))


class TreeSnapshots:
    """Those of one rank."""

    def __init__(
        self,
        arena: Arena,
        page: StoragePage | None,
        channel: Channel,
        info: WorkerInfo,
        settings: CheckpointSettings,
        rhythm: Rhythm,
    ) -> None:
        self._arena, self._page, self._channel = arena, page, channel
        self.fingerprint: int | None = None
        """Of what was given to `run.track()`: what a worker that begins again has as well."""
        self._info, self._settings, self.rhythm = info, settings, rhythm
        self.step = info.parent.step if info.parent else 0
        """Completed steps in the newest snapshot."""
        self._kept = info.parent
        self._saving: list[Key] = []
        self._told = _Report(self.step, room=True, urgent=False)
        self._reports = {
            rank: _Report(self.step, True, False) for rank in range(1, info.world_size)
        }
        self._schedule: CheckpointSchedule | None = None
        self._urgent_answered = False
        if page is not None:
            page.introduce(info)
            if info.rank == 0:
                saved = self._saved(page)
                self._schedule = CheckpointSchedule(settings, saved, time.monotonic(), self.step)

    def after_step(self, step: int, total: int, leaves: Mapping[str, Any], *, sound: bool) -> float:
        """What follows this step; the seconds that it took. All ranks do the same."""
        began = time.monotonic()
        word = self._decided(step, total, sound=sound)
        if word.flags is not None:
            self._take(step, leaves, word.flags)
        if self._info.rank > 0:
            self._report()
        taken_s = time.monotonic() - began
        if word.flags is not None:
            self.rhythm.took(taken_s)
        if word.hold_s and step < total:
            self._hold(word.hold_s)
        return taken_s

    def _hold(self, hold_s: float) -> None:
        """The attempt ends with the snapshot that was just taken: once it is whole everywhere, wait
        to be ended, until the time for that is up."""
        until = time.monotonic() + hold_s
        if self._info.rank > 0:
            self._channel.hear()
        else:
            while not self._whole() and time.monotonic() < until:
                time.sleep(_LOOK_S)
            self._channel.tell(msgspec.msgpack.encode(_Word(None)))
        if self._page is not None:
            self._page.met(self._kept)
        time.sleep(max(0.0, until - time.monotonic()))

    def _whole(self) -> bool:
        """Whether all ranks have told that they have the newest one, or a newer one."""
        for packed in self._channel.reports():
            rank, report = msgspec.msgpack.decode(packed, type=tuple[int, _Report])
            self._reports[rank] = report
        return all(report.step >= self.step for report in self._reports.values())

    def _decided(self, step: int, total: int, *, sound: bool) -> _Word:
        if self._info.rank > 0:
            return msgspec.msgpack.decode(self._channel.hear(), type=_Word)
        flags = self._decide(step, total, sound=sound)
        if step == total and sound and flags is None:  # once there is room for the last one
            for _ in range(_LAST_TRIES):
                time.sleep(_LAST_PAUSE_S)
                if (flags := self._decide(step, total, sound=sound)) is not None:
                    break
        word = _Word(flags, self._hold_s() if (flags or 0) & SnapshotFlag.URGENT else 0.0)
        self._channel.tell(msgspec.msgpack.encode(word))
        return word

    def _decide(self, step: int, total: int, *, sound: bool) -> int | None:
        whole = self._whole()
        room = self._has_room() and all(report.room for report in self._reports.values())
        if not (sound and whole and room):
            return None
        urgent = self._is_urgent()
        saving = bool(self._unreleased()) or any(one.saving for one in self._reports.values())
        tiers = self._tiers_due(step, last=step == total, urgent=urgent, saving=saving)
        due = step in (1, total) or step - self.step >= self.rhythm.every
        if not (due or tiers or urgent):
            return None
        if self._schedule is not None:
            self._schedule.asked(tiers, time.monotonic(), step)
        self._urgent_answered |= urgent
        return sum(1 << tier for tier in tiers) | (SnapshotFlag.URGENT if urgent else 0)

    def _is_urgent(self) -> bool:
        here = self._page is not None and self._page.urgent
        urgent = here or any(report.urgent for report in self._reports.values())
        self._urgent_answered &= urgent
        return urgent and not self._urgent_answered

    def _hold_s(self) -> float:
        here = self._page.hold_s if self._page is not None else 0.0
        return max([here, *(report.hold_s for report in self._reports.values())])

    def _tiers_due(self, step: int, *, last: bool, urgent: bool, saving: bool) -> set[Tier]:
        """By the schedule one at a time on all nodes: one whose storage hangs is to hold up
        checkpoints, and no snapshot."""
        if self._schedule is None or self._page is None:
            return set()
        saved, now = self._saved(self._page), time.monotonic()
        due = set() if saving else set(self._schedule.due(now, step, saved, self.rhythm.cost_s))
        distant = [tier for tier in (Tier.SHARED, Tier.ARCHIVE) if tier in self._settings.tiers]
        return due | set(distant if last else distant[:1] if urgent else ())

    @staticmethod
    def _saved(page: StoragePage) -> dict[Tier, SaveStatus]:
        return {tier: page.of_tier(tier) for tier in Tier}

    def _take(self, step: int, leaves: Mapping[str, Any], flags: int) -> None:
        info = self._info
        key = Key(info.attempt, step)
        fingerprint = cells.fingerprint_of(leaves)
        if self.fingerprint not in (None, fingerprint):
            raise _changed(step)
        stamp = cells.TreeStamp(key, info.rank, info.world_size, fingerprint, flags)
        if self._page is not None:
            self._page.met(self._kept)  # no other one is begun before
        cells.write(self._arena, leaves, stamp, self._needed())
        self._kept, self.step = key, step
        if flags & (SnapshotFlag.LOCAL | SnapshotFlag.SHARED | SnapshotFlag.ARCHIVE):
            self._saving.append(key)

    def _report(self) -> None:
        """Tell rank 0 what has changed."""
        urgent = self._page is not None and self._page.urgent
        news = _Report(self.step, self._has_room(), urgent, saving=bool(self._unreleased()))
        if news != self._told:
            self._told = news
            hold_s = self._page.hold_s if self._page is not None else 0.0
            report = msgspec.structs.replace(news, hold_s=hold_s)
            self._channel.report(msgspec.msgpack.encode((self._info.rank, report)))

    def _has_room(self) -> bool:
        return cells.has_room(self._arena, self._needed())

    def _needed(self) -> set[Key]:
        """What the next one must not overwrite: the newest, and what tiers still read."""
        return {*self._unreleased(), *([self._kept] if self._kept else [])}

    def _unreleased(self) -> list[Key]:
        """Those that durable tiers still read."""
        released = self._page.released if self._page is not None else None
        self._saving = [key for key in self._saving if released is None or key > released]
        return self._saving


def _changed(step: int) -> Error:
    return Error(
        "not-tracked",
        f"the structure of the tracked trees has changed by step {step}",
        why="a leaf was added or removed, or an array has another type or shape than at "
        "run.track(); a restarted worker could not restore it",
        help="track arrays of their final type and shape from the start; bytes may grow",
    )
