"""Has ranks of the attempt under way profiled, and joins what their nodes say.

One profile at a time: a second one is refused, because it would measure the first. All ranks begin
after the same step, far enough ahead for every node to have heard of it, so that their traces show
the same steps. Who leaves meanwhile, or does not answer, is told of with a reason. Pure: sending
only queues, and times are the caller's.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import msgspec

from holdfast.actions import ProfileSteps
from holdfast.controller import State
from holdfast.controller.phases import Phase
from holdfast.counts import count
from holdfast.detection.pace import PaceWatch
from holdfast.detection.progress import ProgressReducer
from holdfast.messages import Report, WorkerReport
from holdfast.profiles import (
    AUTOMATIC,
    PART_NAMES,
    ProfileReply,
    ProfileRequest,
    ProfileTaken,
    RankProfile,
    StepsProfiled,
    TakeProfile,
    TakeTracePart,
    TracePart,
)
from holdfast.profiling.advice import advice
from holdfast.shell.trace_parts import TraceParts

AHEAD_S = 1.5  # in which all nodes hear of it
STEPS_S = 60.0  # for steps of unknown length
PATIENCE = 4.0  # times what the steps take, as the profiler slows them
LONGEST_S = 3500.0  # for all of it: who asks waits for an hour
READ_S = 150.0  # for a trace: agents, which read one at a time, give up after 120 s
OVERHEAD_STEPS = 3  # one that is under way, one that warms up, one in which traces are written

Reply = Callable[[ProfileReply], None]


@dataclass
class _Round:
    """A profile under way."""

    wish: ProfileRequest
    slowest: int | None
    reply: Reply
    until: float
    waiting: dict[str, tuple[int, ...]] = field(default_factory=dict)  # ranks by node
    found: dict[int, RankProfile] = field(default_factory=dict)


class ProfileCollection:
    """What is being profiled. `lateness` tells for which share of time others wait for a rank."""

    def __init__(
        self,
        state: State,
        progress: ProgressReducer,
        send: Callable[[str, TakeProfile | TakeTracePart], None],
        put: Callable[..., None],
        lateness: Callable[[], Mapping[int, float]],
    ) -> None:
        self._state, self._progress, self._send, self._put = state, progress, send, put
        self._lateness = lateness
        self._watch = PaceWatch(state.limits.profile_slowdown)
        self._round: _Round | None = None
        self.parts = TraceParts(state, send)

    def ask(
        self, wish: ProfileRequest, connected: Collection[str], now: float, reply: Reply
    ) -> None:
        """Somebody wants one."""
        slowest = self._slowest() if wish.slowest else None
        ranks = sorted({*wish.ranks, *(() if slowest is None else (slowest,))} or {0})
        if refused := self._refusal(ranks):
            reply(ProfileReply(refused=refused))
            return
        step, step_s = self._pace()
        by_node = self._by_node(ranks)
        read_s = READ_S * max(map(len, by_node.values()))
        least_s, most_s = step_s * (wish.steps + OVERHEAD_STEPS), LONGEST_S - read_s
        if least_s > most_s / 2:
            steps = count(wish.steps, "step")
            took = f"take {least_s:.0f} s at {step_s:.3g} s each; at most {most_s / 2:.0f} s"
            reply(ProfileReply(refused=f"{steps} and what is around them {took}"))
            return
        within_s = AHEAD_S + min(max(STEPS_S, least_s * PATIENCE), most_s)
        doing = self._round = _Round(wish, slowest, reply, now + within_s + read_s)
        for node, own in by_node.items():
            if node not in connected:
                self._without(own, "its node is not connected")
                continue
            doing.waiting[node] = own
            order = TakeProfile(
                id=wish.id,
                attempt=self._state.attempt,
                ranks=own,
                steps=wish.steps,
                after=step + math.ceil(AHEAD_S / step_s) if step_s else 0,
                within_s=within_s,
            )
            self._send(node, order)
        self._end_if_whole()

    @property
    def under_way(self) -> bool:
        """Whether ranks are being profiled, and so slower than the others."""
        return self._round is not None

    def observe(self, report: Report, now: float) -> None:
        """Telemetry of one node. Steps that are profiled are slower than they are."""
        if self._round is not None:
            return
        if found := self._watch.observe(report, now):
            self._put(*found)

    def obey(self, order: ProfileSteps, connected: Collection[str], now: float) -> None:
        """The controller wants one; what comes of it is a fact."""

        def told(reply: ProfileReply) -> None:
            self._put(_fact(order, reply))

        name = f"{AUTOMATIC}{order.attempt}-step-{order.step}"
        self.ask(ProfileRequest(id=name, ranks=(0,), slowest=True), connected, now, told)

    def answered(self, node: str, answer: ProfileTaken | TracePart) -> None:
        """What a node says."""
        doing = self._round
        if isinstance(answer, TracePart):
            self.parts.answered(node, answer)
            return
        if doing is None or answer.id != doing.wish.id or node not in doing.waiting:
            return
        own = doing.waiting.pop(node)
        doing.found |= {one.rank: one for one in answer.found if one.rank in own}
        self._without(
            [rank for rank in own if rank not in doing.found], "its node reported no result"
        )
        self._end_if_whole()

    def gone(self, node: str) -> None:
        """Its connection is gone, and the answer with it."""
        self.parts.gone(node)
        if self._round is not None and node in self._round.waiting:
            self._without(self._round.waiting.pop(node), "the connection to its node was lost")
            self._end_if_whole()

    def look(self, now: float) -> None:
        """Who has had enough time is not waited for any longer."""
        self.parts.look(now)
        doing = self._round
        if doing is not None and now >= doing.until:
            for node in list(doing.waiting):
                self._without(doing.waiting.pop(node), "its node did not answer in time")
            self._end_if_whole()

    def _refusal(self, ranks: Collection[int]) -> str:
        state = self._state
        if self._round is not None:
            return "another profile of this job is being taken"
        if state.phase is not Phase.RUNNING:
            return f"the job is {state.phase.value}: no steps to profile"
        if unknown := [rank for rank in ranks if rank >= state.world_size]:
            return f"it has no rank {unknown[0]}, only {count(state.world_size, 'rank')}"
        return ""

    def _by_node(self, ranks: Collection[int]) -> dict[str, tuple[int, ...]]:
        per_node, found = self._state.workers_per_node, dict[str, tuple[int, ...]]()
        for rank in ranks:
            node = self._state.ranks.get(rank // per_node, "")  # none while one is replaced
            found[node] = (*found.get(node, ()), rank)
        return found

    def _slowest(self) -> int:
        """For whom others wait longest; where that is not known, whose steps take longest."""
        late = self._lateness()
        if any(late.values()):
            return max(late, key=lambda rank: (late[rank], -rank))
        took = {rank: _step_s(page) for rank, page in self._progress.newest().items()}
        return max(took, key=lambda rank: (took[rank], -rank), default=0)

    def _pace(self) -> tuple[int, float]:
        """The newest step of any rank, and how long one takes; zeros where nobody says so."""
        pages = self._progress.newest().values()
        steps = [page.progress.step or page.optimizer_steps for page in pages]
        return max(steps, default=0), max(map(_step_s, pages), default=0.0)

    def _without(self, ranks: Collection[int], why: str) -> None:
        assert self._round is not None
        self._round.found |= {rank: RankProfile(rank=rank, why=why) for rank in ranks}

    def _end_if_whole(self) -> None:
        doing = self._round
        if doing is not None and not doing.waiting:
            self._round = None
            found = tuple(doing.found[rank] for rank in sorted(doing.found))
            size = self._state.world_size
            doing.reply(ProfileReply(ranks=found, slowest=doing.slowest, world_size=size))


def _fact(order: ProfileSteps, reply: ProfileReply) -> StepsProfiled:
    """In the words of a note: the rank to which the first advice belongs."""
    fact = StepsProfiled(attempt=order.attempt, step=order.step, told="", ranks=reply.ranks)
    measured = {one.rank: one for one in reply.ranks if not one.why}
    if not measured:
        why = reply.refused or "; ".join(f"rank {one.rank}: {one.why}" for one in reply.ranks)
        return msgspec.structs.replace(fact, told=f"they could not be profiled: {why}")
    first = advice(reply.ranks)[0]
    parts = measured[first.rank].parts
    shares = ", ".join(f"{name} {parts.share(name):.0%}" for name in PART_NAMES)
    told = f"a profile of rank {first.rank} says {shares}; try first: {first.what}"
    return msgspec.structs.replace(fact, told=told, rank=first.rank)


def _step_s(page: WorkerReport) -> float:
    return page.step_time_s or page.optimizer_step_time_s or 0.0
