"""Asks nodes that say nothing, and names those whose machines answer nothing either.

Asking is an empty ping on the connection that is there: a process that lives answers it with a
sign of life, and its machine acknowledges it whatever the process does. Whether it is we who are
cut off is told by nodes on other machines, where there are any. The rule is `detection.answers`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Protocol

from holdfast.detection.answers import Answers, TcpState

LOOKS = 4  # while a node is silent for as long as it takes to be asked


class AskedWire(Protocol):
    """One connection to an agent. Nothing here waits."""

    @property
    def heard_at(self) -> float:
        """When anything last arrived, by the shell's clock."""

    def ask(self) -> None:
        """Send what the other machine has to acknowledge."""

    def tcp_state(self) -> TcpState | None:
        """What our kernel knows of what was sent and answered; None: nothing."""


class Asking:
    """One look after the other at the nodes of a job."""

    def __init__(self, timeout_s: float, nodes_count: int) -> None:
        self._answers = Answers(timeout_s, nodes_count)
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

    def is_due(self, now: float) -> bool:
        """Whether to look: looking at 12,500 nodes each time would be felt."""
        return self.goes_on or now - self._looked_at >= self.after_s / LOOKS

    def look(self, wires: Mapping[str, AskedWire], now: float) -> list[str]:
        """Nodes that are lost."""
        self._looked_at = now
        since = now - self._answers.ask_s
        silent = {node: wire for node, wire in wires.items() if wire.heard_at <= since}
        self._answers.only(silent.keys())
        for node, wire in silent.items():
            if self._answers.is_to_be_asked(node, wire.tcp_state(), now):
                wire.ask()
        if not self._answers.in_doubt:
            return []
        far = [wire for node, wire in wires.items() if not self.near(node)]
        return self._answers.gone((wire.heard_at for wire in far or wires.values()), now)
