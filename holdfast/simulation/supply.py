"""The referee of new nodes: where one after the other dies before it is ready, they come slowly."""

YOUNG_S = 90.0  # a node that was ready for no longer may count as one that failed
WITHIN_S = 600.0
DEATHS_MAX = 8  # beyond all nodes of the job, which may die together


class FairSupply:
    """Nodes that died before they were ready, since the last one that was."""

    def __init__(self, wanted: int) -> None:
        self._most = wanted + DEATHS_MAX
        self._deaths: list[float] = []
        self._ready: dict[str, float] = {}  # nodes that live, since when
        self.early = 0  # that failed, in all

    def started(self, node: str, now: float) -> None:
        """It is ready."""
        self._ready[node] = now
        self._deaths.clear()

    def died(self, node: str, now: float) -> str:
        """It is gone."""
        ready_at = self._ready.pop(node, None)
        self.early += ready_at is None or now - ready_at < YOUNG_S
        if ready_at is not None:
            return ""
        self._deaths = [*(at for at in self._deaths if now - at < WITHIN_S), now]
        count = len(self._deaths)
        told = f"{count} nodes in {WITHIN_S:g} s were asked for and died before they were ready"
        return told if count > self._most else ""
