"""Asks some nodes how they were when an incident began, and makes one fact of what they say.

While an attempt is stopped because of an incident its nodes are asked: in a small job all of them,
in a large one those of the ranks that had failed by then and a sample; and the node of the rank
that the verdict blames, if it was not among them. They try to reach each other as well. Whoever
does not answer in time is named. Pure: sending only queues, and times are the caller's.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from holdfast.controller import IncidentRecord, State
from holdfast.controller.incidents import node_of
from holdfast.events import Diagnosed, EvidenceTaken
from holdfast.evidence import NodeEvidence, RankEvidence
from holdfast.messages import EvidenceReply, TakeEvidence
from holdfast.shell.reachability import Reachability

NODES_MAX = 8
FAILED_MAX = 4  # of these; the others are a sample
NODE_S = 6.0
TOLD_BYTES = 24 * 1024  # of one incident, in the journal and in the record
FEW_LINES = 4  # of the output of a rank that had not failed

RankStacks = Mapping[int, tuple[str, ...]]
NO_STACKS: RankStacks = MappingProxyType({})


class EvidenceCollection:
    """One incident at a time: the next one begins anew."""

    def __init__(
        self,
        state: State,
        send: Callable[[str, TakeEvidence], None],
        put: Callable[..., None],
        reachability: Reachability,
    ) -> None:
        self._state, self._send, self._put = state, send, put
        self._reachability = reachability
        self._now = 0.0
        self._incident: IncidentRecord | None = None
        self._asked: dict[str, float] = {}  # who has not answered yet, and since when
        self._known: dict[str, None] = {}  # who was asked about this incident
        self._found: list[NodeEvidence] = []
        self._missing: list[str] = []
        self._stacks: dict[tuple[str, int], tuple[str, ...]] = {}  # by node and rank, not told yet

    def begin(self, connected: Collection[str], now: float, stacks: RankStacks = NO_STACKS) -> None:
        """The attempt is being stopped; without an incident somebody has asked for that. `stacks`
        are those of a hang, by rank."""
        incident = self._state.open_incident
        if incident is None or (self._incident is not None and self._incident.id == incident.id):
            return
        self._now = now
        self._tell()
        self._reachability.begin()
        self._incident, self._known = incident, {}
        hang = stacks if incident.cause == "hang" else NO_STACKS
        self._stacks = {(node_of(self._state, rank), rank): told for rank, told in hang.items()}
        self._ask(chosen(self._state, incident), connected, now)

    def diagnosed(
        self, verdicts: Iterable[Diagnosed], connected: Collection[str], now: float
    ) -> None:
        """The rank that is to blame may be another one."""
        ranks = [verdict.rank for verdict in verdicts if verdict.rank is not None]
        nodes = [self._state.ranks.get(rank // self._state.workers_per_node) for rank in ranks]
        if self._incident is not None:
            self._ask([node for node in nodes if node is not None], connected, now)

    def _ask(self, nodes: Iterable[str], connected: Collection[str], now: float) -> None:
        assert self._incident is not None
        since_s = max(0.0, now - self._incident.started_at)
        self._now, asked = now, list(nodes)
        order = TakeEvidence(
            number=self._incident.id, attempt=self._incident.attempt, since_s=since_s
        )
        for node in asked:
            if node in self._known:
                continue
            self._known[node] = None
            if node in connected:
                self._asked[node] = now
                peers = self._reachability.peers(node, [*self._known, *asked])
                self._send(node, msgspec.structs.replace(order, peers=peers))
            else:
                self._missing.append(node)

    def answered(self, node: str, answer: EvidenceReply) -> None:
        """What a node says."""
        incident = self._incident
        if incident is not None and answer.number == incident.id and node in self._asked:
            del self._asked[node]
            self._found.append(answer.found)
            self._reachability.heard(self._name(node), answer.reached)
            self._tell_if_complete()

    def gone(self, node: str) -> None:
        """Its connection is gone, and the answer with it."""
        if self._asked.pop(node, None) is not None:
            self._missing.append(node)
            self._tell_if_complete()

    def look(self, now: float) -> None:
        """Who has had enough time is not waited for any longer."""
        self._now = now
        self._reachability.look(now)
        late = [node for node, since in self._asked.items() if now - since >= NODE_S]
        for node in late:
            self.gone(node)

    def _tell_if_complete(self) -> None:
        if not self._asked:
            self._tell()

    def _tell(self) -> None:
        """What there is so far, of the incident that it is about."""
        if self._incident is not None and (self._found or self._stacks):
            names = tuple(sorted(self._name(node) for node in {*self._missing, *self._asked}))
            found = fitting(with_stacks(self._found, self._stacks), self._incident.rank)
            network = self._reachability.told(self._incident.attempt, self._now)
            self._put(
                EvidenceTaken(
                    incident=self._incident.id, found=found, missing=names, network=network
                )
            )
        self._found, self._missing, self._asked, self._stacks = [], [], {}, {}

    def _name(self, node: str) -> str:
        known = self._state.nodes.get(node)
        return known.name if known is not None else node


def chosen(state: State, incident: IncidentRecord) -> list[str]:
    """Nodes to ask, those first that matter most."""
    members = [node for _, node in sorted(state.ranks.items())]
    if len(members) <= NODES_MAX:
        return members
    deaths = sorted(state.deaths, key=lambda death: death.at)
    failed = [death.exited.rank for death in deaths]
    ranks = [incident.rank, *failed] if incident.rank is not None else failed
    nodes = [state.ranks.get(rank // state.workers_per_node) for rank in ranks]
    first = [node for node in dict.fromkeys(nodes) if node is not None][:FAILED_MAX]
    sample = [members[i * len(members) // NODES_MAX] for i in range(NODES_MAX)]
    return list(dict.fromkeys([*first, *sample]))[:NODES_MAX]


def fitting(
    found: Sequence[NodeEvidence], blamed: int | None, limit: int = TOLD_BYTES
) -> tuple[NodeEvidence, ...]:
    """As much as an incident may keep: the nodes with failed ranks first, of the ranks that had not
    failed a few lines, and in the end fewer nodes."""
    order = sorted(
        found,
        key=lambda node: (not _has(node, blamed), not _stood(node), not _failed(node), node.node),
    )
    told = [
        msgspec.structs.replace(node, ranks=tuple(_shortened(r, blamed) for r in node.ranks))
        for node in order
    ]
    while len(told) > 1 and len(msgspec.msgpack.encode(told)) > limit:
        told.pop()
    while told and _stood(told[0]) and len(msgspec.msgpack.encode(told)) > limit:
        told[0] = _with_one_line_less(told[0])
    return tuple(told)


def with_stacks(
    found: Sequence[NodeEvidence], stacks: Mapping[tuple[str, int], tuple[str, ...]]
) -> list[NodeEvidence]:
    """What nodes tell, with these stacks by the name of the node and the rank, also where the node
    tells nothing of the rank, or nothing at all."""
    told = {node.node: node for node in found}
    for (name, rank), lines in stacks.items():
        node = told.get(name) or NodeEvidence(node=name, kernel_unread="no answer from this node")
        one = next((one for one in node.ranks if one.rank == rank), RankEvidence(rank=rank))
        ranks = [other for other in node.ranks if other.rank != rank]
        stood = msgspec.structs.replace(one, stacks=lines)
        told[name] = msgspec.structs.replace(node, ranks=(stood, *ranks))
    return list(told.values())


def _with_one_line_less(node: NodeEvidence) -> NodeEvidence:
    longest = max(node.ranks, key=lambda one: len(one.stacks))
    fewer = msgspec.structs.replace(longest, stacks=longest.stacks[:-1])
    ranks = tuple(fewer if one is longest else one for one in node.ranks)
    return msgspec.structs.replace(node, ranks=ranks)


def _has(node: NodeEvidence, rank: int | None) -> bool:
    return any(one.rank == rank for one in node.ranks)


def _stood(node: NodeEvidence) -> bool:
    return any(one.stacks for one in node.ranks)


def _failed(node: NodeEvidence) -> bool:
    return any(one.ended or one.native_stack for one in node.ranks)


def _shortened(one: RankEvidence, blamed: int | None) -> RankEvidence:
    if one.rank == blamed or one.ended:
        return one
    return msgspec.structs.replace(one, output=one.output[-FEW_LINES:])
