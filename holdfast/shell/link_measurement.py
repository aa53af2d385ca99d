"""Has nodes that train nothing measure the links between them: each with the next one of a ring.

Of each pair the first connects to the second. Pairs take turns, two or three, so that no node is in
two of them at once, and all pairs of a turn are measured together: for a node it is the same work
whatever the size of the job. Whoever is found to be slow, and a link that could not be opened, is
measured once more, because something else may have been in the way. A node that has got to train
since it was asked is left out, and one that does not answer is not waited for. Pure: sending only
queues.
"""

import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.controller import Phase, State
from holdfast.diagnosis.slow_links import LinkFinding, judge
from holdfast.links import Link, LinkFigures
from holdfast.messages import CheckMachine, MachineChecked

LINK_S = 20.0  # agents give up each of their steps sooner
LINKS_MAX = 64  # that are told

Pair = tuple[str, str]
Done = Callable[[Sequence[Link], LinkFinding], None]


def ring(nodes: Sequence[str]) -> list[Pair]:
    """Each with the next; of two nodes there is one pair."""
    if len(nodes) < 2:
        return []
    pairs = list(itertools.pairwise(nodes))
    return [*pairs, (nodes[-1], nodes[0])] if len(nodes) > 2 else pairs


def turns(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """So that no node is in two pairs of a turn; three at most for those of a ring."""
    found: list[tuple[list[Pair], set[str]]] = []
    for pair in pairs:
        free = next((turn for turn in found if turn[1].isdisjoint(pair)), None)
        if free is None:
            free = ([], set())
            found.append(free)
        free[0].append(pair)
        free[1].update(pair)
    return [turn for turn, _ in found]


@dataclass(slots=True)
class _Ring:
    """One that is measured."""

    addresses: Mapping[str, str]  # node → HOST:PORT
    names: Mapping[str, str]
    done: Done
    pairs: list[Pair]
    turns: list[list[Pair]]
    found: dict[Pair, LinkFigures] = field(default_factory=dict)
    named: Collection[str] | None = None  # the first time

    def links(self) -> list[Link]:
        return [
            Link(node=self.names[a], other=self.names[b], found=self.found.get((a, b)))
            for a, b in self.pairs
        ]


class LinkMeasurement:
    """One ring after the other."""

    def __init__(
        self, state: State, send: Callable[[str, CheckMachine], None], numbers: Iterator[int]
    ) -> None:
        self._state, self._send, self._numbers = state, send, numbers
        self._rings: deque[_Ring] = deque()
        self._asked: dict[int, tuple[Pair, float]] = {}  # by number: who, since when

    def begin(self, addresses: Mapping[str, str], done: Done) -> None:
        """Of these nodes, in this order; `done` hears of the links, and what they say."""
        names = {n: self._state.nodes[n].name for n in addresses if n in self._state.nodes}
        pairs = ring(list(names))
        if pairs:
            self._rings.append(_Ring(addresses, names, done, pairs, turns(pairs)))
        else:
            done((), LinkFinding())

    @property
    def goes_on(self) -> bool:
        """Whether any are measured."""
        return bool(self._rings)

    def answered(self, node: str, answer: MachineChecked) -> None:
        """What a node says to one of our orders."""
        pair, _ = self._asked.get(answer.number, (None, 0.0))
        if pair is None or pair[0] != node:
            return
        del self._asked[answer.number]
        if answer.link is not None:
            self._rings[0].found[pair] = answer.link

    def gone(self, node: str) -> None:
        """Its connection is gone, and its answer with it."""
        self._asked = {n: one for n, one in self._asked.items() if one[0][0] != node}

    def look(self, connected: Collection[str], now: float) -> None:
        """The next turn once all have answered, or had the time to."""
        self._asked = {n: one for n, one in self._asked.items() if now - one[1] < LINK_S}
        if self._asked or not self._rings:
            return
        now_measured = self._rings[0]
        if not now_measured.turns and not self._again(now_measured):
            self._rings.popleft()
            self._tell(now_measured)
            return
        for pair in now_measured.turns.pop(0):
            now_measured.found.pop(pair, None)
            if all(node in connected and self._rests(node) for node in pair):
                number = next(self._numbers)
                self._asked[number] = pair, now
                peer = now_measured.addresses[pair[1]]
                self._send(pair[0], CheckMachine(number=number, peer=peer))

    def _again(self, one: _Ring) -> bool:
        """Whether links are to be measured once more."""
        if one.named is not None:
            return False
        one.named = judge(one.links()).blamed.keys()
        doubted = {pair for pair, found in one.found.items() if found.trouble}
        for pair in one.pairs:
            if any(one.names[node] in one.named for node in pair):
                doubted.add(pair)
        one.turns = turns(pair for pair in one.pairs if pair in doubted)
        return bool(one.turns)

    def _tell(self, one: _Ring) -> None:
        links = one.links()
        finding = judge(links)
        blamed = {name: why for name, why in finding.blamed.items() if name in (one.named or ())}
        links.sort(key=_slowness)
        one.done(links[:LINKS_MAX], finding._replace(blamed=blamed))

    def _rests(self, node: str) -> bool:
        """Whether it trains nothing."""
        state = self._state
        if node not in state.nodes:
            return False
        stopped = state.phase is Phase.RECOVERING and state.stopped
        return stopped or node not in state.ranks.values()


def _slowness(link: Link) -> float:
    if link.found is None:
        return -1.0
    return min(link.found.there_bytes_per_s, link.found.back_bytes_per_s)
