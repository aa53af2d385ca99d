"""The shell around one controller: from what nodes say to what they are told, without waiting.

What is heard becomes facts, which `Decisions` turns into orders that may leave; these are carried
out here, one after the other. `step` does one thing, so whoever hosts the shell may be interrupted,
or die, between any two. The life of each node is that of `NodeLives`.

Nothing here waits for a node: sending only queues, silence and connections that take nothing are
found by `look`, and everything a node may be waited for has a bound. There is no clock, no task and
no socket in it, so the simulation runs it as it is.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, assert_never

import msgspec

from holdfast.actions import (
    AnyAction,
    AskNodes,
    CheckNodes,
    CollectEvidence,
    Diagnose,
    EndJob,
    Fence,
    Outcome,
    PrepareUpdate,
    ProfileSteps,
    StartAttempt,
    StopAttempt,
    Survey,
)
from holdfast.compiled_code import CompiledHere
from holdfast.controller import Controller
from holdfast.events import (
    AnyEvent,
    Beginning,
    Diagnosed,
    HandedOver,
    ScaleRequested,
    StopRequested,
    UpdateRequested,
)
from holdfast.messages import (
    Answer,
    ApiSeen,
    AskChecks,
    AskCode,
    AskReplay,
    AskStacks,
    AskStatus,
    CodePart,
    Done,
    EntryTimes,
    EvidenceReply,
    Fact,
    FromClient,
    GroupOpened,
    Hello,
    Kept,
    Leave,
    MachineChecked,
    Report,
    ScaleJob,
    Stacks,
    StatusReply,
    StepRepeated,
    StopJob,
    ToClient,
    UpdateJob,
    VersionPrepared,
)
from holdfast.profiles import AskProfile, ProfileTaken, TracePart
from holdfast.shell.ages import aged
from holdfast.shell.compiled_offers import CompiledOffers
from holdfast.shell.decisions import Book, Decisions
from holdfast.shell.evidence_collection import EvidenceCollection
from holdfast.shell.hang_detection import HangDetection
from holdfast.shell.machine_checks import MachineChecks
from holdfast.shell.nodes import NodeLives, Receipt, Wire
from holdfast.shell.preparation import Preparation
from holdfast.shell.profile_collection import ProfileCollection
from holdfast.shell.reachability import Reachability
from holdfast.shell.replicas import Lines, Replicas
from holdfast.shell.straggler_sampling import StragglerSampling


class Engine(Protocol):
    """What supplies nodes. Its effects come back as facts; none of these calls waits."""

    def make(self, order: AskNodes, /) -> None:
        """So many more nodes."""

    def remove(self, order: Fence, done: Callable[[Sequence[AnyEvent]], None]) -> None:
        """See that nothing of this node acts any more; `done`, with what came to light, once the
        next order need not wait for that."""

    def leave(self, order: EndJob) -> Leave:
        """What agents are told at the end of the job."""

    def near(self, node: str, /) -> bool:
        """Whether the node would go down with this controller's machine."""

    def connections_changed(self) -> None:
        """A node has connected, or its connection is gone."""

    def disk_full(self, full: bool) -> None:
        """The journal cannot be written, or can be once more."""

    def status(self) -> bytes:
        """`JobStatus` as JSON."""


class Settings(NamedTuple):
    """Of one controller."""

    timeout_s: float  # after which a node that gives no sign of life is lost
    reconnect_s: float  # for the nodes of a former controller to find this one, at least
    term: int  # greater than that of every controller before

    @property
    def connects_within_s(self) -> float:
        """Who may be silent for longer may be for as long before it connects anew."""
        return max(self.reconnect_s, self.timeout_s)


class Shell:
    """One life of a controller. `step` until it says False, after anything was heard.

    `outcome` is set once the job has ended, `replaced_by` (its term) once a newer controller is
    known of, and `cut_off` once all nodes on other machines fell silent at once, if `can_hand_over`
    holds: another controller may reach them. After each nothing is decided any more, nor while
    `paused` says why. `doubt` is asked the same before each thing that is done: this process may
    have stood still since it was last told.
    """

    def __init__(
        self,
        controller: Controller,
        book: Book,
        engine: Engine,
        settings: Settings,
        clock: Callable[[], float],
        lines: Lines | None = None,
    ) -> None:
        self.state = controller.state
        self._engine, self._settings, self._clock = engine, settings, clock
        self.nodes = NodeLives(
            self.state, settings.timeout_s, settings.term, clock, self._heard, self._changed
        )
        self.nodes.asking.near = self.nodes.knocking.near = engine.near
        self._replicas = self._copies(lines) if lines is not None else None
        self.decisions = Decisions(
            controller, book, self._replicas, self.nodes.acknowledge, engine.disk_full, clock
        )
        progress = self.nodes.bridge.progress
        reachability = Reachability(self.state, self.put)
        self.hangs = HangDetection(self.state, progress, self.nodes.send, self.put, reachability)
        self.stragglers = StragglerSampling(self.state, progress, self.nodes.send, self.put)
        self.evidence = EvidenceCollection(self.state, self.nodes.send, self.put, reachability)
        self.checks = MachineChecks(
            self.state, self.nodes.send, self.put, settings.connects_within_s
        )
        self.preparation = Preparation(self.state, self.nodes.send, self.put)
        self.compiled = CompiledOffers(self.state, self.nodes.send)
        self.profiles = ProfileCollection(
            self.state, progress, self.nodes.send, self.put, self.stragglers.lateness
        )
        self._untold: dict[str, None] = {}  # nodes that have connected and do not know what holds
        self._somebody_came = False  # since copies of the journal were last seen to be held
        self._begun = False
        self._removing: object = None  # a node that is, until the engine says that it is done
        self.catch_up: Callable[[], None] = lambda: None  # reads the reports that wait
        self.wake: Callable[[], None] = lambda: None  # there may be something to do
        self.on_api_seen: Callable[[str, ApiSeen], None] = lambda _node, _answer: None
        self.code_part: Callable[[AskCode], CodePart] = _no_code  # where nodes share no folder
        self.paused = ""
        self.doubt: Callable[[], str] = lambda: ""
        self.can_hand_over: Callable[[], bool] = lambda: False  # to a controller elsewhere
        self.replaced_by, self.cut_off = 0, False
        self.outcome: Outcome | None = None

    def _copies(self, lines: Lines) -> Replicas:
        def ranked() -> list[str]:
            members = [node for _, node in sorted(self.state.ranks.items())]
            return list(dict.fromkeys([*members, *self.state.spares]))

        term, near, send = self._settings.term, self._engine.near, self.nodes.send
        return Replicas(lines, term, ranked, near, send)

    # ── what is heard ──

    def begin(self, first: Beginning, existing: Iterable[str] = ()) -> None:
        """Take over the nodes that exist, and hear the first fact: one that exists and never comes
        is named, whoever was the controller when it fell silent. What was heard before follows."""
        self._expect(existing)
        self.decisions.put_first(msgspec.structs.replace(first, term=self._settings.term))
        self._begun = True
        self.wake()

    def expect_again(self) -> None:
        """Nobody could connect for a while: every node is to connect anew."""
        self._expect(self.state.nodes)

    def _expect(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self.nodes.expect(node, self._settings.connects_within_s)

    def put(self, *events: AnyEvent) -> None:
        """Facts for the controller."""
        self._heard(events, None)

    def _heard(self, events: Sequence[AnyEvent], receipt: Receipt | None) -> None:
        if self.decisions.put(events, receipt):
            self.wake()

    def hello(self, wire: Wire, hello: Hello) -> bool:
        """An agent (re)connected. False: the connection is to be closed."""
        if hello.obeyed > self._settings.term:
            self.replaced_by = max(self.replaced_by, hello.obeyed)
            return False
        if not self.nodes.hello(wire, hello):
            return False
        self._untold[hello.node], self._somebody_came = None, True
        self.wake()
        return True

    def fact(self, node: str, fact: Fact) -> None:
        """News of a node, perhaps not for the first time. Raises `msgspec.ValidationError`."""
        self.nodes.fact(node, fact)

    def report(self, report: Report) -> None:
        """Telemetry."""
        self.nodes.report(report)
        self.hangs.observe(report, self._clock())
        self.profiles.observe(report, self._clock())

    def closed(self, node: str, wire: Wire) -> None:
        """A connection is gone that nobody here has closed."""
        self.nodes.closed(node, wire)

    def answered(self, node: str, answer: Answer) -> None:
        """What a node says to what it was asked."""
        match answer:
            case Kept():
                if self._replicas is not None and not self._replicas.answered(node, answer):
                    self.replaced_by = max(self.replaced_by, answer.term)
            case ApiSeen():
                self.on_api_seen(node, answer)
            case Stacks():
                self.hangs.answered(node, answer, self._clock())
            case EntryTimes():
                self.stragglers.answered(node, answer, self._clock())
            case EvidenceReply():
                self.evidence.answered(node, answer)
            case MachineChecked():
                self.checks.answered(node, answer)
            case GroupOpened() | StepRepeated():
                self.checks.repetitions.answered(node, answer, self._clock())
            case AskCode():
                self.nodes.send(node, self.code_part(answer))
            case CompiledHere():
                self.compiled.heard(node, answer)
            case VersionPrepared():
                self.preparation.answered(node, answer, self._clock())
            case ProfileTaken() | TracePart():
                self.profiles.answered(node, answer)
            case _:
                pass  # of a journal that was asked for before this controller began

    def client(self, message: FromClient, reply: Callable[[ToClient], None]) -> None:
        """A request of the command line; an order is answered once it cannot be lost."""
        match message:
            case StopJob():
                self._wish(StopRequested(by=message.by, now=message.now), reply)
            case ScaleJob():
                self._wish(ScaleRequested(by=message.by, nodes=message.nodes), reply)
            case UpdateJob():
                self._wish(_update(message), reply)
            case AskStatus():
                reply(StatusReply(status=self._engine.status()))
            case AskStacks():
                native, rank, now = message.native, message.rank, self._clock()
                self.hangs.ask(self.nodes.connected, now, reply, native=native, rank=rank)
            case AskChecks():
                self.checks.ask(self.nodes.connected, self._clock(), reply)
            case AskReplay():
                self.checks.repetitions.ask(message.wish, reply)
            case AskProfile():
                self.profiles.ask(message.wish, self.nodes.connected, self._clock(), reply)
            case _:
                assert_never(message)

    def _wish(self, wish: AnyEvent, reply: Callable[[ToClient], None]) -> None:
        self.put(wish)
        self.decisions.then(lambda: reply(Done()))
        if self.outcome is not None:
            self.decisions.reply_now()

    def _changed(self, node: str) -> None:
        if self._replicas is not None:
            self._replicas.gone(node)  # what it holds is asked anew on each connection
        self.hangs.gone(node, self._clock())
        self.stragglers.gone(node, self._clock())
        self.evidence.gone(node)
        self.checks.gone(node)
        self.preparation.gone(node, self._clock())
        self.compiled.gone(node)
        self.profiles.gone(node)
        self._engine.connections_changed()

    # ── time ──

    def look(self) -> None:
        """Silence, and time that has passed: a few times a second, and at `next_deadline`."""
        if self.cut_off:
            return
        now = self._clock()
        cut_off = self.can_hand_over() and self.nodes.cut_off(self._engine.near, now)
        if cut_off:
            self._hand_over()
            return
        if cut_off is not None:
            self.nodes.look(now)
        self.decisions.look(self.nodes.connected, now)
        self.hangs.look(now, self.catch_up)
        if self.profiles.under_way:
            self.stragglers.pause(now)
        else:
            self.stragglers.look(self.nodes.connected, now)
        self.evidence.look(now)
        self.checks.look(self.nodes.connected, now)
        self.preparation.look(now)
        self.profiles.look(now)
        if not self._removing and self.decisions.put_what_is_due(now):
            self.wake()

    def _hand_over(self) -> None:
        """The next controller has to know of this one: they may all be deaf."""
        if not self.state.ended:
            self.decisions.decide_last(HandedOver())
        self.cut_off = True

    def forgive(self, late_s: float) -> None:
        """We did not listen for `late_s`: nobody is to blame for what was not heard meanwhile."""
        silent_s = self.nodes.forgive(late_s)
        self.hangs.forgive(self._clock(), silent_s)

    def next_deadline(self) -> float | None:
        """When `look` and `step` have something to do even if nothing is heard, silence apart."""
        if self._rests or self._removing:
            return None
        return self.decisions.next_deadline()

    @property
    def _rests(self) -> bool:
        """Whether nothing is decided, whatever waits."""
        return bool(not self._begun or self.paused or self.doubt() or self.is_over)

    @property
    def is_over(self) -> bool:
        """Whether this controller decides nothing any more."""
        return bool(self.outcome is not None or self.replaced_by or self.cut_off)

    # ── orders ──

    def step(self) -> bool:
        """Do one thing that is due; False if there is nothing, or it has to wait."""
        if self._rests or self._removing:
            return False
        decisions = self.decisions
        if decisions.pending:
            return decisions.advance(self.nodes.connected)
        if self._somebody_came:
            self._somebody_came = False
            if not decisions.hold_again(self.nodes.connected):
                return True
        if decisions.orders:
            self._carry_out(decisions.orders.popleft())
            return True
        self._tell_again()
        return decisions.decide()

    def _tell_again(self) -> None:
        """Nodes that have connected hear what holds, which is like an order."""
        untold, self._untold = self._untold, {}
        for node in untold:
            self.nodes.tell_again(node)

    def _carry_out(self, action: AnyAction) -> None:
        if isinstance(action, Survey):
            self.catch_up()
        messages, events = self.nodes.bridge.carry_out(action, self._clock())
        for node, message in messages:
            self.nodes.send(node, message)
        match action:
            case StartAttempt():
                self.hangs.begin(action.attempt, self._clock())
                self.stragglers.begin(action.attempt, self._clock())
            case CollectEvidence():
                self.hangs.collect(action, self.nodes.connected, self._clock())
            case StopAttempt():
                self.evidence.begin(self.nodes.connected, self._clock(), self.hangs.stacks)
            case Diagnose():
                verdicts = [event for event in events if isinstance(event, Diagnosed)]
                self.evidence.diagnosed(verdicts, self.nodes.connected, self._clock())
            case PrepareUpdate():
                self.preparation.begin(action, self.nodes.connected, self._clock())
            case CheckNodes():
                self.checks.obey(action, self.nodes.connected, self._clock())
            case ProfileSteps():
                self.profiles.obey(action, self.nodes.connected, self._clock())
            case AskNodes():
                self._engine.make(action)
            case Fence():
                self.nodes.give_up(action.node)
                self._remove(action, events)
                return
            case EndJob():
                leave = self._engine.leave(action)
                self.nodes.say_farewell(msgspec.structs.replace(leave, term=self._settings.term))
                self.outcome = action.outcome
                self.decisions.reply_now()  # there is nothing left to stop
            case _:
                pass
        self.put(*events)

    def _remove(self, order: Fence, events: Sequence[AnyEvent]) -> None:
        """What follows from a fence is heard once nothing of the node acts any more."""
        removing, began = object(), self._clock()
        self._removing = removing

        def done(found: Sequence[AnyEvent]) -> None:
            if self._removing is removing:
                self._removing, took_s = None, self._clock() - began
                self.put(*found, *(aged(event, took_s) for event in events))
                self.wake()

        self._engine.remove(order, done)


def _no_code(asked: AskCode) -> CodePart:
    return CodePart(code=asked.code, why="its controller has no bundles of code")


def _update(message: UpdateJob) -> UpdateRequested:
    return UpdateRequested(
        by=message.by,
        id=message.id,
        code=message.code,
        args=message.args,
        sets=message.sets,
        when=message.when,
        canary=message.canary,
        image=message.image,
        back=message.back,
    )
