"""What is looked for beside the facts that nodes tell: whether an attempt hangs, and where it is.

`HangWatch` says that nobody moves; that is a fact, and the controller answers with the order to
look. Every member is asked what its workers do, three times within a second; what they say becomes
the fact that the controller decides on. People may ask for stacks at any time. Pure, like
everything in the shell: sending only queues, and times are the caller's.
"""

import itertools
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

import msgspec

from holdfast.actions import CollectEvidence
from holdfast.controller import State
from holdfast.controller.phases import TRAINING
from holdfast.detection.after_loop import CLOSES_S, AfterLoop
from holdfast.detection.hang import HangWatch
from holdfast.detection.idle import IdleWatch
from holdfast.detection.progress import ProgressReducer
from holdfast.diagnosis import at_its_end, reachability, silence
from holdfast.diagnosis.hang import LINES_MAX, apart, judge, judge_after_loop
from holdfast.diagnosis.idle import judge_idle, judge_over
from holdfast.diagnosis.kept_stacks import kept_stacks
from holdfast.diagnosis.placed import in_layout
from holdfast.events import HangJudged, HangSuspected, each_of
from holdfast.messages import Report, Stacks, StacksReply, TakeStacks
from holdfast.shell.reachability import Reachability
from holdfast.shell.stack_collection import Reply, StackCollection

LOOKS = 3
APART_S = 0.4
Told = TypeVar("Told")


class HangDetection:
    """What is known, or suspected, of the attempt under way. `may_stand` says whether anybody can
    have stopped moving, where telemetry is read only when it is wanted."""

    def __init__(
        self,
        state: State,
        progress: ProgressReducer,
        send: Callable[[str, TakeStacks], None],
        put: Callable[..., None],
        reachability: Reachability,
    ) -> None:
        self._state, self._progress, self._put = state, progress, put
        self._now = 0.0
        self._watch = HangWatch(state.limits.hang_timeout_s, state.limits.step_timeout_s)
        self._after = AfterLoop()
        self._idle = IdleWatch(state.limits.hang_timeout_s, state.limits.step_timeout_s)
        self._looks = StackCollection(send, itertools.count(1, 2), LOOKS, APART_S)
        self._asked = StackCollection(send, itertools.count(2, 4))
        self._send, self._native_numbers = send, itertools.count(4, 4)
        self._native: dict[int | None, StackCollection] = {}  # by the one rank; None: of all
        self._reachability = reachability
        self.may_stand: Callable[[], bool] = lambda: True
        self.stacks: Mapping[int, tuple[str, ...]] = {}  # of the hang that was judged last

    def begin(self, attempt: int, now: float) -> None:
        """Watch this attempt."""
        self._looks.abandon()
        self.stacks = {}
        self._watch.begin(attempt, self._state.world_size, now)
        self._after.begin(attempt, self._state.world_size)
        self._idle.begin(attempt, self._state.world_size, now)

    def observe(self, report: Report, now: float) -> None:
        """Telemetry of one node."""
        self._watch.observe(report, now)
        self._after.observe(report, now)
        self._idle.observe(report)

    def forgive(self, now: float, late_s: float) -> None:
        """We did not listen for so long."""
        self._watch.forgive(now, late_s)
        self._after.forgive(late_s)

    def look(self, now: float, catch_up: Callable[[], None]) -> None:
        """Time has passed. `catch_up` reads what was reported meanwhile."""
        self._now = now
        self._looks.look(now)
        self._asked.look(now)
        for collection in self._of_c():
            collection.look(now)
        if self._watches and self._watch.is_due(now) and self.may_stand():
            catch_up()
            if self._watch.is_due(now):
                self._put(self._watch.suspect(now))
        elif self._watches and self._after.is_due(now, self._state.finished):
            self._put(self._after.suspect(now, self._state.finished))
        elif self._watches and self._idle.is_due(now, self._state.finished):
            self._put(self._idle.suspect(now, self._state.finished))
        elif self._watches and (rank := self._idle.over()) is not None:
            self._put(judge_over(self._state.attempt, rank))

    @property
    def _watches(self) -> bool:
        wanted = bool(self._state.limits.hang_timeout_s) and not self._looks.asks
        return wanted and self._state.phase in TRAINING

    def collect(self, order: CollectEvidence, connected: Collection[str], now: float) -> None:
        """Have everybody looked at."""
        since = now - order.suspicion.ago_s

        def found(reply: StacksReply) -> None:
            pages, timeout_s = self._progress.newest(), self._state.limits.hang_timeout_s
            suspicion = msgspec.structs.replace(order.suspicion, ago_s=self._now - since)
            if self._after.have_left_loops(self._state.finished):
                self._put(self._judged_after_loop(suspicion, reply))
                return
            some_exited, seen = bool(self._state.finished), (reply.groups, reply.missing, pages)
            if suspicion.idle_limit_s is not None:
                suspicion = self._idle.seen(suspicion, reply.groups, self._now)
                judged = judge_idle(suspicion, *seen, reply.collectives, some_exited=some_exited)
            else:
                looks = *seen, timeout_s, reply.collectives
                judged = judge(suspicion, *looks, some_exited=some_exited)
            reached = self._by_name(self._looks.reached)
            if (parted := reachability.judge(reached)) is not None:
                judged = apart(judged, suspicion, reply.groups, parted.lines)
            quiet = silence.quiet(self._by_name(self._looks.traffic))
            self._reachability.seen(parted, quiet.nodes, suspicion.attempt, self._now)
            judged = _with(judged, quiet.line)
            judged, self.stacks = self._placed(judged), kept_stacks(judged, reply.groups)
            progressed = self._progress.flush(self._now)
            self._put(*((progressed,) if progressed is not None else ()), judged)

        self._now = now

        members = self._members()
        self._looks.ask(members, connected, now, found, self._reachability.ring(members))

    def _judged_after_loop(self, suspicion: HangSuspected, reply: StacksReply) -> HangJudged:
        """Of ranks that have left their loops; a hang began when it was first seen."""
        seen = bool(reply.groups) and not reply.missing
        closes = seen and all(map(at_its_end.closes, reply.groups))
        stood_s = self._after.closes_s(self._now, closes=closes)
        if long := stood_s >= CLOSES_S:
            suspicion = msgspec.structs.replace(suspicion, ago_s=stood_s)
        judged = judge_after_loop(suspicion, reply.groups, reply.missing, long=long)
        self.stacks = kept_stacks(judged, reply.groups)
        return judged

    def _placed(self, judged: HangJudged) -> HangJudged:
        """With where the ranks that it names are in the layout."""
        try:
            dimensions = self._state.limits.layout.resolve(self._state.world_size)
        except ValueError:  # the script makes its groups by itself
            return judged
        return _with(judged, in_layout([*each_of(judged.ranks)], dimensions))

    def _by_name(self, told: Mapping[str, Told]) -> dict[str, Told]:
        nodes = self._state.nodes
        return {nodes[node].name: one for node, one in told.items() if node in nodes}

    def ask(
        self,
        connected: Collection[str],
        now: float,
        reply: Reply,
        *,
        native: bool = False,
        rank: int | None = None,
    ) -> None:
        """Somebody wants to see where the workers are, `native` with frames of C, for which nobody
        is paused but this `rank`, if one is named."""
        if not native:
            self._asked.ask(self._members(), connected, now, reply)
            return
        self._of_c()
        found = self._native.setdefault(rank, self._new(rank))
        found.ask(self._members() if rank is None else self._home_of(rank), connected, now, reply)

    def _new(self, rank: int | None) -> StackCollection:
        return StackCollection(self._send, self._native_numbers, native=True, rank=rank)

    def _of_c(self) -> list[StackCollection]:
        """Those that are under way."""
        self._native = {rank: one for rank, one in self._native.items() if one.asks}
        return list(self._native.values())

    def _home_of(self, rank: int) -> list[str]:
        node = self._state.ranks.get(rank // self._state.workers_per_node)
        return [node] if node is not None else []

    def _members(self) -> list[str]:
        return [node for _, node in sorted(self._state.ranks.items())]

    def answered(self, node: str, answer: Stacks, now: float) -> None:
        """What a node says."""
        self._now = now
        self._looks.answered(node, answer, now)
        self._asked.answered(node, answer, now)
        for collection in self._of_c():
            collection.answered(node, answer, now)

    def gone(self, node: str, now: float) -> None:
        """Its connection is gone."""
        self._now = now
        self._looks.gone(node, now)
        self._asked.gone(node, now)
        for collection in self._of_c():
            collection.gone(node, now)


def _with(judged: HangJudged, line: str) -> HangJudged:
    """With this as the first line of its evidence, if it is one."""
    evidence = (line, *judged.evidence)[:LINES_MAX] if line else judged.evidence
    return msgspec.structs.replace(judged, evidence=evidence)
