"""Has the nodes of a job prepare a version, and says what became of that.

All are asked at once; with a canary one of them before the others, a spare if there is one. The
first node that says it cannot ends it. One that is gone, or has had enough time, is not waited
for: it will start the version without having prepared it. Another image is tried by the engine
before any node is asked. Pure: sending only queues, and times are the caller's.
"""

import itertools
from collections.abc import Callable, Collection

from holdfast.actions import PrepareUpdate
from holdfast.controller import NodeState, State
from holdfast.events import UpdatePrepared
from holdfast.messages import PrepareVersion, VersionPrepared
from holdfast.versions import FIRST

NODE_S = 330.0  # agents give up after 300 s
Tried = Callable[[str, Collection[str], float], None]
"""Why an image cannot be used, empty if it can; who is connected, and when that is."""


class Preparation:
    """One version at a time: a newer order ends the one before."""

    def __init__(
        self, state: State, send: Callable[[str, PrepareVersion], None], put: Callable[..., None]
    ) -> None:
        self._state, self._send, self._put = state, send, put
        self._numbers = itertools.count(1)
        self._order: PrepareUpdate | None = None
        self._number = 0
        self._asked: dict[str, float] = {}  # who has not answered yet, since when
        self._later: list[str] = []  # who is asked once the canary has
        self._ready, self._missing = 0, list[str]()
        self.try_image: Callable[[str, Tried], None] | None = None
        """Starts a container of it, and says what came of that; None: nodes have no image."""

    def begin(self, order: PrepareUpdate, connected: Collection[str], now: float) -> None:
        """Have the engine try an image that is new, then ask every node that trains or waits. One
        that was used before is the way back, which a registry that is away must not close."""
        self._order, self._number = order, next(self._numbers)
        self._asked, self._later, number = {}, [], self._number
        self._ready, self._missing = 0, []
        used = {FIRST.image, *(one.image for one in self._state.updating.used)}
        if order.version.image in used:
            self._begin(order, connected, now)
        elif self.try_image is None:
            self._tell("the nodes of this job have no image")
        else:
            self.try_image(order.version.image, lambda *told: self._tried(order, number, *told))

    def _tried(
        self, order: PrepareUpdate, number: int, why: str, connected: Collection[str], now: float
    ) -> None:
        if number != self._number:
            return  # of an order that a newer one has ended
        if why:
            self._tell(why)
        else:
            self._begin(order, connected, now)

    def _begin(self, order: PrepareUpdate, connected: Collection[str], now: float) -> None:
        state = self._state
        usable = [n for n in state.nodes.values() if n.state is not NodeState.JOINING]
        self._missing = [node.name for node in usable if node.node not in connected]
        members = [node for _, node in sorted(state.ranks.items())]
        asked = [node for node in (*members, *state.spares) if node in connected]
        self._later = asked[:-1] if order.canary else []
        self._ask(asked[-1:] if order.canary else asked, now)

    def _ask(self, nodes: Collection[str], now: float) -> None:
        assert self._order is not None, "begin comes first"
        for node in nodes:
            self._asked[node] = now
            self._send(node, PrepareVersion(number=self._number, version=self._order.version))
        self._tell_if_complete(now)

    def answered(self, node: str, answer: VersionPrepared, now: float) -> None:
        """What a node says."""
        if answer.number != self._number or self._asked.pop(node, None) is None:
            return
        if answer.why:
            self._tell(answer.why, self._name(node))
            return
        self._ready += 1
        self._tell_if_complete(now)

    def gone(self, node: str, now: float) -> None:
        """Its connection is gone, and the answer with it."""
        if node in self._later:
            self._later.remove(node)
            self._missing.append(self._name(node))
        if self._asked.pop(node, None) is not None:
            self._missing.append(self._name(node))
            self._tell_if_complete(now)

    def look(self, now: float) -> None:
        """Who has had enough time is not waited for any longer."""
        for node in [node for node, since in self._asked.items() if now - since >= NODE_S]:
            self.gone(node, now)

    def _name(self, node: str) -> str:
        known = self._state.nodes.get(node)
        return known.name if known is not None else node

    def _tell_if_complete(self, now: float) -> None:
        if self._order is None or self._asked:
            return
        later, self._later = self._later, []
        if later:
            self._ask(later, now)
        else:
            self._tell()

    def _tell(self, why: str = "", name: str = "") -> None:
        assert self._order is not None, "begin comes first"
        version, self._order, self._asked = self._order.version, None, {}
        self._put(
            UpdatePrepared(
                version=version.number,
                ready_count=self._ready,
                why=why,
                node=name,
                missing=tuple(sorted(self._missing)),
            )
        )
