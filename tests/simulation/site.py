"""Controller, journal and bridge of production with a few nodes, moved by hand: no dice, no clock.

What happens is a phrase, `a exits` or `controller dies`; a phrase that makes no sense at its moment
(an answer to an order that was not given) does nothing. Nodes obey orders as agents do: one counts
only if it is newer than any seen, and what they have to say is kept while nobody listens. No fact
is ever acknowledged, so that each new controller hears all of them again.
"""

from collections import deque
from dataclasses import dataclass, field

from holdfast.actions import AnyAction, AskNodes, EndJob, Entry, Fence, Outcome
from holdfast.controller import Controller, Limits, Phase
from holdfast.controller.invariants import check
from holdfast.events import (
    AnyEvent,
    Beginning,
    ControllerResumed,
    DeadlinePassed,
    JobSubmitted,
    Milestone,
    NodeReady,
    Progress,
    StopRequested,
    Store,
    WorkerExited,
)
from holdfast.messages import (
    PROTOCOL,
    AgentFact,
    Hello,
    Leave,
    Report,
    Start,
    Stop,
    ToAgent,
    WorkerReport,
    WorkersStopped,
)
from holdfast.shell.bridge import Bridge
from holdfast.shell.exits import Exits
from holdfast.simulation.referees import GivenUp, OneAttempt

TIMEOUT_S = 5.0
ROUNDS_MAX = 30  # of calm, until everything has settled


@dataclass
class Place:
    """A node: one worker, and what its agent remembers."""

    node: str
    alive: bool = True
    connected: bool = False
    ready: bool = False
    runs: int = 0  # attempt whose worker lives
    rank: int = 0
    seen: int = 0  # newest attempt it was told to start or stop
    stopping: int = 0  # attempt of an order to stop that it has not answered
    facts: list[AgentFact] = field(default_factory=list)
    told: int = 0  # facts that this life of the controller has heard


class Site:
    """A job of two nodes; `now` is whatever the test wants."""

    def __init__(self) -> None:
        self.limits = Limits(node_count=2, node_wait_s=60.0)
        self.now = 0.0
        self.places: dict[str, Place] = {}
        self.journal: list[Entry] = []
        self.doomed = False  # the controller dies before it carries out its next orders
        self.finished: dict[int, set[int]] = {}  # attempt → ranks that have done all steps
        self._ports = 0
        self._one, self._given_up = OneAttempt(), GivenUp()
        self._take_over(JobSubmitted())

    # ── the controller's process ──

    def _take_over(self, first: Beginning) -> None:
        self.controller = Controller(self.limits)
        for entry in self.journal:
            assert self.controller.handle(entry.event, entry.at) == list(entry.actions)
        self.state = self.controller.state
        self.bridge = Bridge(self.state, TIMEOUT_S, self.now)
        self.waiting: Exits[tuple[str, int]] = Exits(self.state)
        for place in self.places.values():
            place.connected, place.told = False, 0
        self.put(first)

    def put(self, *facts: AnyEvent | None) -> None:
        """The controller hears these facts, and what follows from them is carried out."""
        queue = deque(facts)
        while queue:
            for event in self.waiting.hear(queue.popleft(), None, max(self.now, self.state.now)):
                actions = self._handle(event)
                if actions and self.doomed:
                    self.doomed = False
                    self._resume()
                    return
                for action in actions:
                    queue.extend(self._carry_out(action))

    def _handle(self, event: AnyEvent) -> list[AnyAction]:
        at = max(self.now, self.state.now)
        actions = self.controller.handle(event, at)
        check(self.state)
        entry = Entry(len(self.journal) + 1, at, event, tuple(actions))
        self.journal.append(entry)
        self._given_up.journaled(entry)
        return actions

    def _carry_out(self, action: AnyAction) -> list[AnyEvent]:
        messages, events = self.bridge.carry_out(action, self.now)
        for node, message in messages:
            if node in self.places and self.places[node].connected:
                self._tell(self.places[node], [message])
        match action:
            case AskNodes():
                for _ in range(action.count):
                    node = "abcdefgh"[len(self.places)]
                    self.places[node] = Place(node)
            case Fence():
                self._end(self.places[action.node])
            case EndJob():
                done = self.finished.get(self.state.attempt, set())
                well = action.outcome is Outcome.SUCCEEDED
                assert not well or len(done) == 2, f"only ranks {done} have finished"
                for place in self.places.values():
                    self._end(place)
        return events

    # ── orders ──

    def _tell(self, place: Place, messages: list[ToAgent]) -> None:
        how = self._given_up.ordered(place.node, messages)
        assert not how, how
        for message in messages:
            match message:
                case Start():
                    self._start(place, message)
                case Stop():
                    place.seen = max(place.seen, message.attempt)
                    place.stopping = message.attempt
                case Leave():
                    self._end(place)

    def _start(self, place: Place, order: Start) -> None:
        if order.attempt <= place.seen:
            return
        others = [p for p in self.places.values() if p.runs and p is not place]
        strangers = [p.runs for p in others if p.runs != order.attempt]
        there = [p.node for p in others if p.runs == order.attempt and p.rank == order.node_rank]
        how = self._one.launched(order, strangers, there[0] if there else None)
        assert not how, how
        place.runs, place.rank, place.seen = order.attempt, order.node_rank, order.attempt
        place.stopping = 0

    def _end(self, place: Place) -> None:
        place.alive = place.connected = False
        place.runs = 0

    # ── what happens ──

    def happen(self, phrase: str) -> None:
        """One of the phrases below, with `a`, `b`, ... or `controller` in front of it."""
        who, verb = phrase.split()
        if phrase == "controller dies":
            self._resume()
        elif phrase == "controller chokes":
            self.doomed = True
        elif who == "person":
            self.put(StopRequested(by="a person"))
        elif who in self.living():
            getattr(self, verb)(self.places[who])

    def _resume(self) -> None:
        self._take_over(ControllerResumed(existing=tuple(self.living())))

    def living(self) -> list[str]:
        """Nodes whose process exists."""
        return [node for node, place in self.places.items() if place.alive]

    def connects(self, place: Place) -> None:
        """For the first time or again; what was kept is sent."""
        hello = Hello(
            protocol=PROTOCOL,
            node=place.node,
            name=place.node,
            address="h",
            workers=1,
            pid=1,
            attempt=place.seen,
            running=place.runs > 0,
        )
        events = self.bridge.hello(hello, self.now)
        if events is None:
            self._end(place)
            return
        place.connected = True
        self._tell(place, self.bridge.orders_for(place.node))
        self.put(*events)
        self._deliver(place)

    def readies(self, place: Place) -> None:
        """It can start workers."""
        if not place.ready:
            place.ready = True
            self._say(place, NodeReady(node=place.node, store=self._store()))

    def exits(self, place: Place, *, well: bool = False) -> None:
        """Its worker fails."""
        if place.runs:
            progress = Progress(step=10 * place.runs, finished=well)
            attempt, place.runs = place.runs, 0
            exited = WorkerExited(
                node=place.node,
                attempt=attempt,
                rank=place.rank,
                exit_code=0 if well else 1,
                progress=progress,
            )
            self._say(place, exited)

    def finishes(self, place: Place) -> None:
        """Its worker has done all steps."""
        if place.runs:
            self.finished.setdefault(place.runs, set()).add(place.rank)
            self.exits(place, well=True)

    def answers(self, place: Place) -> None:
        """Nothing is left of what it was told to stop; its next store is up."""
        self._stopped(place, self._store())

    def halts(self, place: Place) -> None:
        """Nothing is left of what it was told to stop, but it is not ready for more."""
        if place.stopping:
            place.ready = False
            self._stopped(place, None)

    def _stopped(self, place: Place, store: Store | None) -> None:
        if place.stopping:
            place.runs = 0 if place.runs <= place.stopping else place.runs
            attempt, place.stopping = place.stopping, 0
            self._say(place, WorkersStopped(node=place.node, attempt=attempt, store=store))

    def reports(self, place: Place) -> None:
        """Telemetry: its worker has done steps that are new."""
        if not place.connected:
            return
        reached = [m for m in Milestone if m is not Milestone.FINISHED]
        worker = WorkerReport(
            rank=place.rank,
            pid=1,
            progress=Progress(step=10 * place.runs),
            milestones=dict.fromkeys(reached, 0.0),
        )
        workers = (worker,) if place.runs else ()
        report = Report(node=place.node, attempt=place.runs, workers=workers)
        self.put(*self.bridge.report(report, self.now))

    def blips(self, place: Place) -> None:
        """Its connection breaks; its worker goes on."""
        place.connected = False

    def dies(self, place: Place) -> None:
        """Gone at once, and the engine says so."""
        self._end(place)
        self.put(*self.bridge.died(place.node, "killed", self.now))

    def vanishes(self, place: Place) -> None:
        """It cannot be reached for longer than it may; its worker goes on."""
        if not place.connected:
            self.bridge.expect(place.node, self.now)
        place.connected = False
        self.now += TIMEOUT_S + 1.0
        for other in self.places.values():
            self.reports(other)
        self.put(*self.bridge.tick(self.now))

    def _say(self, place: Place, fact: AgentFact) -> None:
        place.facts.append(fact)
        self._deliver(place)

    def _deliver(self, place: Place) -> None:
        while place.connected and place.told < len(place.facts):
            fact = place.facts[place.told]
            place.told += 1
            self.put(*self.bridge.fact(place.node, fact, self.now))

    def _store(self) -> Store:
        self._ports += 1
        return Store("h", self._ports, True)

    # ── the end ──

    def calm(self) -> None:
        """Nothing goes wrong any more: everybody does what is due, until nothing is."""
        for _ in range(ROUNDS_MAX):
            if self.settled():
                return
            verbs = ["readies", "answers", "reports"]
            verbs += ["finishes"] if self.state.attempt in self.finished else []
            for node in self.living():
                if not self.places[node].connected:
                    self.happen(f"{node} connects")
                for verb in verbs:
                    self.happen(f"{node} {verb}")
            self._let_time_pass()
        raise AssertionError(f"it does not settle: {self.state.phase}, {self.state.why}")

    def _let_time_pass(self) -> None:
        if self.waiting.due is not None:
            self.now = max(self.now, self.waiting.due)
            self.put(None)
        deadline = self.controller.next_deadline()
        idle = not any(p.stopping or not p.ready for p in self.places.values() if p.alive)
        if deadline is not None and idle and not self.state.ended:
            self.now = max(self.now, deadline)
            self.put(DeadlinePassed())

    def settled(self) -> bool:
        """Whether two nodes train together and know it, or nobody does any more."""
        at_work = [place.runs for place in self.places.values() if place.runs]
        if self.state.ended:
            return not at_work
        both = at_work == [self.state.attempt] * 2
        return both and self.state.phase is Phase.RUNNING and not self.state.open_incident
