"""Which nodes have fallen silent, or never came: the last sign of life of each, and deadlines.

Signs of life are passed on in any order, so the oldest is looked for: among those of 12,500 nodes
within a millisecond, a few times a second.

Silence is named long before it is believed. That a node has said nothing for more than a second,
though it was asked, is worth to be known; to give it up for that is not: a process may be paused
for so long, and live.
"""

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

SILENT = "silent"  # the condition of a node that is named
NAMED = 0.3  # of the time after which it is lost: so long somebody has listened to its silence
STILL = 0.5  # of that, and one that was named is not heard well
CALM = 1.0  # of the time after which it is lost: so long a node is heard, to be silent no longer
NAMED_MAX = 64  # at once


class Liveness:
    """Nodes and their last sign of life. Times are of one clock that never steps back."""

    def __init__(self) -> None:
        self._heard: dict[str, float] = {}

    def heard(self, node: str, at: float) -> None:
        """A sign of life. A first one starts the watch over the node."""
        self._heard[node] = at

    def forget(self, node: str) -> None:
        """Watch this node no longer; unknown ones are ignored."""
        self._heard.pop(node, None)

    def forgive(self, now: float, silent_s: float) -> None:
        """Nobody listened for a while: so much of everybody's silence does not count."""
        self._heard = {node: min(now, at + silent_s) for node, at in self._heard.items()}

    def silent(self, now: float, timeout_s: float) -> list[tuple[str, float]]:
        """Nodes silent for at least `timeout_s`, longest first, each with its silence in seconds.

        They stay watched, and are named again, until they are heard or forgotten.
        """
        if now - min(self._heard.values(), default=now) < timeout_s:
            return []
        found = [(node, now - at) for node, at in self._heard.items() if now - at >= timeout_s]
        return sorted(found, key=lambda one: -one[1])

    def next_deadline(self, timeout_s: float) -> float | None:
        """The earliest time at which `silent` can name a node; None if none is watched."""
        oldest = min(self._heard.values(), default=None)
        return None if oldest is None else oldest + timeout_s


class Expected:
    """Nodes that are to say hello, and until when."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def add(self, node: str, until: float) -> None:
        """It has been started, or is to reconnect."""
        self._until[node] = until

    def forget(self, node: str) -> None:
        """It has come, or is given up."""
        self._until.pop(node, None)

    @property
    def awaited(self) -> Collection[str]:
        """All of them."""
        return self._until.keys()

    def late(self, now: float) -> list[str]:
        """Those that have not come in time."""
        return [node for node, until in self._until.items() if now > until]

    def forgive(self, late_s: float) -> None:
        """Nobody listened for so long: they have that much longer."""
        self._until = {node: until + late_s for node, until in self._until.items()}


class SilencesTold(NamedTuple):
    """Whose silence begins to be told, and whose is over."""

    begun: list[str]
    over: list[str]


class Silences:
    """Nodes whose silence is told, and those who may be next. What counts is the time for which
    somebody listened: who was paused, or starved, looks first and judges later. Where more are
    silent than are heard it may be we who hear nobody, and nobody is named."""

    def __init__(self, timeout_s: float) -> None:
        """`timeout_s`: after which a node that is only silent is lost."""
        self._named_s, self._calm_s = NAMED * timeout_s, CALM * timeout_s
        self._since: dict[str, float] = {}  # when each was first seen to be silent
        self._told: dict[str, float] = {}  # and when each was last seen to be still

    def forgive(self) -> None:
        """Nobody listened for a while."""
        self._since.clear()

    def told(self, nodes: Collection[str], now: float) -> None:
        """Their silence was told by a former controller."""
        self._told |= dict.fromkeys(nodes, now)

    def keep(self, nodes: Collection[str]) -> None:
        """All others are lost, and what was told of them with them."""
        for node in [node for node in self._told if node not in nodes]:
            del self._told[node]

    def look(
        self, silent: Mapping[str, float], connected: Collection[str], now: float
    ) -> SilencesTold:
        """`silent` are those of these nodes that were asked, and when each was heard last."""
        before, self._since = self._since, dict.fromkeys(silent, now)
        self._since |= {n: at for n, at in before.items() if silent.get(n, math.inf) <= at}
        quiet_s = {node: now - at for node, at in self._since.items()}
        still = [node for node in self._told if quiet_s.get(node, 0.0) >= STILL * self._named_s]
        self._told |= dict.fromkeys(still, now)
        over = [n for n, at in self._told.items() if n in connected and now - at >= self._calm_s]
        for node in over:
            del self._told[node]
        begun = [node for node, for_s in quiet_s.items() if for_s >= self._named_s]
        if len(begun) > max(1, len(connected) - len(begun)):
            return SilencesTold([], over)
        begun = [node for node in begun if node not in self._told][:NAMED_MAX]
        self._told |= dict.fromkeys(begun, now)
        return SilencesTold(begun, over)
