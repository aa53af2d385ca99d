"""Who of some nodes can reach whom: whom each is to try, and what follows from what they say.

Every node keeps a rendezvous store open for the next attempt, or hosts that of this one; that is
where the others try to connect. Those that are asked about an incident try each other, so that what
one cannot reach is known of the rest as well. A node that is to blame gets a condition, an alert: a
network may be back in a moment, and the second time within minutes it is a fault.
"""

from collections.abc import Callable, Iterable, Sequence

from holdfast.controller import State
from holdfast.diagnosis.reachability import judge
from holdfast.events import HealthChanged, Severity
from holdfast.evidence import PeerAddress, PeerReach
from holdfast.shell.knocking import store_of

PEERS_MAX = 8
RING = 2  # peers that each node tries where all are asked
CONDITION = "unreachable"
STANDS_S = 180.0
ADVICE = "check the network of its machine: links, routes, firewall, network policies"


class Reachability:
    """Of one incident at a time."""

    def __init__(self, state: State, put: Callable[..., None]) -> None:
        self._state, self._put = state, put
        self._looks: dict[str, tuple[PeerReach, ...]] = {}  # by name
        self._told: dict[str, float] = {}  # which nodes have the condition, since when

    def begin(self) -> None:
        """Another incident."""
        self._looks = {}

    def peers(self, node: str, asked: Sequence[str]) -> tuple[PeerAddress, ...]:
        """Whom this node is to try: those that are asked too, then others."""
        members = [one for _, one in sorted(self._state.ranks.items())]
        place = members.index(node) if node in members else 0
        others = dict.fromkeys([*asked, *members[place + 1 :], *members[:place]])
        found = (self._address(one) for one in others if one != node)
        return tuple(one for one in found if one is not None)[:PEERS_MAX]

    def ring(self, members: Sequence[str]) -> dict[str, tuple[PeerAddress, ...]]:
        """Whom each of these is to try where all are asked: those that come after it."""
        known = {node: self._address(node) for node in members}
        rows = {node: [*members[n + 1 : n + 3], *members[:2]] for n, node in enumerate(members)}
        found = {
            node: tuple(filter(None, (known[one] for one in dict.fromkeys(row) if one != node)))
            for node, row in rows.items()
        }
        return {node: peers[:RING] for node, peers in found.items()}

    def _address(self, node: str) -> PeerAddress | None:
        known, store = self._state.nodes.get(node), store_of(self._state, node)
        if known is None or store is None:
            return None
        return PeerAddress(node=known.name, host=store.host, port=store.port)

    def heard(self, name: str, reached: Iterable[PeerReach]) -> None:
        """What a node says."""
        self._looks[name] = tuple(reached)

    def told(self, now: float) -> tuple[str, ...]:
        """What follows, for people; whoever is to blame gets the condition."""
        finding, self._looks = judge(self._looks), {}
        if finding is None:
            return ()
        for node in self._state.nodes.values():
            if (line := finding.blamed.get(node.name)) is not None:
                self._told[node.node] = now
                self._tell(node.node, Severity.ALERT, line)
        return finding.lines

    def look(self, now: float) -> None:
        """A condition that nobody has seen again is over."""
        for node in [n for n, at in self._told.items() if now - at >= STANDS_S]:
            del self._told[node]
            self._tell(node, Severity.OK, "it is no longer reported as unreachable")

    def _tell(self, node: str, severity: Severity, detail: str) -> None:
        self._put(
            HealthChanged(
                node=node, condition=CONDITION, severity=severity, detail=detail, advice=ADVICE
            )
        )
