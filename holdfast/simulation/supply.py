"""The referee of new nodes: where one after the other dies before it is ready, they come slowly.

A few of them are a reason to give up; not while an image is prepared that others would have.
"""

from holdfast.actions import Entry, KeepVersion, PrepareUpdate, StartAttempt
from holdfast.events import ControllerResumed, NodeLeft
from holdfast.versions import FIRST

YOUNG_S = 90.0  # a node that was ready for no longer may count as one that failed
WITHIN_S = 600.0
ENOUGH = 3  # that fail are a reason to give up
DEATHS_MAX = 8  # beyond all nodes of the job, which may die together


class FairSupply:
    """Nodes that died before they were ready, since the last one that was."""

    def __init__(self, wanted: int) -> None:
        self._most = wanted + DEATHS_MAX
        self._deaths: list[float] = []
        self._ready: dict[str, float] = {}  # nodes that live, since when
        self._early: set[str] = set()  # that failed
        self._version, self._prepares = FIRST, False

    def useless(self, others: int) -> bool:
        """Whether it is in vain to ask for more, where so many others failed."""
        return len(self._early) + others >= ENOUGH and not self._prepares

    def started(self, node: str, now: float) -> None:
        """It is ready."""
        self._ready[node] = now
        self._deaths.clear()

    def journaled(self, entry: Entry) -> None:
        """Some say so themselves, before they are gone."""
        match entry.event:
            case NodeLeft(node=node, failed=failed) if failed and node not in self._ready:
                self._early.add(node)
            case ControllerResumed():  # repeats what is still to be prepared
                self._prepares = False
        for action in entry.actions:
            match action:
                case PrepareUpdate(version=version):
                    self._prepares = version.only_image_of(self._version)
                case KeepVersion(version=version) | StartAttempt(version=version):
                    self._version, self._prepares = version, False

    def died(self, node: str, now: float) -> str:
        """It is gone."""
        ready_at = self._ready.pop(node, None)
        if ready_at is None or now - ready_at < YOUNG_S:
            self._early.add(node)
        if ready_at is not None:
            return ""
        self._deaths = [*(at for at in self._deaths if now - at < WITHIN_S), now]
        count = len(self._deaths)
        told = f"{count} nodes in {WITHIN_S:g} s were asked for and died before they were ready"
        return told if count > self._most else ""
