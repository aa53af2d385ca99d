"""The nodes of a job as their controller knows them: expected, connected, silent, given up, closed.

A node is expected from the moment the engine has started it, or a new controller has taken over;
connected once its agent said hello; and lost when it never comes, gives no sign of life, or its
engine says so. One that was given up, or was let go, is disconnected whatever it does, so that it
can neither be told anything nor hold a copy of the journal. Which facts of a node are heard and
which are durable is known here too: a fact counts once, however often it is sent.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from holdfast.controller import State
from holdfast.events import AnyEvent, NodeReady, NodesMet
from holdfast.messages import (
    PROTOCOL,
    Ack,
    Fact,
    Hello,
    Leave,
    Question,
    Report,
    ToAgent,
    Welcome,
    WorkersStopped,
)
from holdfast.shell.asking import AskedWire, Asking
from holdfast.shell.bridge import Bridge
from holdfast.shell.knocking import Knocking

LOOK_S = 1.0  # between two looks at a node that is not silent
GOODBYE_S = 5.0  # for an agent that was let go to close its connection
PULSES = 4  # signs of life within the time after which a node counts as silent
REPORTS_A_SECOND = 2_500  # of all nodes together, at most; decoding more is felt
REPORT_S = 0.2  # between two of a node, at least
PINGS_A_SECOND = 1_500
PING_S = 4.0
LATE_LOOKS = 4  # one after the other, after which only silence that was listened to counts
AT_ONCE = 0.6  # of the time after which one is silent, the others are too: two signs of life missed
HAND_OVERS_MAX = 6  # in a row without a node that is heard; then it is they who are silent
FIRST_WAIT_S = 10.0  # for the first of them, doubling with each controller that has met none
LATE = 0.375  # of that time: one sign of life is overdue, so it is not known yet what they are


class Wire(AskedWire, Protocol):
    """One connection to an agent. Nothing here waits."""

    def send(self, message: ToAgent | Question) -> None:
        """Queue this, unless the connection is closed."""

    def overdue(self, now: float) -> str:
        """Why it is to be closed because the other end takes nothing; empty if it is not."""

    def close(self, why: str) -> None:
        """Send what is queued, then close; nobody is told of it."""

    def abort(self, why: str) -> None:
        """Close at once; nobody is told of it."""


Receipt = tuple[str, int]  # a node and the number of its fact
Put = Callable[[list[AnyEvent], Receipt | None], None]


@dataclass(slots=True)
class _Node:
    """One node that has been heard of."""

    wire: Wire | None = None
    heard: int = 0  # newest fact handed on
    acked: int = 0  # newest fact that is durable
    heard_at: float = 0.0  # newest sign of life passed on
    dismissed_at: float | None = None


class NodeLives:
    """The life of every node. Facts go to `put`; `changed` hears of each node whose connection has
    come, or has gone."""

    def __init__(
        self,
        state: State,
        timeout_s: float,
        term: int,
        clock: Callable[[], float],
        put: Put,
        changed: Callable[[str], None],
    ) -> None:
        self._state, self._timeout_s, self._term, self._clock = state, timeout_s, term, clock
        self._put, self._changed = put, changed
        self.bridge = Bridge(state, timeout_s, clock(), term)
        self.asking = Asking(state, timeout_s)
        self.knocking = Knocking(state, timeout_s, self._vanished)
        self._nodes: dict[str, _Node] = {}
        self._looked: dict[str, float] = {}  # connected nodes, the longest not looked at first
        self._ever_expected: set[str] = set()
        self._farewell: Leave | None = None
        self._began = clock()  # to listen
        self.met_far = False  # whether a node elsewhere was ever connected
        self._forgave_at, self._late_count = -math.inf, 0

    @property
    def connected(self) -> frozenset[str]:
        """Nodes whose agents are connected now."""
        return frozenset(node for node, known in self._nodes.items() if known.wire is not None)

    # ── what the engine says ──

    def expect(self, node: str, within_s: float) -> None:
        """A node is to connect within this time, or is lost. One that is connected has."""
        self._ever_expected.add(node)
        known = self._nodes.get(node)
        if known is None or known.wire is None:
            self.bridge.expect(node, self._clock() + within_s)
            self.knocking.left(node, self._clock())

    def expect_once(self, node: str, within_s: float) -> None:
        """The same, unless it was expected or heard of before."""
        if node not in self._ever_expected:
            self.expect(node, within_s)

    def died(self, node: str, how: str, *, planned: bool = False) -> None:
        """A node is known to be gone. Facts it sent before have been put already."""
        self._put(self.bridge.died(node, how, self._clock(), planned=planned), None)

    # ── what nodes say ──

    def hello(self, wire: Wire, hello: Hello) -> bool:
        """An agent (re)connected. False: it was given up, or speaks another protocol; the
        connection is to be closed."""
        now, node = self._clock(), hello.node
        events = self.bridge.hello(hello, now) if hello.protocol == PROTOCOL else None
        known = self._nodes.setdefault(node, _Node()) if events is not None else _Node()
        wire.send(self._welcome(known.acked, known=events is not None))
        if events is None:
            return False
        self._put(events, None)
        self.knocking.back(node)
        old, known.wire, known.heard_at, known.dismissed_at = known.wire, wire, now, None
        self._looked[node] = now
        self._ever_expected.add(node)
        if old is not None:
            old.abort("its agent has connected again")
        self._changed(node)
        if self._farewell is not None:
            wire.send(self._farewell)
        return True

    def _welcome(self, acked: int, *, known: bool) -> Welcome:
        nodes = self._state.wanted
        return Welcome(
            protocol=PROTOCOL,
            acked=acked,
            known=known,
            term=self._term,
            pulse_s=self._timeout_s / PULSES,
            report_s=max(REPORT_S, nodes / REPORTS_A_SECOND),
            ping_s=max(PING_S, nodes / PINGS_A_SECOND),
        )

    def fact(self, node: str, fact: Fact) -> None:
        """News of a node, perhaps not for the first time. Raises `msgspec.ValidationError`."""
        _require_fit(node, fact)
        known = self._nodes.get(node)
        if known is None or known.wire is None:
            return
        if fact.seq > known.heard:
            known.heard = fact.seq
            if isinstance(fact.event, NodeReady | WorkersStopped):
                self.knocking.told(node, fact.event.store)
            self._put(self.bridge.fact(node, fact.event, self._clock()), (node, fact.seq))
        elif fact.seq <= known.acked:
            known.wire.send(Ack(seq=fact.seq, term=self._term))

    def report(self, report: Report) -> None:
        """Telemetry."""
        if report.node in self._nodes:
            self._put(self.bridge.report(report, self._clock()), None)

    def closed(self, node: str, wire: Wire) -> None:
        """A connection is gone."""
        known = self._nodes.get(node)
        if known is not None and known.wire is wire:
            self._disconnect(node, known)
            if self._farewell is None and node in self._nodes:
                self.knocking.left(node, self._clock())

    def _disconnect(self, node: str, known: _Node) -> None:
        self._pass_on(node, known)
        known.wire = None
        self._looked.pop(node, None)
        if node in self._state.lost or known.dismissed_at is not None:
            del self._nodes[node]
        self._changed(node)

    # ── silence ──

    def look(self, now: float) -> None:
        """Silent nodes, those that never came, and connections that take nothing.

        A node is looked at every `LOOK_S`, and whenever it would count as silent by what was seen
        then: looking at 12,500 of them each time would be felt.
        """
        due = itertools.takewhile(lambda looked: now - looked[1] >= LOOK_S, self._looked.items())
        silent = self.bridge.silent(now)
        for node in dict.fromkeys([*(node for node, _ in due), *silent]):
            self._look_at(node, now)
        self._put(self.bridge.tick(now), None)
        if self.asking.is_due(now):
            found = self.asking.look(self._wires(), now)
            for node in found.gone:
                silent_s = now - self._nodes[node].heard_at
                self._put(self.bridge.unreachable(node, silent_s, now), None)
            self._put(found.conditions, None)
        self.knocking.look(now, self._wires)

    def _vanished(self, node: str, away_s: float, now: float) -> None:
        if node not in self._state.lost:
            self._put(self.bridge.unreachable(node, away_s, now, left=True), None)

    def _wires(self) -> dict[str, Wire]:
        """Of nodes that are not given up."""
        return {
            node: known.wire
            for node, known in self._nodes.items()
            if known.wire is not None and node not in self._state.lost
        }

    def cut_off(self, near: Callable[[str], bool], now: float) -> bool | None:
        """Whether it is likely that we are cut off from the nodes on other machines: all of them,
        and more than one, have fallen silent at once; or none is heard, and one that was to connect
        does not either, though others could before: to this controller or, where they are members,
        to a former one. None: that shows in a moment, because those that are not silent yet, or may
        yet connect, are overdue, too; or it is too early for that, after controllers that have met
        nobody. After some in a row nobody is cut off: nodes are silent."""
        waits = not self.met_far and self._state.attempt and self._may_be_deaf(near)
        if not self.met_far and any(not near(node) for node in self._nodes):
            self.met_far = True
            if waits:  # only now could the others come, too
                self.bridge.forgive(now, now - self._began, 0.0)
            if self._state.handed_over:  # whoever follows this controller begins to count anew
                self._put([NodesMet()], None)
        overdue = bool(self.bridge.expected.late(now))
        if not self.met_far and self._state.attempt:
            return ((overdue and self._has_waited(now)) or None) if waits else False
        if not (self.met_far and (overdue or self.bridge.silent(now))):
            return False
        far = [(node, known) for node, known in self._nodes.items() if not near(node)]
        for node, known in far:
            self._pass_on(node, known)
        if not overdue and len(far) <= 1:
            return False
        quiet_s = now - max((known.heard_at for _, known in far), default=-math.inf)
        if quiet_s < self._timeout_s * AT_ONCE:
            return None if quiet_s >= self._timeout_s * LATE else False
        return True

    def _may_be_deaf(self, near: Callable[[str], bool]) -> bool:
        """Whether more than one trains on another machine, for all that is known, or the controller
        before was deaf; and not many in a row have found that they are."""
        before = self._state.handed_over
        many = sum(not near(node) for node in self._state.ranks.values()) > 1
        return (many or before > 0) and before < HAND_OVERS_MAX

    def _has_waited(self, now: float) -> bool:
        """For long enough to give the place away where others have before."""
        before = self._state.handed_over
        return not before or now - self._began >= FIRST_WAIT_S * 2 ** (before - 1)

    def _look_at(self, node: str, now: float) -> None:
        known = self._nodes.get(node)
        if known is None or known.wire is None:
            return
        self._looked.pop(node)
        self._looked[node] = now
        self._pass_on(node, known)
        if why := self._stuck(known, known.wire, now):
            known.wire.abort(why)
            self._disconnect(node, known)

    def _pass_on(self, node: str, known: _Node) -> None:
        """The newest sign of life, before it is forgotten with its connection."""
        if known.wire is not None and known.wire.heard_at > known.heard_at:
            known.heard_at = known.wire.heard_at
            self.bridge.heard(node, known.heard_at)

    def _stuck(self, known: _Node, wire: Wire, now: float) -> str:
        if known.dismissed_at is not None and now - known.dismissed_at > GOODBYE_S:
            return "it was released and is still connected"
        if now - known.heard_at > self._timeout_s:
            return f"no message from it for {now - known.heard_at:.1f} s"
        return wire.overdue(now)

    def forgive(self, late_s: float) -> float:
        """We did not listen for `late_s`: nobody is to blame for what was not heard meanwhile. How
        much of all silence does not count.

        Everybody gets the whole time anew; but whoever is starved is late at every look, and would
        never miss anybody, so from some time on only what was listened to counts.
        """
        now = self._clock()
        self._began += late_s
        again = now - late_s - self._forgave_at < self._timeout_s
        self._late_count = self._late_count + 1 if again else 1
        silent_s = late_s + (self._timeout_s if self._late_count <= LATE_LOOKS else 0.0)
        self._forgave_at = now
        for node, known in self._nodes.items():
            self._pass_on(node, known)
        self.bridge.forgive(now, late_s, silent_s)
        self.asking.forgive()
        self.knocking.forgive(late_s)
        for known in self._nodes.values():
            known.heard_at = min(now, known.heard_at + silent_s)
        return silent_s

    # ── what nodes are told ──

    def send(self, node: str, message: ToAgent | Question) -> None:
        """To a node that is not connected nothing: it is told again what holds when it is back."""
        known = self._nodes.get(node)
        if known is None or known.wire is None:
            return
        known.wire.send(message)
        if isinstance(message, Leave):
            known.dismissed_at = self._clock()

    def tell_again(self, node: str) -> None:
        """What holds for a node that has connected, once that may leave."""
        if self._farewell is None:
            for order in self.bridge.orders_for(node):
                self.send(node, order)

    def acknowledge(self, node: str, seq: int) -> None:
        """The facts of a node up to this one are durable."""
        known = self._nodes.get(node)
        if known is not None:
            known.acked = max(seq, known.acked)
            if known.wire is not None:
                known.wire.send(Ack(seq=seq, term=self._term))

    def give_up(self, node: str) -> None:
        """Its connection is closed, after what it was told last; facts it sends are not heard."""
        known = self._nodes.pop(node, None)
        self._looked.pop(node, None)
        self.knocking.forget(node)
        if known is not None and known.wire is not None:
            known.wire.close("this node was replaced")
            self._changed(node)

    def release(self, why: str) -> None:
        """Close every connection; that nothing is heard from now on is held against nobody."""
        for node, known in list(self._nodes.items()):
            if known.wire is not None:
                known.wire.close(why)
                self._disconnect(node, known)
            self.bridge.forget(node)
            self.knocking.back(node)

    def say_farewell(self, leave: Leave) -> None:
        """To everybody, and to whoever connects from now on. How long they take is their engine's
        business."""
        self._farewell = leave
        for known in self._nodes.values():
            if known.wire is not None:
                known.wire.send(leave)


def _require_fit(node: str, fact: Fact) -> None:
    """It is about its sender, and the journal can keep it: JSON has no NaN, which would be null and
    end whoever replays it. Raises `msgspec.ValidationError`."""
    if fact.event.node != node:
        raise msgspec.ValidationError(f"{node} reports about {fact.event.node!r}")
    msgspec.json.decode(msgspec.json.encode(fact.event), type=type(fact.event))
