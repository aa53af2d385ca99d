"""From facts to orders that may be carried out: decided, durable, held elsewhere, in that order.

Facts that wait together are decided together, journaled and made durable, and copied where the disk
may vanish; only then are they acknowledged, and their orders may leave. `advance` and `decide` do
one such thing each, so whoever drives them may be interrupted, or die, between any two.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from holdfast.actions import AnyAction, Entry
from holdfast.controller import Controller, State
from holdfast.events import AnyEvent, DeadlinePassed
from holdfast.journal import JournalFullError
from holdfast.shell.ages import aged
from holdfast.shell.exits import Exits
from holdfast.shell.nodes import Receipt
from holdfast.shell.replicas import Replicas

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


@dataclass(slots=True)
class _Batch:
    """Facts that were decided together, and what follows from them."""

    receipts: dict[str, int] = field(default_factory=dict)  # newest fact heard, by node
    replies: list[Callable[[], None]] = field(default_factory=list)
    durable: bool = False  # on the disk
    held: bool = False  # and where it outlives this controller


class _Waiting(NamedTuple):
    """Facts that were handed over together, and when."""

    at: float
    events: Sequence[AnyEvent]
    receipt: Receipt | None


class Decisions:
    """Facts in, orders out. `orders` may be carried out while nothing is `pending`.

    `acknowledge` is told up to which fact those of a node are held, `disk_full` that the journal
    cannot be written, or can be once more. `observe` hears of each entry as it is decided,
    `explain` may add to a fact what we know of it, and `wall_ahead_s` says how far the wall clock
    is ahead of ours.
    """

    def __init__(
        self,
        controller: Controller,
        book: Book,
        replicas: Replicas | None,
        acknowledge: Callable[[str, int], None],
        disk_full: Callable[[bool], None],
        clock: Callable[[], float],
    ) -> None:
        self._controller, self._book = controller, book
        self._replicas, self._clock = replicas, clock
        self._acknowledge, self._disk_full = acknowledge, disk_full
        self.orders: deque[AnyAction] = deque()
        self.observe: Callable[[Entry, State], None] = lambda _entry, _state: None
        self.explain: Callable[[AnyEvent], AnyEvent] = lambda event: event
        self.wall_ahead_s: Callable[[], float | None] = lambda: None
        self._facts: deque[_Waiting] = deque()
        self._replies: list[Callable[[], None]] = []  # to be given once all facts so far are held
        self._exits: Exits[Receipt] = Exits(self._state)
        self._batch = _Batch(durable=True, held=True)
        self._retry_at: float | None = None  # when the full disk is tried again

    @property
    def _state(self) -> State:
        return self._controller.state

    # ── facts ──

    def put(self, events: Sequence[AnyEvent], receipt: Receipt | None = None) -> bool:
        """Facts to be decided; whether there are any."""
        if events or receipt is not None:
            self._facts.append(_Waiting(self._clock(), events, receipt))
            return True
        return False

    def put_first(self, event: AnyEvent) -> None:
        """A fact to be decided before all that wait."""
        self._facts.appendleft(_Waiting(self._clock(), (event,), None))

    def then(self, reply: Callable[[], None]) -> None:
        """Call this once everything that was put until now is held."""
        self._replies.append(reply)

    def reply_now(self) -> None:
        """Nothing more is decided: nobody is to wait for that."""
        replies, self._replies = self._replies, []
        for reply in replies:
            reply()

    def look(self, connected: Collection[str], now: float) -> None:
        """Time has passed: some replicas may be slow."""
        if self._replicas is not None and self._batch.durable and not self._batch.held:
            self._replicas.look(connected, now)

    def put_what_is_due(self, now: float) -> bool:
        """A deadline, and exits that waited to be told together; whether there are any."""
        before = len(self._facts)
        deadline = self._controller.next_deadline()
        if deadline is not None and now >= deadline and self.idle:
            self._facts.append(_Waiting(now, (DeadlinePassed(),), None))
        if self._exits.due is not None and now >= self._exits.due and self.idle:
            self._facts.append(_Waiting(now, (), None))
        return len(self._facts) > before

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be decided or done."""
        return not (self._facts or self._replies or self.orders) and self._batch.held

    @property
    def pending(self) -> bool:
        """Whether something was decided that is not durable and held yet."""
        return not self._batch.held

    def next_deadline(self) -> float | None:
        """When there is something to do even if nothing is heard."""
        if not self.idle:
            return self._retry_at
        found = (self._controller.next_deadline(), self._exits.due)
        return min((at for at in found if at is not None), default=None)

    # ── what follows ──

    def decide(self) -> bool:
        """What waits; False if nothing does."""
        if not (self._facts or self._replies):
            return False
        batch, before = _Batch(), self._book.seq
        self._batch = batch
        for _ in range(min(BATCH, len(self._facts))):
            put_at, events, receipt = self._facts.popleft()
            last, waited_s = len(events) - 1, self._clock() - put_at
            for place, event in enumerate(events or (None,)):
                known = aged(self.explain(event), waited_s) if event is not None else None
                self._hear(known, receipt if place >= last else None)
        batch.receipts = dict(self._exits.settled())
        if not self._facts:
            batch.replies, self._replies = self._replies, []
        if self._book.seq == before:  # all that was written is held already
            batch.durable = True
            self._settle()
        return True

    def _hear(self, event: AnyEvent | None, receipt: Receipt | None) -> None:
        now = max(self._clock(), self._state.now)
        for told in self._exits.hear(event, receipt, now):
            self._handle(told)

    def _handle(self, event: AnyEvent) -> None:
        at = max(self._clock(), self._state.now)
        actions = self._controller.handle(event, at)
        chosen = self._controller.choices
        ahead_s = self.wall_ahead_s()
        entry = Entry(self._book.seq + 1, at, event, tuple(actions), chosen, ahead_s)
        self._book.append(entry)
        self.orders.extend(actions)
        self.observe(entry, self._state)

    def decide_last(self, event: AnyEvent) -> None:
        """Nothing follows from this, and nobody is there to hold a copy."""
        self._handle(event)
        with contextlib.suppress(JournalFullError):
            self._book.sync()

    def advance(self, connected: Collection[str]) -> bool:
        """What was decided becomes durable, then held; False if it has to wait."""
        if not self._batch.durable:
            return self._make_durable(connected)
        if self._replicas is not None and not self._replicas.held(connected):
            return False
        self._settle()
        self._book.save(self._state)
        return True

    def _make_durable(self, connected: Collection[str]) -> bool:
        """No order takes effect while the disk is full; workers train on meanwhile."""
        now = self._clock()
        if self._retry_at is not None and now < self._retry_at:
            return False
        try:
            self._book.sync()
        except JournalFullError:
            self._retry_at = now + FULL_DISK_RETRY_S
            self._disk_full(True)
            return False
        if self._retry_at is not None:
            self._retry_at = None
            self._disk_full(False)
        self._batch.durable = True
        if self._replicas is not None:
            self._replicas.copy(connected, now)
        return True

    def _settle(self) -> None:
        self._batch.held = True
        for node, seq in self._batch.receipts.items():
            self._acknowledge(node, seq)
        self._batch.receipts.clear()
        for reply in self._batch.replies:
            reply()
        self._batch.replies.clear()

    def hold_again(self, connected: Collection[str]) -> bool:
        """Somebody has connected: where nobody was, nobody holds a copy, and one is made before an
        order reaches whoever has come. Whether it was held already."""
        if self._replicas is None or self._replicas.held(connected):
            return True
        self._batch.held = False
        self._replicas.copy(connected, self._clock())
        return False
