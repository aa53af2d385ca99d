"""Asks nodes that say nothing, and names those whose machines answer nothing either.

Asking is an empty ping on the connection that is there: a process that lives answers it with a
sign of life, and its machine acknowledges it whatever the process does. Whether it is we who are
cut off is told by nodes on other machines, where there are any. The rule is `detection.answers`.

Whoever has said nothing for a second or two is named before it is given up: as a condition of the
node, which is over when it is heard again (`detection.liveness`). Nothing else follows from that.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple, Protocol

from holdfast.controller import State
from holdfast.detection.answers import Answers, TcpState
from holdfast.detection.liveness import SILENT, Silences
from holdfast.events import AnyEvent, HealthChanged, Severity

LOOKS = 4  # while a node is silent for as long as it takes to be asked
ADVICE = "look at its machine and its agent: it is lost if it stays silent"
ACKNOWLEDGES = {
    False: "; its machine acknowledges what is sent to it, so its process does not run",
    True: "; its machine acknowledges nothing",
    None: "",
}


class AskedWire(Protocol):
    """One connection to an agent. Nothing here waits."""

    @property
    def heard_at(self) -> float:
        """When anything last arrived, by the shell's clock."""

    def ask(self) -> None:
        """Send what the other machine has to acknowledge."""

    def tcp_state(self) -> TcpState | None:
        """What our kernel knows of what was sent and answered; None: nothing."""


class Looked(NamedTuple):
    """What a look has found: nodes that are lost, and whose silence begins or ends to be told."""

    gone: list[str]
    conditions: list[AnyEvent]


class Asking:
    """One look after the other at the nodes of a job."""

    def __init__(self, state: State, timeout_s: float) -> None:
        self._state = state
        self._answers = Answers(timeout_s, state.wanted)
        self._silences = Silences(timeout_s)
        self._looked_at = -math.inf
        self.near: Callable[[str], bool] = lambda _node: False  # whether it goes down with us

    @property
    def in_doubt(self) -> bool:
        """Whether to look again soon: somebody has not answered yet."""
        return self._answers.in_doubt

    @property
    def goes_on(self) -> bool:
        """Whether the next look, too, has somebody to look at."""
        return self._answers.asked

    @property
    def after_s(self) -> float:
        """Of silence, before a node is asked."""
        return self._answers.ask_s

    def forgive(self) -> None:
        """We did not listen for a while."""
        self._answers.forgive()
        self._silences.forgive()

    def is_due(self, now: float) -> bool:
        """Whether to look: looking at 12,500 nodes each time would be felt."""
        return self.goes_on or now - self._looked_at >= self.after_s / LOOKS

    def look(self, wires: Mapping[str, AskedWire], now: float) -> Looked:
        """At these connections, of nodes that are not given up."""
        if self._looked_at == -math.inf:
            told = [n for n, known in self._state.health.items() if f"{SILENT} " in known]
            self._silences.told(told, now)
        self._looked_at = now
        since = now - self._answers.ask_s
        silent = {node: wire for node, wire in wires.items() if wire.heard_at <= since}
        self._answers.only(silent.keys())
        for node, wire in silent.items():
            if self._answers.is_to_be_asked(node, wire.tcp_state(), now):
                wire.ask()
        gone = self._gone(wires, now) if self._answers.in_doubt else []
        heard = {n: wire.heard_at for n, wire in silent.items() if n not in gone}
        return Looked(gone, [*self._named(heard, wires.keys(), now)])

    def _gone(self, wires: Mapping[str, AskedWire], now: float) -> list[str]:
        far = [wire for node, wire in wires.items() if not self.near(node)]
        return self._answers.gone((wire.heard_at for wire in far or wires.values()), now)

    def _named(
        self, silent: Mapping[str, float], connected: Collection[str], now: float
    ) -> Iterator[HealthChanged]:
        nodes = self._state.nodes
        self._silences.keep(nodes)
        silent = {node: at for node, at in silent.items() if node in nodes}
        begun, over = self._silences.look(silent, connected, now)
        for node in over:
            yield HealthChanged(node=node, condition=SILENT, severity=Severity.OK)
        for node in begun:
            told = f"no heartbeat for {now - silent[node]:.1f} s"
            told += ACKNOWLEDGES[self._answers.waits_for(node)]
            yield HealthChanged(
                node=node, condition=SILENT, severity=Severity.WARN, detail=told, advice=ADVICE
            )
