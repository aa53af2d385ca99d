"""Which nodes have fallen silent, or never came: the last sign of life of each, and deadlines.

Signs of life are passed on in any order, so the oldest is looked for: among those of 12,500 nodes
within a millisecond, a few times a second.
"""

from collections.abc import Collection


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
