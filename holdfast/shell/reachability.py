"""Who of some nodes can reach whom: whom each is to try, and what follows from what they say.

Every node keeps a rendezvous store open for the next attempt, or hosts that of this one; that is
where the others try to connect. Those that are asked about an incident try each other, so that what
one cannot reach is known of the rest as well. So do all members whose workers stand still, which is
told at once, before anything follows from that. A node that is to blame gets a condition, an alert:
a network may be back in a moment, and in another attempt within minutes it is a fault. One that
only sends nothing while most do is warned of, for it may have nothing to send.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from holdfast.controller import State
from holdfast.diagnosis.reachability import ReachFinding, judge
from holdfast.events import HealthChanged, Severity
from holdfast.evidence import PeerAddress, PeerReach
from holdfast.shell.knocking import store_of

PEERS_MAX = 8
RING = 2  # peers that each node tries where all are asked
CONDITION = "unreachable"
STANDS_S = 180.0
ADVICE = "check the network of its machine: links, routes, firewall, network policies"
SENDS_NOTHING = "network-silent"
OVER = {
    CONDITION: "it is no longer reported as unreachable",
    SENDS_NOTHING: "it has not been seen to send nothing again",
}
MAY_BE_IDLE = "check the network of its machine, unless its ranks have nothing to send"


class Reachability:
    """Of one incident at a time, and of looks at attempts that stand still."""

    def __init__(self, state: State, put: Callable[..., None]) -> None:
        self._state, self._put = state, put
        self._looks: dict[str, tuple[PeerReach, ...]] = {}  # by name
        self._told: dict[tuple[str, str], float] = {}  # nodes with conditions, and when seen last
        self._alerted: dict[str, int] = {}  # in which attempt each node was to blame last

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

    def told(self, attempt: int, now: float) -> tuple[str, ...]:
        """What follows, for people; whoever is to blame gets the condition."""
        finding, self._looks = judge(self._looks), {}
        if finding is None:
            return ()
        self._blame(finding, attempt, now)
        return finding.lines

    def seen(
        self, parted: ReachFinding | None, quiet: Mapping[str, str], attempt: int, now: float
    ) -> None:
        """Of an attempt that stands still: who cannot be reached, and who sends nothing, by name,
        with what is to be told of it."""
        if parted is not None:
            self._blame(parted, attempt, now)
        for node, line in self._named(quiet):
            if (node, SENDS_NOTHING) not in self._told:
                self._tell(node, SENDS_NOTHING, Severity.WARN, line)
            self._told[node, SENDS_NOTHING] = now

    def _blame(self, finding: ReachFinding, attempt: int, now: float) -> None:
        """Once in an attempt: what stands on is no second alert."""
        for node, line in self._named(finding.blamed):
            if self._alerted.get(node) != attempt:
                self._tell(node, CONDITION, Severity.ALERT, line)
            self._told[node, CONDITION], self._alerted[node] = now, attempt

    def _named(self, lines: Mapping[str, str]) -> list[tuple[str, str]]:
        nodes = self._state.nodes.values()
        return [(one.node, lines[one.name]) for one in nodes if one.name in lines]

    def look(self, now: float) -> None:
        """A condition that nobody has seen again is over."""
        for node, condition in [key for key, at in self._told.items() if now - at >= STANDS_S]:
            del self._told[node, condition]
            self._tell(node, condition, Severity.OK, OVER[condition])

    def _tell(self, node: str, condition: str, severity: Severity, detail: str) -> None:
        advice = ADVICE if condition == CONDITION else MAY_BE_IDLE
        self._put(
            HealthChanged(
                node=node, condition=condition, severity=severity, detail=detail, advice=advice
            )
        )
