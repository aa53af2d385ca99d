"""When ranks have done nothing for too long of which no steps are seen: whatever they run.

Their agents count what the kernel knows of any program: output, processors, reads, writes,
processes that begin and end (`agent/idleness.py`). A script may well do nothing for an hour, so
this only has the workers looked at and told of, and what is seen there decides
(`diagnosis/idle.py`): nothing is ended but what cannot go on, or what the job file says may not
take so long. How long a script is idle by itself is learned from it, in all of its attempts: nobody
is looked at within 1.5 times the longest such time so far, or two thirds of `hang_timeout_s`, and
nobody is taken for hung within 1.5 times the longest time at the place where it stands. So a sleep
of an hour that is meant says nothing of a lock elsewhere; where it stood while it was idle is known
from looks, and of what none has seen it may have been any place. What may take as long as it likes
without a step is bounded by `hang_timeout_s`, and by ten times the longest such time once the
attempt has lived for that long. Times are of one clock that never steps back.
"""

import math
from collections.abc import Sequence, Set
from typing import NamedTuple

import msgspec

from holdfast.detection.hang import AGAIN, BEGIN_S, NAMED, PAUSES, SHOWS_STEPS
from holdfast.events import HangSuspected, each_of, in_rows
from holdfast.messages import SAVES, Report, WorkerReport
from holdfast.stacks import StackGroup

LOOK_S = 60.0  # without anything, until the first look, where all ranks are idle
LIMIT_MIN_S = 120.0  # nobody is taken for hung earlier, unless the job file says so
LIMIT_PAUSES = 10.0  # times the longest idle time so far, once that is known
LOOK_AGAIN_S = 10.0  # between two looks, at least
PLACES_MAX = 64  # of which it is known how long ranks have stood there
NEVER = math.inf
Place = tuple[str, ...]  # frames of a main thread, the outermost first


class IdleFor(NamedTuple):
    """How long all ranks that live have been idle, and the one that has been so the longest."""

    all_s: float
    one_s: float


class IdleSpells:
    """How long ranks have been idle and have gone on, by where they stood if a look has seen it."""

    def __init__(self) -> None:
        self.longest_s = 0.0  # anywhere
        self._unseen_s = 0.0  # of those of which no look has seen where
        self._places: dict[Place, float] = {}

    def over(self, seconds: float, place: Place) -> None:
        """One of them is; an empty place is not known."""
        self.longest_s = max(self.longest_s, seconds)
        if place in self._places or (place and len(self._places) < PLACES_MAX):
            self._places[place] = max(seconds, self._places.get(place, 0.0))
        else:
            self._unseen_s = max(self._unseen_s, seconds)

    def at(self, places: Set[Place]) -> float:
        """The longest that may have been at one of these."""
        return max([self._unseen_s, *(self._places.get(place, 0.0) for place in places)])


class IdleWatch:
    """What is known of the idleness of one attempt's ranks; nothing once a step of one is seen."""

    def __init__(self, timeout_s: float, step_timeout_s: float = 0.0) -> None:
        self._timeout_s, self._step_timeout_s = timeout_s, step_timeout_s or NEVER
        self._spells = IdleSpells()  # in all attempts
        self.begin(0, 0, 0.0)

    def begin(self, attempt: int, world_size: int, now: float) -> None:
        """Forget what the ranks do, and watch this attempt of `world_size` ranks."""
        self._attempt, self._world_size, self._began = attempt, world_size, now
        self._idle: dict[int, float] = {}  # by rank
        self._asleep: dict[int, float] = {}  # likewise
        self._left: set[int] = set()
        self._steps_seen = False
        self._next = {True: 0.0, False: 0.0}  # look, at the earliest: where all are idle, or some
        self._suspected: dict[int, float] = {}  # ranks, and how idle they were then
        self._together = False  # all of them are
        self._stands: dict[int, Place] = {}  # where, by the last look

    def observe(self, report: Report) -> None:
        """Take in one node's report. Costs O(workers in the report)."""
        if report.attempt != self._attempt or self._steps_seen:
            return
        for worker in report.workers:
            if 0 <= worker.rank < self._world_size:
                self._take_in(worker)

    def _take_in(self, worker: WorkerReport) -> None:
        shown = not worker.milestones.keys().isdisjoint(SHOWS_STEPS)
        if shown or worker.printed_step is not None:
            self._steps_seen = True
            self._idle.clear()
            return
        rank, before = worker.rank, self._idle.pop(worker.rank, 0.0)
        if worker.phase == SAVES:
            self._left.add(rank)
        elif worker.idle_s is not None:
            self._idle[rank], self._asleep[rank] = worker.idle_s, worker.asleep_s
            if worker.idle_s < before:
                self._spells.over(before, self._stands.pop(rank, ()))
                self._next = {True: 0.0, False: 0.0}

    def _limit_s(self, now: float) -> float:
        """How long ranks may be idle that can only be woken by each other."""
        lived_s = now - self._began - max(self._idle.values(), default=0.0)
        usual_s = max(LIMIT_MIN_S, LIMIT_PAUSES * self._spells.longest_s)
        most_s = usual_s if lived_s >= self._timeout_s else self._timeout_s
        return max(self._meant_s, min(most_s, self._timeout_s))

    @property
    def _meant_s(self) -> float:
        """As long as they may stand where they stand, as far as that is known."""
        places = {self._stands[rank] for rank in self._idle if rank in self._stands}
        return PAUSES * self._spells.at(places)

    @property
    def _promise_s(self) -> float:
        """What the job file gives a step is enough for any other single wait, too, but for how they
        begin. Who wakes up meanwhile may receive what comes slowly."""
        return max(self._step_timeout_s, BEGIN_S, self._meant_s)

    def _idle_for(self, exited: Set[int]) -> IdleFor:
        gone = self._left | exited
        live = [rank for rank in range(self._world_size) if rank not in gone]
        known = [self._idle[rank] for rank in live if rank in self._idle]
        all_s = min(known) if known and len(known) == len(live) else 0.0
        return IdleFor(all_s, max(known, default=0.0))

    def _look_s(self, now: float) -> float:
        """Early enough that what is not looked at would extend no limit."""
        latest_s = max(self._limit_s(now) / PAUSES, self._meant_s)
        return min(max(LOOK_S, PAUSES * self._spells.longest_s), latest_s)

    def is_due(self, now: float, exited: Set[int] = frozenset()) -> bool:
        """Whether ranks are to be looked at; again and again while they are idle. `exited` are
        those that have ended well."""
        if not self._idle or now < min(self._next.values()):
            return False
        all_s, one_s = self._idle_for(exited)
        if all_s >= self._look_s(now):
            return now >= self._next[True]
        return one_s >= max(self._timeout_s, self._meant_s) and now >= self._next[False]

    def suspect(self, now: float, exited: Set[int] = frozenset()) -> HangSuspected:
        """Who that is: all of them, or those that have been idle the longest."""
        all_s, one_s = self._idle_for(exited)
        limit_s = self._limit_s(now)
        together = all_s >= self._look_s(now)
        ago_s = all_s if together else one_s
        budget_s = self._look_s(now) if together else self._timeout_s
        least_s = ago_s if together else ago_s / 2
        self._together = together
        self._suspected = {rank: s for rank, s in self._idle.items() if s >= least_s}
        suspicion = HangSuspected(
            attempt=self._attempt,
            ago_s=ago_s,
            budget_s=budget_s,
            step=None,
            counted=0,
            step_s=0.0,
            trained=True,
            reported=False,
            overdue=together and self._asleep_s >= self._promise_s,
            idle_limit_s=limit_s,
            ranks=in_rows(sorted(self._suspected)[:NAMED]),
        )
        self._plan(suspicion, now, together=together)
        return suspicion

    def _plan(self, suspicion: HangSuspected, now: float, *, together: bool) -> None:
        """When to look again."""
        limit_s, ago_s = suspicion.idle_limit_s or 0.0, suspicion.ago_s
        decisive = limit_s - ago_s, limit_s - self._asleep_s, self._promise_s - self._asleep_s
        ahead = [left_s for left_s in decisive if left_s > 0]
        self._next[together] = now + min([max(LOOK_AGAIN_S, AGAIN * ago_s), *ahead])

    @property
    def _asleep_s(self) -> float:
        """Of all that are suspected."""
        return min((self._asleep[rank] for rank in self._suspected), default=0.0)

    def seen(
        self, suspicion: HangSuspected, groups: Sequence[StackGroup], now: float
    ) -> HangSuspected:
        """The same once a look has shown where ranks stand: they may have stood there for longer
        than this, and have gone on."""
        for group in groups:
            for rank in each_of(group.ranks):
                self._stands[rank] = group.frames
        overdue = self._together and self._asleep_s >= self._promise_s
        limit_s = self._limit_s(now)
        seen = msgspec.structs.replace(suspicion, idle_limit_s=limit_s, overdue=overdue)
        self._plan(seen, now, together=self._together)
        return seen

    def over(self) -> int | None:
        """A rank that was told of and has done something since; told once."""
        acts = (rank for rank, s in self._suspected.items() if self._idle.get(rank, 0.0) < s)
        if (rank := next(acts, None)) is not None:
            self._suspected = {}
        return rank
