"""Referees: what must be true of a world, whatever the controller believes.

They are told what really happens (to workers, on the wire, on the disk) and object by raising
`Foul`. Each looks at one promise. None shares code with what it judges; a referee that no planted
bug needs is removed (tests/simulation/test_mutants.py).
"""

from collections.abc import Callable, Mapping, Sequence
from signal import SIGSEGV
from typing import NamedTuple

from holdfast.actions import (
    AnyAction,
    Dismiss,
    EndJob,
    Entry,
    Fence,
    Outcome,
    StartAttempt,
    StopAttempt,
)
from holdfast.checkpoint.choose import Snapshot
from holdfast.controller import State
from holdfast.controller.state import IncidentRecord
from holdfast.detection.hang import PAUSES, STEPS
from holdfast.events import (
    AnyEvent,
    AttemptStopped,
    ControllerResumed,
    DeadlinePassed,
    Diagnosed,
    HealthChanged,
    MilestoneReached,
    NodeLeft,
    NodeLost,
    NodeReady,
    NodesChecked,
    NodeUnfit,
    OrdersLost,
    Progressed,
    Severity,
    StopRequested,
    WorkerError,
    WorkerExited,
    WorkersExited,
)
from holdfast.goodput import Ledger
from holdfast.messages import Leave, Question, Start, Stop, ToAgent
from holdfast.shell.outbox import DEADLINE_S
from holdfast.simulation import choosing
from holdfast.simulation.accounting import SLACK_S, Accounting, AttemptKnown, TimeSpent
from holdfast.simulation.blame import FairBlame
from holdfast.simulation.environment import Environment, Foul, Promise
from holdfast.simulation.fair_updates import FairUpdates, is_update
from holdfast.simulation.hardship import KEEPS, Hardship
from holdfast.simulation.keeping import KeptWorkers
from holdfast.simulation.left_out import FairSkips, LeftOut
from holdfast.simulation.memory import NodeMemory, ResumedFrom, holdings
from holdfast.simulation.numbers import FiniteNumbers
from holdfast.simulation.one_controller import OneTerm, Succession
from holdfast.simulation.removals import FairRemovals
from holdfast.simulation.resumption import Resumption, Samples, WholeSnapshots
from holdfast.simulation.shared_faults import FairChecks
from holdfast.simulation.sickness import Sickness
from holdfast.simulation.supply import FairSupply
from holdfast.simulation.whole_replicas import WholeReplicas

ISOLATE = "isolate"  # leaves a node on suspicion, which may be wrong: its machine stays in use
REASONS = (NodeLost, NodeLeft, StopRequested, ControllerResumed, OrdersLost)
"""To stop what is not broken."""
OF_HEALTH = (HealthChanged, NodeReady, NodesChecked, MilestoneReached, DeadlinePassed)
"""The same, where a member is sick: it is told, somebody can take its place, or others had to be
replaced before, or were, and that is long enough ago."""
OF_CHECKS = (NodesChecked, NodeUnfit)
AWAY = WorkerError(  # what a worker says whose storage is away
    type="botocore.exceptions.EndpointConnectionError",
    message='Could not connect to the endpoint URL: "https://data.example/shard-1"',
)
RECONNECT_S = 15.0  # that a new controller gives to the nodes of the one before
NAMED_MARGIN_S = 5.0
WAIT_MARGIN_S = 5.0
HANG_S = 60.0  # to find a hang: some members may not answer at first
LATE_S = 20.0  # a line of the journal and the answer to it, where messages may be late
PAUSES_S = 150.0  # of a duty that fails whenever it is started, until its process is replaced


def _exits(event: AnyEvent) -> Sequence[WorkerExited]:
    """What an event tells in full of workers that ended by themselves."""
    match event:
        case WorkerExited():
            return (event,)
        case WorkersExited():
            return tuple(group.first for group in event.groups)
        case _:
            return ()


class OneAttempt:
    """Never two attempts at once, never two nodes with one rank, never a store for two attempts."""

    def __init__(self) -> None:
        self._stores: dict[int, int] = {}  # port → attempt

    def launched(self, order: Start, others: Sequence[int], there: str | None) -> str:
        """Workers begin; `others` are attempts that have workers, `there` who has this rank."""
        if others:
            return f"attempt {order.attempt} starts while workers of attempt {others[0]} live"
        if there is not None:
            return f"node rank {order.node_rank} of attempt {order.attempt} starts twice ({there})"
        used = self._stores.setdefault(order.store.port, order.attempt)
        if used != order.attempt:
            return f"attempt {order.attempt} starts on the store of attempt {used}"
        return ""


class GivenUp:
    """A node that was given up is never told to train, and does not train."""

    def __init__(self) -> None:
        self._nodes: dict[str, int] = {}  # and the entry that says so

    def journaled(self, entry: Entry) -> None:
        """Whom this entry gives up."""
        given_up = [a.node for a in entry.actions if isinstance(a, Fence | Dismiss)]
        if isinstance(entry.event, NodeLost | NodeLeft):
            given_up.append(entry.event.node)
        for node in given_up:
            self._nodes.setdefault(node, entry.seq)

    def forget(self, after: int) -> None:
        """Later entries are lost, and nobody has acted on them."""
        self._nodes = {node: seq for node, seq in self._nodes.items() if seq <= after}

    def ordered(self, node: str, messages: Sequence[ToAgent | Question]) -> str:
        """What a node is told."""
        starts = any(isinstance(message, Start) for message in messages)
        return f"{node} is told to start workers" if starts and node in self._nodes else ""

    def calm(self, at_work: Sequence[str]) -> str:
        """Long after the last fault."""
        return ", ".join(f"{node} still trains" for node in at_work if node in self._nodes)


class Efficiency:
    """No attempt is stopped in which nothing broke, no node given up that nothing is wrong with."""

    def __init__(self, hardship: Hardship) -> None:
        self._replace_after = hardship.limits.replace_after
        self._crashes: dict[str, set[tuple[int, int]]] = {}  # node → attempts and ranks
        self._broken: set[int] = set()
        self.sickness = Sickness(bool(hardship.clock_step_s))
        self.blame, self.checks = FairBlame(), FairChecks()
        self._stopped = 0

    def broken(self, attempt: int) -> None:
        """Something broke in this attempt."""
        self._broken.add(attempt)

    def journaled(self, entry: Entry, in_trouble: Callable[[str], bool]) -> str:
        """Judge whom an entry gives up, and what it stops."""
        event = entry.event
        self.checks.heard(event)
        if isinstance(event, NodeLost) and not in_trouble(event.node):
            return f"{event.node} is given up ({event.detail}) and is well"
        for exited in _exits(event):
            if exited.signal == SIGSEGV:
                self._crashes.setdefault(exited.node, set()).add((exited.attempt, exited.rank))
        for action in entry.actions:
            if isinstance(action, StopAttempt) and action.attempt > self._stopped:
                self._stopped = action.attempt
                sick = self._is_faulty(action.reason.partition(":")[0].removesuffix(" hands over"))
                reason = isinstance(event, REASONS) or (isinstance(event, OF_HEALTH) and sick)
                reason = reason or self.blame.may_be_stopped(action.attempt, event)
                planned = action.keeps or is_update(action)
                if not (reason or planned or action.attempt in self._broken):
                    return f"attempt {action.attempt} is stopped ({action.reason}) and was well"
            elif isinstance(action, Fence) and isinstance(event, Diagnosed | AttemptStopped):
                slow = self.blame.may_be_replaced(action.node, event.attempt)
                isolates = any(choice.step == ISOLATE for choice in entry.choices)
                if slow or (isolates and not action.blamed) or self._is_faulty(action.node):
                    continue
                faults = self._crashes.get(action.node, set()) | self.blame.corruptions(action.node)
                crashes = len(faults | self.blame.errors.on_device(action.node))
                if crashes < self._replace_after:
                    return f"{action.node} is replaced and its workers crashed {crashes} times"
            elif isinstance(action, Fence) and isinstance(event, OF_CHECKS):
                innocent = not self._is_faulty(action.node)
                if innocent and self.checks.has_failed(action.node):
                    return f"{action.node} is given up for what is wrong on every machine"
        return ""

    def _is_faulty(self, node: str) -> bool:
        sick = self.sickness.is_faulty(node) or self.blame.groups.is_bad(node)
        return sick or self.checks.may_be_left(node)


class Begun(NamedTuple):
    """A start of an attempt."""

    at: float  # by the controller's clock
    counts: bool  # as a restart, surely: nobody took a node away, no version was given up


class Persistence:
    """Neither a crash loop nor a bug is restarted for ever, and the job ends only for a reason."""

    def __init__(self, hardship: Hardship) -> None:
        self._limits, self._instrumented = hardship.limits, hardship.instrumented
        self._starts: list[Begun] = []
        self._taken = False  # since the last start a node was, by intent
        self._attempt = 0
        self._planned = False  # the attempt is stopped only to have another size or version
        self._version = 0  # that it runs
        self._hit = False  # this attempt ran into the bug, and nothing else happened
        self._hits = 0  # in a row, and at one place as far as the controller can know
        self._hit_step = -1  # the furthest step that was known of then
        self._step = -1  # furthest that the controller can know of
        self._fruitless = 0  # starts since it grew
        self._away = False  # this attempt failed because its storage was away, and of nothing else
        self._away_since: float | None = None  # and the job has come no further since then
        self.bugs = 0

    def bugged(self) -> None:
        """The user's code failed, as it always does at this step."""
        self._hit = self._instrumented  # without steps nobody can know that it is the same place
        self.bugs += 1

    def journaled(self, entry: Entry, *, free: bool = False) -> str:
        """Count starts and judge them; `free`: the next one does not count."""
        self._taken |= free
        if isinstance(event := entry.event, NodeLost | NodeLeft):
            self._hit = self._away = False
            self._taken |= event.planned if isinstance(event, NodeLost) else not event.failed
        elif isinstance(entry.event, ControllerResumed):
            self._hit &= not any(isinstance(action, Fence) for action in entry.actions)
        elif isinstance(entry.event, WorkerExited | WorkersExited | AttemptStopped | Progressed):
            self._hear(entry.event, entry.at)
        for action in entry.actions:
            if isinstance(action, StopAttempt):
                self._planned = bool(action.keeps) or is_update(action)
                self._taken |= " hands over: " in action.reason
            if isinstance(action, StartAttempt) and action.attempt > self._attempt:
                self._attempt = action.attempt
                before, self._version = self._version, action.version.number
                planned = self._planned and isinstance(entry.event, AttemptStopped)
                if planned:
                    return ""  # nothing had failed
                if self._version < before:
                    self._starts.append(Begun(entry.at, counts=False))
                    self._fruitless += 1  # where something else has failed, too
                    return ""
                return self._started(entry.at)
        return ""

    def _hear(
        self, event: WorkerExited | WorkersExited | AttemptStopped | Progressed, at: float
    ) -> None:
        step = event.progress.step
        if step is not None and step > self._step:
            self._step, self._fruitless, self._away_since = step, 0, None
        for exited in (e for e in _exits(event) if e.attempt == self._attempt):
            if exited.error == AWAY and self._away_since is None:
                self._away_since = at
            self._away = exited.error == AWAY or (self._away and exited.signal is None)
            self._hit &= exited.signal is None

    def _started(self, at: float) -> str:
        since = at - self._limits.window_s
        begun = Begun(at, counts=not self._taken)
        self._starts = [*(start for start in self._starts if start.at > since), begun]
        self._taken = False
        same = self._hit and self._step == self._hit_step
        self._hits = self._hits + 1 if same else int(self._hit)  # 0: it came past the bug
        self._hit_step = self._step
        self._hit = self._away = False
        self._fruitless += 1
        failed = sum(start.counts for start in self._starts)
        if failed > self._limits.max_restarts + 2:
            return f"{failed} starts within {self._limits.window_s:g} s"
        tries = self._limits.max_restarts if self._limits.exact else 1
        return f"the same bug is tried {self._hits + 1} times" if self._hits > tries else ""

    def used_up(self, at: float) -> bool:
        """Whether there were as many restarts as are allowed, lately or without progress."""
        since, most = at - self._limits.window_s, self._limits.max_restarts
        return self._fruitless >= most or sum(s.at > since for s in self._starts) >= most

    def may_give_up(self, at: float) -> bool:
        """Whether patience is at its end. Storage that is away is waited for, whatever the cap: for
        the window, or as often as was asked for."""
        if not self._away:
            return self.used_up(at)
        if self._limits.exact:
            return self.used_up(at) or self._fruitless >= self._limits.max_restarts
        since = self._away_since
        lasts = since is not None and at - since >= self._limits.window_s - SLACK_S
        return lasts or not self._instrumented

    def waits(self) -> bool:
        """Whether the next attempt has to wait until a restart does not count any more."""
        return bool(self._starts) and self.used_up(max(start.at for start in self._starts))


class Replay:
    """The journal alone gives the same decisions and the same state."""

    def __init__(self) -> None:
        self._left: State | None = None

    def replayed(self, entry: Entry, seq: int, actions: Sequence[AnyAction]) -> str:
        """One entry was handled again."""
        if entry.seq != seq:
            return f"entry {entry.seq} where {seq} should be"
        return "" if entry.actions == tuple(actions) else f"entry {seq} is decided otherwise now"

    def crashed(self, state: State, durable: bool) -> None:
        """A controller is gone; what it knew, if the journal has all of it."""
        self._left = state if durable else None

    def restarted(self, state: State) -> str:
        """A controller has replayed the journal."""
        left, self._left = self._left, None
        return "" if left is None or left == state else "the state is another one"


class Referees:
    """All referees of one world: each hears what concerns it, and the first to object is heard."""

    def __init__(self, hardship: Hardship, env: Environment) -> None:
        self._hard, self._env = hardship, env
        self._one, self._given_up, self._snapshots = OneAttempt(), GivenUp(), Resumption()
        self._efficiency, self._persistence = Efficiency(hardship), Persistence(hardship)
        self._replay, self._books, self._terms = Replay(), Accounting(), OneTerm()
        self._succession, self._numbers = Succession(), FiniteNumbers()
        self.removals, self._kept = FairRemovals(hardship.limits.node_count), KeptWorkers()
        self.removals.is_sick = self._efficiency.sickness.is_faulty
        self._updates, self._assembly = FairUpdates(), WholeSnapshots()
        self._whole = WholeReplicas(hardship.limits.nodes_each)
        reference = hardship.limits.node_count * hardship.workers
        self._samples = Samples(reference, hardship.limits.batch == KEEPS)
        self.loaders = LeftOut(hardship.poison)
        self._skips = FairSkips(self.loaders, hardship.limits.skip_batches)
        self.blame = self._efficiency.blame
        self.in_trouble: Callable[[str], bool] = bool
        self.over = False  # the job has ended and that was carried out
        self.stop_asked = self.finished = False
        self._decided = 0  # the entry that ends the job
        self.outcome: Outcome | None = None
        self.entries = self.attempts = 0
        self.stillborn = 0  # nodes that died before they said anything, or did not fit
        self._supply = FairSupply(hardship.limits.node_count + hardship.limits.spare_count)
        self._dark_since = 0.0
        self._waits_since = 0.0  # no attempt, and a controller that waits for nodes

    @property
    def named_within_s(self) -> float:
        """How long a member may be gone under one controller that is awake: it may have been told
        to wait for it, and its look for silence may have to be started again a few times."""
        pauses_s = PAUSES_S if "duty_deaths" in self._hard.rates else 0.0
        waits_s = self.waits_s_max * self._hard.cluster + self._succession.waits_s(self._env.now)
        return self._hard.heartbeat_timeout_s + RECONNECT_S + NAMED_MARGIN_S + pauses_s + waits_s

    def found_within_s(self, step_s: float, pause_s: float) -> float:
        """How long an attempt may hang under one controller that is awake, whose steps took so long
        and its longest pause: members that cannot be looked at have to be named first."""
        return self.named_within_s + HANG_S + max(STEPS * step_s, PAUSES * pause_s)

    @property
    def waits_s_max(self) -> float:
        """How long a decision may wait: until whoever is silent, or takes nothing, is found out."""
        pauses_s = PAUSES_S if "duty_deaths" in self._hard.rates else 0.0
        late_s = LATE_S if "late_messages" in self._hard.shares else 0.0
        silent_s = max(self._hard.heartbeat_timeout_s, DEADLINE_S)
        return silent_s + WAIT_MARGIN_S + late_s + pauses_s

    def _judge(self, promise: Promise, how: str) -> None:
        if how:
            raise Foul(promise, self._env.now, how)

    # ── what workers do ──

    def launched(self, node: str, order: Start, others: Sequence[int], there: str | None) -> None:
        """A node begins to run workers."""
        self.attempts = max(self.attempts, order.attempt)
        how = self._one.launched(order, others, there)
        self._judge(Promise.ONE_ATTEMPT, how and f"{node}: {how}")
        how = self._updates.launched(order)
        self._judge(Promise.VERSIONS, how and f"{node}: {how}")
        self._judge(Promise.WHOLE, self._whole.launched(node, order))

    def resumed(
        self, attempt: int, found: ResumedFrom | None, memories: Sequence[NodeMemory], distance: int
    ) -> None:
        """An attempt has chosen its snapshot, in place or one that is put together anew."""
        self._judge(Promise.ASSEMBLY, self._assembly.resumed(attempt, found, memories))
        if found is None or found.plan is not None:
            plan, held = found and found.plan, holdings(memories, distance)
            self._judge(Promise.SNAPSHOT, self._snapshots.resumed(attempt, plan, held, distance))

    def dealt(self, attempt: int, found: Snapshot | None, dealt: Sequence[range]) -> None:
        """Which samples the ranks of an attempt take first."""
        key = found.key if found is not None else None
        self._judge(Promise.SAMPLES, self._samples.resumed(attempt, key, dealt))

    def took(self, attempt: int, found: Snapshot | None, bad: bool) -> None:
        """What the snapshot is worth that an attempt has chosen."""
        self._judge(Promise.FINITE, self._numbers.resumed(attempt, found, bad))

    def parks(self, attempt: int, trained: bool) -> None:
        """Workers of an attempt are told to park, all of which have done a step or not."""
        self._judge(Promise.KEPT, self._kept.told_to_park(attempt, trained))

    def goes_on(self, left: int, attempt: int) -> None:
        """A worker that was kept after one attempt begins in another."""
        self._judge(Promise.KEPT, self._kept.goes_on(left, attempt))

    def broken(self, attempt: int) -> None:
        """Something broke in this attempt."""
        self._efficiency.broken(attempt)

    def hung(self, attempt: int, rank: int) -> None:
        """A worker hangs, and the others wait for it."""
        self.blame.hung(attempt, rank)
        self._efficiency.broken(attempt)

    def sick(self, node: str, condition: str, severity: Severity) -> None:
        """A node has a fault, an alert or a warning."""
        self._efficiency.sickness.struck(node, condition, severity, self._env.now)

    def all_changed(self, *, lately: bool) -> None:
        """Every machine has begun to fail its checks, or to pass them again."""
        self._efficiency.checks.unclear = lately

    def stands(self, attempt: int, for_s: float, within_s: float) -> None:
        """An attempt hangs, for so long of the time that its controller was awake."""
        how = f"attempt {attempt} hangs for {for_s:.1f} s"
        self._judge(Promise.NAMED, how if for_s > within_s else "")

    def unseen(self, what: str, for_s: float, within_s: float) -> None:
        """Nobody knows of a fault, for so long of the time in which it could be seen."""
        how = f"{what} is not seen for {for_s:.1f} s"
        self._judge(Promise.SEEN, how if for_s > within_s else "")

    def bugged(self) -> None:
        """The user's code failed, as it always does at this step."""
        self._persistence.bugged()

    # ── on the wire and on the disk ──

    def ordered(self, node: str, messages: Sequence[ToAgent | Question]) -> None:
        """These messages go to a node."""
        self._judge(Promise.GIVEN_UP, self._given_up.ordered(node, messages))

    def journaled(self, entry: Entry) -> None:
        """A fact and what was decided are on the disk."""
        self.entries = entry.seq
        self._judge(Promise.BLAME, self.blame.journaled(entry))
        self._judge(Promise.CHOICE, choosing.judged(entry))
        self._judge(Promise.RATE, self.removals.journaled(entry))
        self._judge(Promise.EFFICIENCY, self._efficiency.journaled(entry, self.in_trouble))
        starts = self._persistence.journaled(entry, free=self.removals.free)
        self._judge(Promise.PERSISTENCE, starts)
        self._judge(Promise.FINITE, self._numbers.journaled(entry))
        self._judge(Promise.LEFT_OUT, self._skips.journaled(entry))
        self._judge(Promise.VERSIONS, self._updates.journaled(entry))
        self._given_up.journaled(entry)
        self._terms.journaled(entry)
        self._whole.journaled(entry)
        self._supply.journaled(entry)
        self.stillborn += any(isinstance(a, Dismiss) for a in entry.actions)
        if isinstance(entry.event, AttemptStopped):
            self._waits_since = self._env.now
        for action in entry.actions:
            if isinstance(action, EndJob) and not self._decided:
                self._decided = entry.seq  # a controller that comes back only repeats it
                self._judge_decision(action.outcome, entry.at)

    def replayed(self, entry: Entry, seq: int, actions: Sequence[AnyAction]) -> None:
        """An entry was handled again, by another controller."""
        self._judge(Promise.REPLAY, self._replay.replayed(entry, seq, actions))

    def crashed(self, state: State, durable: bool) -> None:
        """A controller is gone."""
        self._dark_since = self._env.now
        self._succession.crashed(self._env.now)
        self._replay.crashed(state, durable)

    def restarted(self, state: State) -> None:
        """There is a controller again."""
        self._waits_since = self._env.now
        self.heard(self._dark_since)
        self._judge(Promise.REPLAY, self._replay.restarted(state))

    def silent(self, node: str, for_s: float) -> None:
        """A member cannot be heard, for so long of the time that its controller was awake."""
        how = f"{node} is gone for {for_s:.1f} s and a member"
        self._judge(Promise.NAMED, how if for_s > self.named_within_s else "")

    def waits(self, for_s: float) -> None:
        """What was decided is not done, for so long, though nothing but a copy is missing."""
        how = f"what was decided waits for {for_s:.1f} s"
        self._judge(Promise.BOUND, how if for_s > self.waits_s_max else "")

    # ── one controller ──

    def obeyed(self, node: str, order: Start | Stop | Leave) -> None:
        """A node does what it was told."""
        self._judge(Promise.TERMS, self._terms.obeyed(node, order))

    def acts(self, how: str) -> None:
        """A controller does something; what is wrong with that."""
        self._judge(Promise.TERMS, how)

    def unkept(self, how: str) -> None:
        """An order leaves; what is wrong with that."""
        self._judge(Promise.TERMS, how)

    def took_over(
        self, shared: int, ordered: dict[int, int], is_kept: Callable[[int], bool]
    ) -> None:
        """A controller has gathered a journal, of which `shared` is the newest entry that the one
        before had, too."""
        self._given_up.forget(shared)
        self._numbers.forget(shared)
        self.blame.errors.forget()
        self._succession.forget(shared)
        self._decided = self._decided if self._decided <= shared else 0
        self._replay.crashed(State(limits=self._hard.limits), False)
        self._judge(Promise.TERMS, self._terms.took_over(ordered, is_kept))

    def met(self) -> None:
        """A node on another machine than the controller has connected."""
        self._succession.met(self.entries, self._env.now)

    def handed_over(self) -> None:
        """A controller gives its place away."""
        self._judge(Promise.BOUND, self._succession.handed_over(self.entries))

    def returned(self, *, standby: bool) -> None:
        """It has it again, whether another one stood by."""
        self._judge(Promise.TERMS, self._succession.returned(standby=standby))

    def started(self, node: str) -> None:
        """It is ready."""
        self._supply.started(node, self._env.now)

    def died(self, node: str) -> None:
        """It is gone."""
        self._judge(Promise.BOUND, self._supply.died(node, self._env.now))

    # ── the end ──

    def ended(self, outcome: Outcome) -> None:
        """The job is over."""
        self.over, self.outcome = True, outcome

    def _judge_decision(self, outcome: Outcome, at: float) -> None:
        reasons = {
            Outcome.SUCCEEDED: self.finished,
            Outcome.STOPPED: self.stop_asked,
            Outcome.FAILED: (self._persistence.bugs > 0 or self.blame.errors.may_end)
            or (self._numbers.repeated() and self._skips.exhausted),
            Outcome.GAVE_UP: self._may_give_up(at),
        }
        how = "" if reasons[outcome] else f"the job {outcome.value} for no reason"
        self._judge(Promise.PERSISTENCE, how)

    def _may_give_up(self, at: float) -> bool:
        long = self._env.now - self._waits_since >= self._hard.limits.node_wait_s - 1.0
        return self._persistence.may_give_up(at) or long or self._supply.useless(self.stillborn)

    def calm(self, trains: bool, what: str, at_work: Sequence[str], nodes: int) -> None:
        """Nothing has gone wrong for long; the job has so many nodes."""
        self._judge(Promise.GIVEN_UP, self._given_up.calm(at_work))
        if self.stop_asked:
            self._judge(Promise.END, f"the job goes on: {what}")
            return  # neither training nor spares are due
        trains = trains or self._persistence.waits()
        how = "" if trains else f"nothing goes wrong any more and the job does not train: {what}"
        self._judge(Promise.LIVENESS, how)
        wanted = self._hard.limits.node_count + self._hard.limits.spare_count
        few = nodes < wanted and self.stillborn < 3
        self._judge(Promise.SPARES, f"{nodes} nodes of {wanted}" if few else "")

    def heard(self, sent_at: float) -> None:
        """A controller reads what was sent then, or what was journaled until then."""
        self._books.heard(self._env.now, sent_at)

    def at_end(
        self,
        ledger: Ledger,
        known: Mapping[int, AttemptKnown],
        spent: TimeSpent,
        incidents: Sequence[IncidentRecord],
    ) -> None:
        """All is said; see `Accounting.at_end`."""
        self._judge(Promise.END, "" if self.over else "the job goes on")
        one_clock = not self._hard.clock_step_s
        how = self._books.at_end(ledger, known, spent, incidents, one_clock=one_clock)
        self._judge(Promise.BOOKS, how)
