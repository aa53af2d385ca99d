"""Asks the members now and then when their workers entered their collectives: is anybody slow, or
has left one out?

One question at a time, every ten seconds in a small job; a large one is asked less often and for
less, so that the answers stay some megabytes a minute. Whoever does not answer in time is left out.
How the clocks of the nodes differ from ours is learned from the same questions and answers; one
that differs from all others is a condition of its node. Pure, like everything in the shell.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.collectives import RECENT_MAX, RankTimes
from holdfast.controller import State
from holdfast.controller.phases import Phase
from holdfast.detection import clock_skew
from holdfast.detection.clock_skew import ClockOffset
from holdfast.detection.progress import ProgressReducer
from holdfast.detection.samples import MICROSECOND, Doing, Sample
from holdfast.detection.shift import ShiftWatch
from holdfast.events import HealthChanged, Progress, Severity
from holdfast.messages import EntryTimes, TakeEntryTimes

if TYPE_CHECKING:
    from holdfast.detection.stages import Stages
    from holdfast.detection.straggler import StragglerWatch

EVERY_S = 10.0
AGAIN = 0.1  # of that, where ranks seem to have left a collective out
SOON = 0.2  # of that, where one seems to be slow
FIRST_S = 2.0  # what the next ones are compared with
NODES_A_SECOND = 100  # asked on average
ANSWERS_S = 3.0
TIMES_MAX = 1 << 18  # of a sample: 256 of each rank up to a thousand ranks, 2 of 100,000
RECENT_MIN = 8
DRIFT = 20e-6  # seconds per second by which a clock may run fast or slow
KEPT = 8  # comparisons with a node's clock


class Comparison(NamedTuple):
    """With the clock of a node: how far it is ahead of ours, and by how much that may be wrong."""

    at: float
    ahead_us: float
    doubt_us: float

    def doubt_at(self, now: float) -> float:
        """Clocks drift apart."""
        return self.doubt_us + (now - self.at) * DRIFT / MICROSECOND

    def apart_us(self, other: "Comparison", now: float) -> float:
        """By how much the two differ, if that is more than they may be wrong by: the clock was set,
        or is being put right."""
        apart_us = abs(self.ahead_us - other.ahead_us)
        return apart_us if apart_us > self.doubt_at(now) + other.doubt_at(now) else 0.0

    def offset(self, now: float) -> ClockOffset:
        """In seconds."""
        return ClockOffset(self.ahead_us * MICROSECOND, self.doubt_at(now) * MICROSECOND)


class StragglerSampling:
    """What is known of the speed of the ranks of the attempt under way."""

    def __init__(
        self,
        state: State,
        progress: ProgressReducer,
        send: Callable[[str, TakeEntryTimes], None],
        put: Callable[..., None],
    ) -> None:
        self._state, self._progress, self._send, self._put = state, progress, send, put
        self._attempt = 0
        self._watch: StragglerWatch | None = None
        self._shift = ShiftWatch()
        self._number = 0
        self._asked_at = self._next = math.inf
        self._waiting: dict[str, None] = {}  # nodes, in the order of their ranks
        self._times: list[RankTimes] = []
        self._clocks: dict[str, deque[Comparison]] = {}
        self._set_us: dict[str, float] = {}  # by which clocks were set since the question before

    def begin(self, attempt: int, now: float) -> None:
        """Watch this attempt."""
        self._attempt, self._watch = attempt, None
        self._shift.begin(attempt)
        self._waiting.clear()
        self._next = now + FIRST_S

    @property
    def _every_s(self) -> float:
        return max(EVERY_S, len(self._state.ranks) / NODES_A_SECOND)

    def pause(self, now: float) -> None:
        """Ranks are made slow on purpose: nothing is asked, nor compared across this time."""
        if self._watch is not None:
            self._watch.skip()
        self._waiting.clear()
        self._next = now + FIRST_S

    def look(self, connected: Collection[str], now: float) -> None:
        """Time has passed."""
        if self._waiting and now - self._asked_at >= ANSWERS_S:
            self._conclude(now)
        if now >= self._next:
            self._next = now + self._every_s
            self._ask(connected, now)

    def _ask(self, connected: Collection[str], now: float) -> None:
        wanted = self._state.limits.stragglers != "off" and self._state.world_size > 1
        if not wanted or self._state.phase is not Phase.RUNNING or self._state.standstill:
            return
        self._number, self._asked_at, self._times = self._number + 1, now, []
        members = (node for _, node in sorted(self._state.ranks.items()))
        self._waiting = {node: None for node in members if node in connected}
        recent = TIMES_MAX // self._state.world_size
        question = TakeEntryTimes(
            number=self._number, recent=min(RECENT_MAX, max(RECENT_MIN, recent))
        )
        for node in self._waiting:
            self._send(node, question)

    def lateness(self) -> dict[int, float]:
        """Of each rank the share of the last seconds in which others waited for it."""
        return self._watch.lateness() if self._watch is not None else {}

    def answered(self, node: str, answer: EntryTimes, now: float) -> None:
        """What a node says."""
        if answer.number != self._number or node not in self._waiting:
            return
        del self._waiting[node]
        self._compare(node, answer, now)
        self._times += answer.ranks
        if not self._waiting:
            self._conclude(now)

    def gone(self, node: str, now: float) -> None:
        """Its connection is gone, and the answer with it; another clock may come back."""
        self._clocks.pop(node, None)
        if node in self._waiting:
            del self._waiting[node]
            if not self._waiting:
                self._conclude(now)

    def _compare(self, node: str, answer: EntryTimes, now: float) -> None:
        """Our clock against the node's, as NTP does it (RFC 5905, section 8). Once one was set,
        what was compared before tells nothing; and of what this answer tells, nobody knows which
        part was before."""
        asked_us, heard_us = self._asked_at / MICROSECOND, now / MICROSECOND
        ahead_us = ((answer.asked_us - asked_us) + (answer.told_us - heard_us)) / 2
        travelled_us = (heard_us - asked_us) - (answer.told_us - answer.asked_us)
        found = Comparison(now, ahead_us, max(0.0, travelled_us / 2))
        known = self._clocks.setdefault(node, deque(maxlen=KEPT))
        if apart := [us for one in known if (us := found.apart_us(one, now))]:
            known.clear()
            self._set_us[node] = max(apart)
        known.append(found)

    def _conclude(self, now: float) -> None:
        self._waiting.clear()
        per_node = self._state.workers_per_node
        clocks, doing = {}, {}
        for times in self._times:
            node = self._state.ranks.get(times.rank // per_node, "")
            if known := self._clocks.get(node):
                best = min(known, key=lambda one: one.doubt_at(now))
                doubt_us = best.doubt_at(now) + self._set_us.get(node, 0.0)
                clocks[times.rank] = (best.ahead_us, doubt_us)
                doing[times.rank] = self._doing(times)
        self._set_us.clear()
        sample = Sample(
            now, [times for times in self._times if times.rank in clocks], clocks, doing
        )
        for changed in _skewed(self._state, self._clocks, now):
            self._put(changed)
        watch = self._watched()
        for found in (watch.observe(sample), self._shift.observe(sample)):
            if found is not None:
                self._put(found)
        if self._shift.suspects:
            self._next = min(self._next, now + self._every_s * AGAIN)
        elif watch.suspects:
            self._next = min(self._next, now + self._every_s * SOON)

    def _watched(self) -> "StragglerWatch":
        if self._watch is None:
            from holdfast.detection.straggler import StragglerWatch  # numpy: 0.1 s

            self._watch = StragglerWatch(self._attempt, self._stages())
        return self._watch

    def _stages(self) -> "Stages":
        from holdfast.detection.stages import UNDIVIDED, Stages

        try:
            size = self._state.limits.layout.resolve(self._state.world_size).pp
        except ValueError:
            return UNDIVIDED
        return Stages(size, self._state.world_size // size) if size > 1 else UNDIVIDED

    def _doing(self, times: RankTimes) -> Doing:
        page = self._progress.newest().get(times.rank)
        done = page.progress if page is not None else Progress()
        return Doing(
            input_s=done.data_wait_s,
            starved_s=times.starved_s,
            saves_s=done.snapshot_s,
            garbage_s=page.garbage_s if page is not None else 0.0,
            processor_s=times.processor_s,
            tokens=page.tokens if page is not None else 0,
            stage_s=page.stage_s if page is not None else 0.0,
            steps=done.step or 0,
        )


def _skewed(
    state: State, clocks: Mapping[str, Sequence[Comparison]], now: float
) -> Iterator[HealthChanged]:
    """By the newest comparison with each member: a clock may have been set since the others. What
    was told is known of the state, also after another controller."""
    condition = clock_skew.CONDITION
    newest = {n: clocks[n][-1].offset(now) for n in state.ranks.values() if clocks.get(n)}
    known = (node for node, told in state.health.items() if f"{condition} " in told)
    for node, detail in clock_skew.skews(newest, [*known]).items():
        yield HealthChanged(
            node=node,
            condition=condition,
            severity=Severity.WARN if detail else Severity.OK,
            detail=detail,
            advice=clock_skew.ADVICE if detail else "",
        )
