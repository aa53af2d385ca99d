"""The shell around one controller: from what nodes say to what they are told, without waiting.

Facts wait in a queue; those that wait together are decided together, journaled and made durable,
copied where the disk may vanish, and only then acknowledged and carried out, one order after the
other. `step` does one such thing, so whoever hosts the shell may be interrupted, or die, between
any two. The life of each node is that of `Nodes`.

Nothing here waits for a node: sending only queues, silence and connections that take nothing are
found by `look`, and everything a node may be waited for has a bound. There is no clock, no task and
no socket in it, so the simulation runs it as it is.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, assert_never

import msgspec

from holdfast.actions import AnyAction, AskNodes, EndJob, Entry, Fence, Outcome, Survey
from holdfast.controller import Controller, State
from holdfast.events import (
    AnyEvent,
    ControllerResumed,
    DeadlinePassed,
    JobSubmitted,
    StopRequested,
)
from holdfast.journal import JournalFullError
from holdfast.messages import (
    Answer,
    ApiSeen,
    AskStatus,
    Done,
    Fact,
    Hello,
    Kept,
    Leave,
    Report,
    StatusReply,
    StopJob,
    ToClient,
)
from holdfast.shell.exits import Exits
from holdfast.shell.nodes import Nodes, Receipt, Wire
from holdfast.shell.replicas import Lines, Replicas

BATCH = 1_000  # facts decided together at most
FULL_DISK_RETRY_S = 1.0


class Book(Protocol):
    """The journal."""

    seq: int

    def append(self, entry: Entry) -> None:
        """Decided, not durable yet."""

    def sync(self) -> None:
        """Make everything appended durable. Raises `JournalFullError`."""

    def save(self, state: State) -> None:
        """Keep the state, so that the next replay is short."""


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
    reconnect_s: float  # for the nodes of a former controller to find this one
    term: int  # greater than that of every controller before


@dataclass(slots=True)
class _Batch:
    """Facts that were decided together, and what follows from them."""

    orders: deque[AnyAction] = field(default_factory=deque)
    receipts: dict[str, int] = field(default_factory=dict)  # newest fact heard, by node
    durable: bool = False  # on the disk
    held: bool = False  # and where it outlives this controller


class Shell:
    """One life of a controller. `step` until it says False, after anything was heard.

    `outcome` is set once the job has ended, `replaced_by` once a newer controller is known of;
    after either nothing is decided any more, nor while `paused` says why. `doubt` is asked the same
    before each thing that is done: this process may have stood still since it was last told.
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
        self._controller, self._book, self._engine = controller, book, engine
        self._settings, self._clock = settings, clock
        self.nodes = Nodes(
            self.state, settings.timeout_s, settings.term, clock, self._heard, self._changed
        )
        self._replicas = self._copies(lines) if lines is not None else None
        self._untold: dict[str, None] = {}  # nodes that have connected and do not know what holds
        self._somebody_came = False  # since copies of the journal were last seen to be held
        self._facts: deque[tuple[Sequence[AnyEvent], Receipt | None]] = deque()
        self._exits: Exits[Receipt] = Exits(self.state)
        self._begun = False
        self._batch = _Batch(durable=True, held=True)
        self._removing: object = None  # a node that is, until the engine says that it is done
        self._retry_at: float | None = None  # when the full disk is tried again
        self.observe: Callable[[Entry, State], None] = lambda _entry, _state: None
        self.catch_up: Callable[[], None] = lambda: None  # reads the reports that wait
        self.wake: Callable[[], None] = lambda: None  # there may be something to do
        self.explain: Callable[[AnyEvent], AnyEvent] = lambda event: event  # adds what we know
        self.on_api_seen: Callable[[str, ApiSeen], None] = lambda _node, _answer: None
        self.paused = ""
        self.doubt: Callable[[], str] = lambda: ""
        self.replaced_by = 0
        self.outcome: Outcome | None = None

    def _copies(self, lines: Lines) -> Replicas:
        def ranked() -> list[str]:
            members = [node for _, node in sorted(self.state.ranks.items())]
            return list(dict.fromkeys([*members, *self.state.spares]))

        term, near, send = self._settings.term, self._engine.near, self.nodes.send
        return Replicas(lines, term, ranked, near, send)

    # ── what is heard ──

    def begin(self, first: JobSubmitted | ControllerResumed, existing: Iterable[str] = ()) -> None:
        """Take over the nodes that exist, and hear the first fact: one that exists and never comes
        is named, whoever was the controller when it fell silent. What was heard before follows."""
        self._expect(existing)
        told = msgspec.structs.replace(first, term=self._settings.term)
        self._facts.appendleft(((told,), None))
        self._begun = True
        self.wake()

    def expect_again(self) -> None:
        """Nobody could connect for a while: every node is to connect anew."""
        self._expect(self.state.nodes)

    def _expect(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self.nodes.expect(node, self._settings.reconnect_s)

    def put(self, *events: AnyEvent) -> None:
        """Facts for the controller."""
        self._heard(events, None)

    def _heard(self, events: Sequence[AnyEvent], receipt: Receipt | None) -> None:
        if events or receipt is not None:
            self._facts.append((events, receipt))
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
            case _:
                pass  # of a journal that was asked for before this controller began

    def client(self, message: StopJob | AskStatus) -> ToClient:
        """A request of the command line."""
        match message:
            case StopJob():
                self.put(StopRequested(by=message.by, now=message.now))
                return Done()
            case AskStatus():
                return StatusReply(status=self._engine.status())
            case _:
                assert_never(message)

    def _changed(self, node: str) -> None:
        if self._replicas is not None:
            self._replicas.gone(node)  # what it holds is asked anew on each connection
        self._engine.connections_changed()

    # ── time ──

    def look(self) -> None:
        """Silence, and time that has passed: a few times a second, and at `next_deadline`."""
        now = self._clock()
        self.nodes.look(now)
        if self._replicas is not None and self._batch.durable and not self._batch.held:
            self._replicas.look(self.nodes.connected, now)
        deadline = self._controller.next_deadline()
        if deadline is not None and now >= deadline and self._idle:
            self.put(DeadlinePassed())
        if self._exits.due is not None and now >= self._exits.due and self._idle:
            self._facts.append(((), None))  # exits that waited to be told together
            self.wake()

    def forgive(self, late_s: float) -> None:
        """We did not listen for `late_s`: nobody is to blame for what was not heard meanwhile."""
        self.nodes.forgive(late_s)

    def next_deadline(self) -> float | None:
        """When `look` and `step` have something to do even if nothing is heard, silence apart."""
        if self._rests:
            return None
        if not self._idle:
            return self._retry_at
        found = (self._controller.next_deadline(), self._exits.due)
        return min((at for at in found if at is not None), default=None)

    @property
    def _rests(self) -> bool:
        """Whether nothing is decided, whatever waits."""
        over = self.replaced_by or self.outcome is not None
        return bool(not self._begun or self.paused or self.doubt() or over)

    @property
    def _idle(self) -> bool:
        """Whether nothing waits to be decided or done."""
        return not (self._facts or self._batch.orders or self._removing) and self._batch.held

    # ── decisions ──

    def step(self) -> bool:
        """Do one thing that is due; False if there is nothing, or it has to wait."""
        if self._rests or self._removing:
            return False
        if not self._batch.durable:
            return self._make_durable()
        if not self._batch.held:
            return self._take_effect()
        if self._somebody_came and not self._is_held_still():
            return True
        if self._batch.orders:
            self._carry_out(self._batch.orders.popleft())
            return True
        self._tell_again()
        if self._facts:
            self._decide()
            return True
        return False

    def _is_held_still(self) -> bool:
        """Where nobody was connected nobody holds a copy: before an order reaches whoever has come
        since, one is made."""
        self._somebody_came = False
        connected = self.nodes.connected
        if self._replicas is None or self._replicas.held(connected):
            return True
        self._batch.held = False
        self._replicas.copy(connected, self._clock())
        return False

    def _tell_again(self) -> None:
        """Nodes that have connected hear what holds, which is like an order."""
        untold, self._untold = self._untold, {}
        for node in untold:
            self.nodes.tell_again(node)

    def _decide(self) -> None:
        batch, before = _Batch(), self._book.seq
        self._batch = batch
        for _ in range(min(BATCH, len(self._facts))):
            events, receipt = self._facts.popleft()
            last = len(events) - 1
            for place, event in enumerate(events or (None,)):
                known = self.explain(event) if event is not None else None
                self._hear(known, receipt if place >= last else None, batch)
        batch.receipts = dict(self._exits.settled())
        if self._book.seq == before:  # all that was written is held already
            batch.durable = True
            self._acknowledge()

    def _hear(self, event: AnyEvent | None, receipt: Receipt | None, batch: _Batch) -> None:
        now = max(self._clock(), self.state.now)
        for told in self._exits.hear(event, receipt, now):
            batch.orders.extend(self._handle(told))

    def _handle(self, event: AnyEvent) -> Sequence[AnyAction]:
        at = max(self._clock(), self.state.now)
        actions = self._controller.handle(event, at)
        entry = Entry(seq=self._book.seq + 1, at=at, event=event, actions=tuple(actions))
        self._book.append(entry)
        self.observe(entry, self.state)
        return actions

    def _make_durable(self) -> bool:
        """No order takes effect while the disk is full; workers train on meanwhile."""
        now = self._clock()
        if self._retry_at is not None and now < self._retry_at:
            return False
        try:
            self._book.sync()
        except JournalFullError:
            self._retry_at = now + FULL_DISK_RETRY_S
            self._engine.disk_full(True)
            return False
        if self._retry_at is not None:
            self._retry_at = None
            self._engine.disk_full(False)
        self._batch.durable = True
        if self._replicas is not None:
            self._replicas.copy(self.nodes.connected, now)
        return True

    def _take_effect(self) -> bool:
        """What was decided is held where it outlives this controller: senders may forget it."""
        if self._replicas is not None and not self._replicas.held(self.nodes.connected):
            return False
        self._acknowledge()
        self._book.save(self.state)
        return True

    def _acknowledge(self) -> None:
        self._batch.held = True
        for node, seq in self._batch.receipts.items():
            self.nodes.acknowledge(node, seq)
        self._batch.receipts.clear()

    def _carry_out(self, action: AnyAction) -> None:
        if isinstance(action, Survey):
            self.catch_up()
        messages, events = self.nodes.bridge.carry_out(action, self._clock())
        for node, message in messages:
            self.nodes.send(node, message)
        match action:
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
            case _:
                pass
        self.put(*events)

    def _remove(self, order: Fence, events: Sequence[AnyEvent]) -> None:
        """What follows from a fence is heard once nothing of the node acts any more."""
        removing = self._removing = object()

        def done(found: Sequence[AnyEvent]) -> None:
            if self._removing is removing:
                self._removing = None
                self.put(*found, *events)
                self.wake()

        self._engine.remove(order, done)
