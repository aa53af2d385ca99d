"""Which nodes have fallen silent: the last sign of life of each.

Kept in the order in which they were last heard, so that asking costs only what is found and each
sign of life costs the same, however many nodes there are.
"""


class Liveness:
    """Nodes ordered by their last sign of life. Times are of one clock that never steps back."""

    def __init__(self) -> None:
        self._heard: dict[str, float] = {}  # oldest first

    def heard(self, node: str, now: float) -> None:
        """A sign of life. A first one starts the watch over the node."""
        self._heard.pop(node, None)
        self._heard[node] = now

    def forget(self, node: str) -> None:
        """Watch this node no longer; unknown ones are ignored."""
        self._heard.pop(node, None)

    def forgive(self, now: float) -> None:
        """Nobody listened: what was not heard until now is held against none of those watched."""
        self._heard = dict.fromkeys(self._heard, now)

    def silent(self, now: float, timeout_s: float) -> list[tuple[str, float]]:
        """Nodes silent for at least `timeout_s`, longest first, each with its silence in seconds.

        They stay watched, and are named again, until they are heard or forgotten.
        """
        found = []
        for node, at in self._heard.items():
            if now - at < timeout_s:
                break
            found.append((node, now - at))
        return found

    def next_deadline(self, timeout_s: float) -> float | None:
        """The earliest time at which `silent` can name a node; None if none is watched."""
        oldest = next(iter(self._heard.values()), None)
        return None if oldest is None else oldest + timeout_s
