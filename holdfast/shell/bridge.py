"""Between the controller and its nodes, whatever carries the messages: pure, like the controller.

Inwards it reduces what nodes say (hello, facts, reports, silence) to events; outwards it turns
orders into a message for each node concerned. Every driver and the simulation share it, so that
what is tested in one holds in all. The time is an argument; membership is read from the state.
"""

import math
from collections.abc import Iterable

import msgspec

from holdfast.actions import (
    AnyAction,
    Diagnose,
    Dismiss,
    Fence,
    KeepVersion,
    StartAttempt,
    StopAttempt,
    Survey,
)
from holdfast.controller import NodeState, Phase, State, versions
from holdfast.controller.phases import TRAINING
from holdfast.detection.corruption import ReplicasReducer
from holdfast.detection.hang import TRAINS
from holdfast.detection.jump import JumpWatch
from holdfast.detection.liveness import Expected, Liveness
from holdfast.detection.numerics import NumbersReducer
from holdfast.detection.plateau import PlateauWatch
from holdfast.detection.progress import ProgressReducer
from holdfast.detection.stopping import MARGIN_S, StopTally
from holdfast.diagnosis import code_or_machine, without_gpu
from holdfast.diagnosis.environment import has_changed
from holdfast.diagnosis.mismatch import Entered
from holdfast.diagnosis.verdict import CAUSES, Origin, Pages, Verdict, weigh
from holdfast.events import (
    AnyEvent,
    CheckpointFailed,
    Diagnosed,
    LastEntered,
    NodeJoined,
    NodeLost,
    NodeLostReason,
    NodeReady,
    OrdersLost,
    Surveyed,
    WorkerExited,
    each_of,
)
from holdfast.messages import (
    AgentFact,
    Hello,
    Leave,
    Report,
    Start,
    Stop,
    ToAgent,
    UseVersion,
    WorkersStarted,
    WorkersStopped,
)
from holdfast.occurrences import Occurrence

HANG = "hang"  # a cause
NOTHING_THERE = "no answer on the port of its rendezvous store"


class Bridge:
    """What is known of the nodes besides the controller's state: signs of life, telemetry, answers.

    `state` is read only. A node is watched from its first hello, or expected to say it by a time.
    """

    def __init__(self, state: State, heartbeat_timeout_s: float, now: float, term: int = 0) -> None:
        self._state = state
        self._term = term  # of every order
        self._timeout_s = heartbeat_timeout_s
        self._liveness = Liveness()
        self.expected = Expected()
        self._tally = StopTally()
        self._strays: dict[str, int] = {}  # nodes of which a former controller knew more than we
        self._stops: Stop | None = None  # the newest order to stop
        self._failed_saves: dict[str, tuple[int, int, int]] = {}  # newest told, by tier
        self._exited: dict[bool, int] = {}  # newest attempt with exits; with status 0, or others
        self._entered: dict[int, tuple[LastEntered, ...]] = {}  # by rank, when it was stopped
        self._numbers, self._replicas = NumbersReducer(JumpWatch().observe), ReplicasReducer()
        self._plateau = PlateauWatch(state.limits.plateau_steps, state.limits.plateau_share)
        self.progress = ProgressReducer()
        self.progress.begin(state.attempt, state.world_size, now)

    # ── from the nodes ──

    def expect(self, node: str, until: float) -> None:
        """This node has been started, or is to reconnect; it counts as lost if it stays away."""
        self.expected.add(node, until)

    def hello(self, hello: Hello, now: float) -> list[AnyEvent] | None:
        """A node (re)connected. None: it was given up and must end."""
        if hello.node in self._state.lost:
            return None
        self._liveness.heard(hello.node, now)
        self.expected.forget(hello.node)
        lost, known = self._orders_lost(hello), self._state.nodes.get(hello.node)
        newest = max(hello.ordered, hello.fenced)
        waits = known is None or known.state is NodeState.JOINING
        if waits and (hello.ready or hello.running or (known is None and newest)):
            self._strays[hello.node] = max(newest, self._state.attempt)
        if known is not None:
            return lost
        joined = NodeJoined(
            node=hello.node, name=hello.name, address=hello.address, workers=hello.workers
        )
        return [*lost, joined]

    def _orders_lost(self, hello: Hello) -> list[AnyEvent]:
        """Whether it has obeyed what this journal does not tell of. An order leaves after its line
        is held, so such lines are lost; whoever waits may have done otherwise, or its store."""
        newest = max(hello.ordered, hello.fenced)
        trains = self._state.phase in TRAINING and hello.fenced == self._state.attempt
        if newest > self._state.attempt or trains:
            waiting = self._state.nodes.keys() - self._state.ranks.values()
            self._strays |= dict.fromkeys(waiting, newest)
            return [OrdersLost(node=hello.node, attempt=newest)]
        return []

    def forget(self, node: str) -> None:
        """Nobody listens to this node now: its silence is no news."""
        self._liveness.forget(node)

    def heard(self, node: str, at: float) -> None:
        """A sign of life; one that was given up is not watched, though it may not know yet."""
        if node in self._state.lost:
            self._liveness.forget(node)
        else:
            self._liveness.heard(node, at)

    def fact(self, node: str, fact: AgentFact, now: float) -> list[AnyEvent]:
        """News of a node. What only concerns that node is not passed on."""
        self.heard(node, now)
        match fact:
            case WorkersStopped():
                if fact.attempt == self._state.attempt:
                    self._entered |= fact.entered
                return [*self._ready_after(fact), *_some(self._tally.stopped(fact, now))]
            case WorkersStarted():
                return []
            case NodeReady():
                self._tally.ready(node)
                return [fact]
            case WorkerExited():
                return [*self._numbers.exited(fact), *self._before(fact, now), fact]
            case CheckpointFailed():
                return [fact] if self._is_first(fact) else []
            case _:
                return [fact]

    def _ready_after(self, stopped: WorkersStopped) -> list[AnyEvent]:
        """One that told a former controller that it is ready has stopped whatever it ran since, and
        has a store that nobody can have used. A member whose store is not known may have to take
        the place of the first."""
        if stopped.store is None:
            return []
        if stopped.attempt < self._strays.get(stopped.node, math.inf):
            known = self._state.nodes.get(stopped.node)
            if known is None or known.store is not None or not known.node_rank:
                return []
        self._strays.pop(stopped.node, None)
        return [NodeReady(node=stopped.node, store=stopped.store, warm=stopped.warm)]

    def _before(self, exited: WorkerExited, now: float) -> list[AnyEvent]:
        """Progress goes ahead of the first exit and of the first failure of an attempt: ahead of
        each there would be as many tellings of it as there are ranks."""
        well = exited.exit_code == 0
        known = self._exited.get(well, 0)
        self._exited[well] = max(exited.attempt, known)
        return self._flushed(now) if exited.attempt > known else []

    def _is_first(self, fact: CheckpointFailed) -> bool:
        """Storage that is away fails on every node at once: one of them is enough."""
        which = (fact.attempt, fact.step, fact.failures)
        newest = self._failed_saves.get(fact.tier, (0, 0, 0))
        self._failed_saves[fact.tier] = max(which, newest)
        return which > newest

    def report(self, report: Report, now: float) -> list[AnyEvent]:
        """Telemetry: a sign of life, and now and then a fact."""
        self.heard(report.node, now)
        numbers = [*self._numbers.observe(report), *self._plateau.observe(report)]
        told = [*numbers, *self._replicas.observe(report, now)]
        return [*told, *self.progress.observe(report, now)]

    def died(self, node: str, detail: str, now: float, *, planned: bool = False) -> list[AnyEvent]:
        """The engine says that the node is gone; `planned`: because somebody took it away."""
        reason = NodeLostReason.PROCESS
        lost = NodeLost(node=node, reason=reason, detail=detail, planned=planned)
        return [*self._flushed(now), lost]

    def silent(self, now: float) -> list[str]:
        """Nodes of which no sign of life was told in time."""
        return [node for node, _ in self._liveness.silent(now, self._timeout_s)]

    def unreachable(
        self, node: str, silent_s: float, now: float, *, left: bool = False
    ) -> list[AnyEvent]:
        """It is silent, and its machine answers nothing either. `left`: it has left its connection
        for so long, or does not come to us at all."""
        if node in self.expected.awaited:
            how = "it does not connect"
            silent_s = _waited_s(self._state, self.progress, node, now)
        else:
            how = f"its connection ended {silent_s:.1f} s ago" if left else _silence(silent_s)
        self._liveness.forget(node)
        self.expected.forget(node)
        what = NOTHING_THERE if left else "no TCP acknowledgement from its machine"
        lost = _lost(node, NodeLostReason.SILENT, f"{how}, and {what}", silent_s)
        return [*self._flushed(now), lost]

    def tick(self, now: float) -> list[AnyEvent]:
        """Nodes that are silent, stay away, or do not obey. Each is named once."""
        late: list[NodeLost] = []
        for node, silent_s in self._liveness.silent(now, self._timeout_s):
            self._liveness.forget(node)
            late.append(_lost(node, NodeLostReason.SILENT, _silence(silent_s), silent_s))
        for node in self.expected.late(now):
            self.expected.forget(node)
            waited_s = _waited_s(self._state, self.progress, node, now)
            why = "its agent is running but does not connect"
            late.append(_lost(node, NodeLostReason.SILENT, why, waited_s))
        for node in self._tally.late(now):
            late.append(_lost(node, NodeLostReason.SILENT, "it did not stop its workers in time"))
        return [*self._flushed(now), *late] if late else []

    def forgive(self, now: float, late_s: float, silent_s: float) -> None:
        """We did not listen for `late_s`: what was sent is still to be read, so `silent_s` of all
        silence do not count."""
        self.expected.forgive(late_s)
        self._tally.forgive(late_s)
        self._liveness.forgive(now, silent_s)

    # ── to the nodes ──

    def carry_out(
        self, action: AnyAction, now: float
    ) -> tuple[list[tuple[str, ToAgent]], list[AnyEvent]]:
        """The messages that an order means, by node, and the facts that follow at once.

        Orders that are the engine's business (more nodes, the end) mean none.
        """
        match action:
            case StartAttempt():
                workers_count = action.node_count * action.workers_per_node
                self.progress.begin(action.attempt, workers_count, now)
                self._entered = {}
                ranks = sorted(self._state.ranks.items())
                starts = [(node, _start(action, rank, self._term)) for rank, node in ranks]
                waiting = self._state.nodes.keys() - self._state.ranks.values()
                return [*starts, *_use(self._state, waiting, self._term)], []
            case StopAttempt():
                return self._stop(action, now)
            case KeepVersion():
                return _use(self._state, self._state.nodes, self._term), []
            case Diagnose():
                pages = self.progress.newest()
                return [], [_diagnose(self._state, action, pages, self._entered, now)]
            case Survey():
                training = self.progress.training(self._state.finished, now)
                return [], [Surveyed(attempt=action.attempt, training_count=training)]
            case Fence():
                self._liveness.forget(action.node)
                self.expected.forget(action.node)
                told = _some(self._tally.lost(action.node, now))
                leave = Leave(reason="this node was removed from the job", term=self._term)
                return [(action.node, leave)], told
            case Dismiss():
                return [(action.node, Leave(reason=action.reason, term=self._term))], []
            case _:
                return [], []

    def orders_for(self, node: str) -> list[ToAgent]:
        """What a node that just (re)connected has to know."""
        if node in self._tally.pending and self._stops is not None:
            # also a stray: its answer to an older order would not count
            return [self._stops]
        if node in self._strays:
            return [Stop(attempt=self._strays[node], grace_s=0.0, term=self._term)]
        member = self._state.nodes.get(node)
        if member is None or member.state is not NodeState.MEMBER or member.node_rank is None:
            return [order for _, order in _use(self._state, [node], self._term)]
        match self._state.phase:
            case Phase.STARTING | Phase.RUNNING if self._state.start is not None:
                return [_start(self._state.start, member.node_rank, self._term)]
            case _:
                return []

    def _stop(
        self, order: StopAttempt, now: float
    ) -> tuple[list[tuple[str, ToAgent]], list[AnyEvent]]:
        ranks = self._state.ranks
        deadline = now + max(order.grace_s, order.park_s or 0.0) + MARGIN_S
        members = {*ranks.values(), *(self._strays.keys() & self._state.nodes.keys())}
        told = self._tally.begin(order.attempt, members, ranks.get(0), deadline, now)
        message = self._stops = Stop(
            attempt=order.attempt,
            grace_s=order.grace_s,
            save=order.save,
            keeps=order.keeps,
            look=order.look,
            park_s=order.park_s,
            term=self._term,
        )
        orders: dict[str, ToAgent] = dict.fromkeys(sorted(self._tally.pending), message)
        if (hung := _hung(self._state)) is not None:
            where = ranks.get(hung // self._state.workers_per_node)
            if where in orders:
                orders[where] = msgspec.structs.replace(message, hung=hung)
        return [*orders.items()], _some(told)

    def _flushed(self, now: float) -> list[AnyEvent]:
        return _some(self.progress.flush(now))


def _hung(state: State) -> int | None:
    """The rank that hangs, where the attempt is stopped for that."""
    found = state.stopped_for
    return found.rank if found is not None and found.cause == HANG else None


def _some(event: AnyEvent | None) -> list[AnyEvent]:
    return [] if event is None else [event]


def _lost(node: str, reason: NodeLostReason, detail: str, ago_s: float = 0.0) -> NodeLost:
    return NodeLost(node=node, reason=reason, ago_s=ago_s, detail=detail)


def _waited_s(state: State, progress: ProgressReducer, node: str, now: float) -> float:
    """How long a member has been silent at least: since this controller began, or since the others
    have waited for it in their step. What came before was known to a former controller only."""
    trains = state.phase in TRAINING and node in state.ranks.values()
    return max(progress.still_s(now), progress.watched_s(now)) if trains else 0.0


def _silence(silent_s: float) -> str:
    return f"no heartbeat for {silent_s:.1f} s"


def _start(order: StartAttempt, node_rank: int, term: int) -> Start:
    return Start(
        term=term,
        attempt=order.attempt,
        node_rank=node_rank,
        node_count=order.node_count,
        workers_per_node=order.workers_per_node,
        store=order.store,
        redo_until=order.redo_until,
        restarts=order.restarts,
        restore_below=order.restore_below,
        bad_steps=order.bad_steps,
        skips=order.skips,
        committed=order.committed,
        version=order.version,
    )


def _use(state: State, nodes: Iterable[str], term: int) -> list[tuple[str, ToAgent]]:
    """What these nodes keep ready, of a job that was to be updated."""
    if not state.updating.records:
        return []
    update = versions.unused(state)
    beside = update.version if update is not None else None
    use = UseVersion(version=state.version, beside=beside, term=term)
    return [(node, use) for node in sorted(nodes)]


def _diagnose(
    state: State, order: Diagnose, pages: Pages, entered: Entered, now: float
) -> Diagnosed:
    """Weigh the exits; without any (a node was lost) there is nothing to blame on a worker."""
    verdict = _in_hindsight(state, order, weigh(order.exits, pages, order.others, entered))
    found = _occurrence(state, order, verdict, now)
    certain = found is not None and found.recurs is not None and found.recurs.certain
    return Diagnosed(
        attempt=order.attempt,
        cause=verdict.cause,
        summary=verdict.summary,
        confidence=verdict.confidence,
        rank=verdict.rank,
        user_error=verdict.origin is Origin.CODE or certain,
        environment=verdict.origin is Origin.ENVIRONMENT,
        final=CAUSES[verdict.cause].final,
        signature=verdict.signature,
        also_failed=verdict.also_failed,
        step=verdict.step,
        occurrence=found,
    )


def _in_hindsight(state: State, order: Diagnose, verdict: Verdict) -> Verdict:
    """With what it says that this version of the job has trained: what it needs was there."""
    error = verdict.chosen.error if verdict.chosen is not None else None
    trained = state.max_step is not None or state.steps_seen
    if error is None or not trained or versions.on_trial(state):
        return verdict
    begins = TRAINS.isdisjoint(state.milestones)
    if has_changed(error, begins=begins):
        return verdict._replace(cause="environment")
    return _without_gpu(state, order, verdict) if begins else verdict


def _without_gpu(state: State, order: Diagnose, verdict: Verdict) -> Verdict:
    ranks = [one.rank for one in order.exits if without_gpu.says_so(one.error)]
    alike = [rank for one in ranks for rank in each_of(order.others.get(one, ()))]
    nodes = {rank // state.workers_per_node for rank in (*ranks, *alike)}
    return without_gpu.whose(verdict, nodes, state.size)


def _occurrence(state: State, order: Diagnose, verdict: Verdict, now: float) -> Occurrence | None:
    """The error, compared with those that this job has had before."""
    first = verdict.chosen

    def name_of(rank: int) -> str:
        node = state.ranks.get(rank // state.workers_per_node, "")
        node = first.node if first is not None and first.rank == rank else node
        return state.nodes[node].name if node in state.nodes else node

    version = versions.running(state)
    found = code_or_machine.occurrence(verdict, order.exits, order.others, name_of, version)
    if found is None:
        return None
    found = msgspec.structs.replace(found, at=now)
    alike = state.limits.layout.pp == 1  # stages of a pipeline differ
    recurs = code_or_machine.judge(found, state.occurrences, state.size, alike=alike)
    return msgspec.structs.replace(found, recurs=recurs)
