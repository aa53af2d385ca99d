"""Agents in a simulated world: what `holdfast.agent` does, at the level of messages.

Rules of the real one: a start counts only if it is newer than any start or stop seen, a stop is
always answered, facts are numbered, and sent again after each reconnect until acknowledged. Its
processes are runs of the `GroundTruth`; its heartbeat is looked up, as a day would be millions.
"""

from collections.abc import Sequence
from typing import Protocol, assert_never

from holdfast.agent.fact_queue import FactQueue
from holdfast.agent.journal_replica import JournalReplica
from holdfast.compiled_code import TakeCompiled
from holdfast.events import (
    HealthChanged,
    NodeLeft,
    NodeReady,
    Progress,
    Severity,
    Store,
    WorkerExited,
)
from holdfast.evidence import NodeEvidence
from holdfast.messages import (
    PROTOCOL,
    Ack,
    AgentFact,
    CheckMachine,
    CodePart,
    EntryTimes,
    EvidenceReply,
    Fact,
    GiveJournal,
    Hello,
    Keep,
    Leave,
    LookForApi,
    PrepareVersion,
    RepeatStep,
    Report,
    Stacks,
    Start,
    Stop,
    TakeEntryTimes,
    TakeEvidence,
    TakeStacks,
    UseVersion,
    VersionPrepared,
    Welcome,
    WorkersStarted,
    WorkersStopped,
)
from holdfast.profiles import TakeProfile, TakeTracePart
from holdfast.simulation.environment import Environment
from holdfast.simulation.ground_truth import GroundTruth
from holdfast.simulation.group_faults import REPEAT_S, opened, repeated
from holdfast.simulation.keeping import ParkedWorkers, grace_of
from holdfast.simulation.memory import NodeMemory
from holdfast.simulation.observed_workers import entry_times, stacks
from holdfast.simulation.profiled import profile
from holdfast.simulation.readiness import Readiness
from holdfast.simulation.runs import ORPHANED, Death, NodeWorkers
from holdfast.simulation.shared_faults import check_s, checked
from holdfast.simulation.slowness import Slow, wall_clock_us
from holdfast.simulation.wires import Downward, SimulatedWire, Upward

GOODBYE_S = 1.0
FORKSERVER_S = 8.0  # until a new forkserver has loaded, mean
LOOK_S = 1.0  # to look at its workers, several times, mean
PREPARE_S = 5.0  # to run a script up to `join()`, mean
EVIDENCE_S = 0.1  # to tell how the node is
KILL_S = 0.05  # from SIGKILL until a process is gone, mean
OVERDUE_S = 60.0  # how much longer a stuck stop takes than it may, at most
FOR_EVER_S = 1e9  # unless it never ends: a process that hangs in the kernel


class AgentNetwork(Protocol):
    """The way to the controller."""

    def connect(self, agent: "SimulatedAgent") -> SimulatedWire | None:
        """Say hello; the connection, if there is somebody."""

    def obeys(self, agent: "SimulatedAgent", order: Start | Stop | Leave) -> None:
        """It does what it was told."""

    def unheard(self, agent: "SimulatedAgent", since: float) -> None:
        """From now on nobody can hear it."""

    def gone(self, agent: "SimulatedAgent", how: str) -> None:
        """The agent's process has ended."""

    def new_store(self) -> Store:
        """A store on a port that nobody has used."""


class SimulatedAgent:
    """One node from its start to its end."""

    def __init__(
        self, env: Environment, network: AgentNetwork, truth: GroundTruth, number: int, workers: int
    ) -> None:
        self.node, self.number, self.workers = f"n{number}", number, workers
        self.alive, self.frozen, self.bad_in_groups = True, False, False
        self.reach = True  # the network lets it talk to the controller
        self.gone_since: float | None = None  # nobody can hear it
        self.wire: SimulatedWire | None = None
        self.trouble_until = 0.0  # it may rightly be given up for what happened until then
        self.run: NodeWorkers | None = None
        self.memory: dict[int, NodeMemory] = {}
        self.slow: Slow | None = None
        self.drags, self.stalls_until = 1.0, 0.0  # its network
        self.replica = JournalReplica()  # lost with the node
        self.pulse = Report(node=self.node, attempt=-1, workers=())
        self._env, self._network, self._truth = env, network, truth
        self._connecting = self._welcome = self._ending = False
        self._term = 0  # newest of a controller that was obeyed
        self._inbox: list[tuple[SimulatedWire, Sequence[Downward]]] = []
        self._unseen: list[tuple[NodeWorkers, int, Death]] = []
        self._facts = FactQueue()
        self._newest = self._fenced = 0
        self._ran = 0  # newest attempt whose workers it has run
        self._stopping: Stop | None = None
        self._stopped = True  # the newest attempt is known to be over
        self.fault = ""  # what a check of its machine finds
        self._forks = True  # it has a forkserver that can fork
        self._waiting: Start | None = None  # came while there was none
        self._parked = ParkedWorkers(f"parked {env.hardship.seed} {self.node}")
        self._readiness = Readiness(env, self.node)
        self._store: Store | None = None
        self._told_store: Store | None = None

    def __repr__(self) -> str:
        return self.node

    # ── trouble ──

    def in_trouble(self, for_s: float = 0.0) -> None:
        """Something is wrong with it, now and for so much longer: giving it up is no mistake."""
        self.trouble_until = max(self.trouble_until, self._env.now + for_s)

    def hears(self, wire: SimulatedWire) -> bool:
        """Whether this is its connection, and it reads what arrives."""
        return self.alive and not self.frozen and wire is self.wire

    def talks_over(self, wire: SimulatedWire) -> bool:
        """Whether this is its connection, and it gives signs of life over it."""
        return self._welcome and self.hears(wire)

    def _falls_silent(self) -> None:
        if self.wire is not None:
            self.wire.falls_silent()
            self.wire.control.falls_silent()

    def _goes(self) -> None:
        """From now on it cannot be heard, over whatever connection."""
        if self.gone_since is None:
            self.gone_since = self._env.now
            self._network.unheard(self, self._env.now)

    def _is_back(self) -> None:
        if self.alive and not self.frozen and self.reach:
            self.gone_since = None

    def freeze(self) -> None:
        """It hangs: nothing is read or said."""
        self._falls_silent()
        self.frozen = True
        self._goes()

    def wake(self) -> None:
        """It goes on where it was."""
        if not self.alive or not self.frozen:
            return
        self.frozen = False
        self._is_back()
        inbox, self._inbox = self._inbox, []
        unseen, self._unseen = self._unseen, []
        for run, rank, death in unseen:
            self.worker_died(run, rank, death)
        for wire, messages in inbox:
            self.receive(wire, messages)
        self.news()
        self.connect_soon()

    def cut(self) -> None:
        """It cannot reach the controller, which is not told; one on its own machine it can."""
        self.reach = False
        self._goes()
        if self.wire is not None and self.wire.control.machine != self.node:
            self._leave(told=False)

    def heal(self) -> None:
        """It can reach the controller again."""
        self.reach = True
        self._is_back()
        self.connect_soon()

    def disconnect(self) -> None:
        """The connection breaks and both ends notice."""
        self._leave(told=True)
        self.connect_soon()

    def lost(self, wire: SimulatedWire, *, told: bool = False) -> None:
        """This connection is found to be gone; whether the controller is told."""
        if wire is self.wire:
            self._leave(told=told)
            self.connect_soon()

    def _leave(self, *, told: bool) -> None:
        if self.wire is not None:
            self._falls_silent()
            wire, self.wire = self.wire, None
            wire.drop(told=told)

    def die(self, how: str) -> None:
        """Agent and workers are gone at once, and everything in memory."""
        if not self.alive:
            return
        self._falls_silent()
        self.in_trouble(float("inf"))
        self.alive = False
        self._goes()
        self.memory, self.replica = {}, JournalReplica()
        if self.run is not None:
            self._truth.vanish(self.run, f"{self.node} died")
        self._leave(told=True)
        self._network.gone(self, how)

    def end(self, grace_s: float, failed: str = "") -> None:
        """End in an orderly way: workers first, then a goodbye, with what of its own has failed."""
        if self._ending or not self.alive:
            return
        self._ending = True
        self.in_trouble(float("inf"))
        self._env.after(self._ending_s(grace_s), self._say_goodbye, failed)

    def _say_goodbye(self, failed: str) -> None:
        if self.alive:
            if self.run is not None:
                self._truth.vanish(self.run, f"{self.node} was taken away")
            self._fact(NodeLeft(node=self.node, failed=failed))
            self._env.after(GOODBYE_S, self.die, "its agent process ended with status 0")

    # ── the connection ──

    def connect_soon(self) -> None:
        """Try to connect, as long as that can work; else whoever removes the reason tries again."""
        if self.wire is None and not self._connecting:
            self._connecting = True
            self._env.after(0.1 + self._env.dice.random(), self._connect)

    def _connect(self) -> None:
        self._connecting = False
        if self.alive and not self.frozen and self.wire is None:
            self._welcome = False
            self.wire = self._network.connect(self)

    def hello(self) -> Hello:
        """The first message of a connection."""
        return Hello(
            protocol=PROTOCOL,
            node=self.node,
            name=self.node,
            address="10.0.0.1",
            workers=self.workers,
            pid=self.number + 1,
            attempt=self._ran,
            running=self.run is not None and bool(self.run.alive),
            ordered=self._newest,
            fenced=self._fenced,
            ready=self._told(),
            kept=self.replica.seq,
            term=self.replica.term,
            obeyed=self._term,
        )

    def _told(self) -> bool:
        """Whether a controller was told of the fresh store, and knows it."""
        follows = self._facts.holds(NodeReady)
        return not follows and self._store is not None and self._told_store == self._store

    def receive(self, wire: SimulatedWire, messages: Sequence[Downward]) -> None:
        """Messages of the controller have arrived."""
        if not self.alive or wire is not self.wire or self._ending:
            return
        if self.frozen:
            self._inbox.append((wire, messages))
            return
        for message in messages:
            if wire is self.wire:
                self._take(message)

    def _take(self, message: Downward) -> None:
        match message:
            case Ack():
                self.forget(message.seq)
            case GiveJournal() | LookForApi() | CodePart() | TakeTracePart() | TakeCompiled():
                pass
            case TakeProfile():
                profile(message, self, self._env, self._truth, self._up)
            case CheckMachine():
                self._env.after(self._env.about(check_s(message)), self._tell_checked, message)
            case RepeatStep():
                self._up(*opened(message, self._network))
                said = repeated(message, bad=self.bad_in_groups)
                self._env.after(self._env.about(REPEAT_S), self._up, said)
            case TakeEntryTimes():
                self._tell_entry_times(message)
            case TakeStacks():
                self._env.after(self._env.about(LOOK_S), self._tell_stacks, message.number)
            case TakeEvidence():
                self._env.after(EVIDENCE_S, self._tell_evidence, message.number)
            case PrepareVersion():
                self._env.after(self._env.about(PREPARE_S), self._tell_prepared, message)
            case Welcome() | Start() | Stop() | Leave() | Keep() | UseVersion() if (
                message.term < self._term
            ):
                self.disconnect()  # its controller has been replaced
            case Welcome():
                self._term = message.term
                self._welcomed(message)
            case Keep():
                self._keep(message)
            case UseVersion():
                pass  # what is warm is not simulated
            case Start() | Stop() | Leave():
                self._network.obeys(self, message)
                self._obey(message)
            case _:
                assert_never(message)

    def _tell_stacks(self, number: int) -> None:
        run = self.run
        groups = stacks(run, self._env.now) if run is not None else ()
        self._up(Stacks(number=number, groups=groups))

    def _tell_entry_times(self, question: TakeEntryTimes) -> None:
        now_us = wall_clock_us(self.number, self._env.now)
        step_s = self._env.hardship.step_s
        told = entry_times(self.run, self.number, self._env.now, step_s, question.recent)
        self._truth.told_times(len(told))
        self._up(EntryTimes(number=question.number, ranks=told, asked_us=now_us, told_us=now_us))

    def _tell_evidence(self, number: int) -> None:
        self._up(EvidenceReply(number=number, found=NodeEvidence(node=self.node)))

    def _tell_checked(self, order: CheckMachine) -> None:
        self._up(checked(order, self, self._env))

    def _tell_prepared(self, question: PrepareVersion) -> None:
        why = self._truth.flaw(question.version)
        self._up(VersionPrepared(number=question.number, why=why))

    def _keep(self, order: Keep) -> None:
        kept = self.replica.keep(order)
        if self.wire is not None and kept.term == order.term:
            self.wire.control.keeps(self.node, kept.seq)
        self._up(kept)

    def _obey(self, order: Start | Stop | Leave) -> None:
        match order:
            case Start():
                self._on_start(order)
            case Stop():
                self._on_stop(order)
            case Leave():
                self.end(0.0)
            case _:
                assert_never(order)

    def _welcomed(self, welcome: Welcome) -> None:
        if not welcome.known:
            self.end(0.0)
            return
        self._welcome = True
        self.forget(welcome.acked)
        self._facts.sent = welcome.acked
        self._up(*self._sending(), self._report())

    def forget(self, acked: int) -> None:
        """The controller has these facts on its disk."""
        self._facts.forget(acked)

    def _fact(self, event: AgentFact, *, report: bool = False) -> None:
        self._facts.add(event, self._env.now)
        first = [self._report()] if report else []
        self._up(*first, *self._sending())

    def _up(self, *messages: Upward) -> None:
        if self.wire is not None and self.talks_over(self.wire):
            self.wire.up(messages)

    def _sending(self) -> list[Fact]:
        """What has not gone out yet; what is lost on the way is sent again after a reconnect."""
        facts = self._facts.unsent(self._env.now)
        if facts:
            self._facts.sent = facts[-1].seq
        return facts

    def news(self) -> None:
        """Its workers have reached a milestone: report it."""
        self._up(self._report())

    def _report(self) -> Report:
        run = self.run
        if run is None or self._stopped:
            return self.pulse
        workers = self._truth.report(run)
        return Report(node=self.node, attempt=run.group.attempt, workers=workers)

    def look(self) -> Report:
        """The report that is due at any moment."""
        return self._report()

    # ── workers ──

    def ready(self) -> None:
        """Forkserver and store are up."""
        if self.alive and not self._ending:
            self._open_store()

    def _open_store(self) -> None:
        if not self.alive or not self._forks:
            return
        if self._store is None:
            self._store = self._network.new_store()
        if self._told_store is None:
            self._told_store = self._store
            self._fact(self._readiness.fact(self._store, once_warm=self.lose_store))

    def lose_store(self) -> None:
        """The fresh store dies; soon there is another."""
        if self._store is not None:
            self._store = self._told_store = None
            self._env.after(self._env.about(1.0), self._open_store)

    def lose_forkserver(self) -> None:
        """It dies, and with it every worker and store; another one takes a while to load."""
        if not self._forks:
            return
        self._forks = False
        self._parked.lose()
        self._store = self._told_store = None
        self._env.after(self._env.about(FORKSERVER_S), self._forks_again)
        if self.run is not None:
            for rank in list(self.run.alive):
                self._truth.kill(self.run, rank, ORPHANED)

    def _forks_again(self) -> None:
        if not self.alive or self._ending:
            return
        if self.frozen:
            self._env.after(1.0, self._forks_again)
            return
        self._forks = True
        self._open_store()
        if self._waiting is not None:
            order, self._waiting = self._waiting, None
            self._launch(order)

    def holds_store(self, port: int) -> bool:
        """Whether the store on this port is the fresh one."""
        return self._store is not None and self._store.port == port

    def _on_start(self, order: Start) -> None:
        if order.attempt <= max(self._newest, self._fenced):
            return
        self._newest = order.attempt
        if self._forks:
            self._launch(order)
        else:
            self._waiting = order

    def _launch(self, order: Start) -> None:
        self._ran = order.attempt
        left, kept = self._parked.take(order)
        if kept:
            self._truth.goes_on(left, order)
        if self.run is not None and self.run.alive:
            self._truth.clear(self.run)
        self._stopped, self._stopping = False, None
        self.run = self._truth.launch(self, order)
        if self.holds_store(order.store.port):
            self._store = None
        self._fact(WorkersStarted(node=self.node, attempt=order.attempt))

    def worker_died(self, run: NodeWorkers, rank: int, death: Death) -> None:
        """One of its workers has ended by itself."""
        if run is not self.run or not self.alive or self._ending:
            return
        if self.frozen:
            self._unseen.append((run, rank, death))
            return
        exited = WorkerExited(
            node=self.node,
            attempt=run.group.attempt,
            rank=rank,
            exit_code=death.exit_code,
            signal=death.signal,
            progress=self._truth.progress(run, rank),
            error=death.error,
            forkserver=death.forkserver,
            broke=self._truth.broke(run, rank),
        )
        self._fact(exited, report=True)

    def tell_condition(self, condition: str, severity: Severity) -> None:
        """Its health has changed."""
        if severity is Severity.FATAL:
            self.fault = f"{condition} on {self.node}"
        if self.alive and not self._ending:
            detail = f"{condition} on {self.node}"
            self._fact(
                HealthChanged(node=self.node, condition=condition, severity=severity, detail=detail)
            )

    def _on_stop(self, order: Stop) -> None:
        if order.attempt > max(self._newest, self._fenced):
            self._store = None  # an attempt that never started here may have used it
        self._fenced = max(self._fenced, order.attempt)
        if self._waiting is not None and self._waiting.attempt <= self._fenced:
            self._waiting = None
        run = self.run
        if run is None or self._stopped or run.group.attempt > order.attempt:
            self._env.after(0.01, self._answer, order.attempt)
            return
        if order.park_s:
            self._truth.parks(run)
        first, self._stopping = self._stopping is None, order
        if first:
            self._env.after(self._stopping_s(run, order), self._workers_gone, run)
        elif grace_of(order) == 0:
            self._env.after(self._env.about(KILL_S), self._workers_gone, run)

    def _stopping_s(self, run: NodeWorkers, order: Stop) -> float:
        """Most workers obey SIGTERM; those that hang are killed after the grace time."""
        env, grace_s = self._env, grace_of(order)
        if env.chance(env.hardship.share("stuck_stops")):
            overdue_s = OVERDUE_S * env.dice.random() if env.chance(0.7) else FOR_EVER_S
            self.in_trouble(grace_s + overdue_s)
            return grace_s + overdue_s
        if order.keeps and run.alive and self._truth.keeps(run):
            return grace_s + env.about(KILL_S)
        return self._ending_s(grace_s) if run.alive else 0.01

    def leaves(self, run: NodeWorkers) -> None:
        """Its workers have taken the snapshot that they were to end with."""
        self._env.after(self._env.about(KILL_S), self._workers_gone, run)

    def _ending_s(self, grace_s: float) -> float:
        env = self._env
        stubborn = env.dice.random() < 0.3
        return (grace_s if stubborn else min(grace_s, 0.1)) + env.about(KILL_S)

    def _workers_gone(self, run: NodeWorkers) -> None:
        if run is not self.run or self._stopped or not self.alive:
            return
        if self.frozen:  # its forkserver has reaped them, nobody is there to tell
            self._env.after(1.0, self._workers_gone, run)
            return
        assert self._stopping is not None
        if (park_s := self._stopping.park_s) is not None and self._forks:
            self._parked.park(run.group.attempt, run.alive, park_s)
        if run.alive:
            self._truth.clear(run)
        self._answer(self._stopping.attempt)

    def _answer(self, attempt: int) -> None:
        """Nothing of the attempt is left here; with the next store, if there is one in time."""
        if not self.alive or self._ending:
            return
        lost = self._env.hardship.share("lost_stores")
        if not self._forks:
            self._store = None
        elif self._store is None and self._env.chance(lost):
            self._told_store = None
            self._env.after(self._env.about(5.0), self._open_store)
        elif self._told_store is None:
            self._open_store()  # it has said that it has none, so this is news of its own
        else:
            self._store = self._store or self._network.new_store()
        self._told_store = self._store
        stopped = WorkersStopped(
            node=self.node,
            attempt=attempt,
            store=self._store,
            progress=self._furthest(attempt),
            parked=self._parked.count,
            unkept=self._parked.unkept,
        )
        self._fact(stopped)
        if self.run is not None and self.run.group.attempt <= attempt:
            self._stopped = True

    def _furthest(self, attempt: int) -> Progress:
        run = self.run
        if run is None or run.group.attempt != attempt:
            return Progress()
        pages = [self._truth.progress(run, rank) for rank in run.ranks]
        return max(pages, key=lambda page: -1 if page.step is None else page.step)
