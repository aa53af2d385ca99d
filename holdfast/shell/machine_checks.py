"""Has nodes of a job check their machines: spares because somebody asks, and whom the controller
names.

What they have computed is compared with what others have, in this round or before: a machine that
errs in the same way each time passes by itself. A spare may have waited for weeks. One that fails
is told as unfit, so it is replaced before it is needed; one that has got a rank meanwhile keeps it.
Where somebody asks, or an attempt has ended and nobody knows why, the links between those that have
passed are measured then: a member whose network is slow has failed as well. Of a spare that is
shown, and nothing follows: no other machine could tell by itself whether it is right. Pure: sending
only queues, and times are the caller's.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from holdfast.actions import CheckNodes
from holdfast.controller import State
from holdfast.diagnosis.compared_results import outvoted
from holdfast.diagnosis.slow_links import LinkFinding
from holdfast.events import EvidenceTaken, NodesChecked, NodeUnfit
from holdfast.links import Link, LinkReport
from holdfast.messages import CheckMachine, ChecksReply, MachineChecked, RepeatStep
from holdfast.shell.link_measurement import LinkMeasurement
from holdfast.shell.repetitions import Repetitions

EVERYTHING: Mapping[str, str] = {}
NODE_S = 330.0  # agents give up their checks after 300 s

Reply = Callable[[ChecksReply], None]


class CheckRound(NamedTuple):
    """Nodes that were asked together."""

    done: Callable[["CheckRound"], None]
    asked: dict[str, float]  # who has not answered yet, since when
    found: dict[str, str]  # what the others have said
    missing: list[str]
    addresses: dict[str, str] | None = None  # of those that may measure links; None: nobody does
    network: LinkReport = LinkReport()


class MachineChecks:
    """Rounds by their numbers; whoever asks for the spares while these are asked hears the same."""

    def __init__(
        self,
        state: State,
        send: Callable[[str, CheckMachine | RepeatStep], None],
        put: Callable[..., None],
        reconnect_s: float,
    ) -> None:
        self._state, self._send, self._put = state, send, put
        self.repetitions = Repetitions(state, send, put, reconnect_s)
        self._numbers = itertools.count(1)
        self.links = LinkMeasurement(state, send, self._numbers)
        self._rounds: dict[int, CheckRound] = {}
        self._replies: list[Reply] = []
        self._names: dict[str, str] = {}
        self._computed: dict[str, dict[str, str]] = {}  # the newest digests of each node

    def ask(self, connected: Collection[str], now: float, reply: Reply) -> None:
        """What the machines of the spares are like."""
        self._replies.append(reply)
        if len(self._replies) == 1:
            nodes = self._state.nodes
            self._names = {node: nodes[node].name for node in self._state.spares}
            self._begin(self._names, connected, now, self._reply, links=True)

    def obey(self, order: CheckNodes, connected: Collection[str], now: float) -> None:
        """What these are like is a fact for the controller, once all have answered."""
        if order.repeat is not None:
            self.repetitions.obey(order, connected, now)
            return
        train = self._state.ranks.values() if order.beside else ()
        only = dict.fromkeys(train, order.beside)
        tell, links = partial(self._tell, order.attempt), bool(order.attempt)
        self._begin(order.nodes, connected, now, tell, only, links=links)

    def _begin(
        self,
        nodes: Iterable[str],
        connected: Collection[str],
        now: float,
        done: Callable[[CheckRound], None],
        only: Mapping[str, str] = EVERYTHING,
        *,
        links: bool = False,
    ) -> None:
        number = next(self._numbers)
        there = {node: now for node in nodes if node in connected}
        absent = [node for node in nodes if node not in there]
        self._rounds[number] = CheckRound(done, there, {}, absent, {} if links else None)
        for node in there:
            self._send(node, CheckMachine(number=number, only=only.get(node, "")))
        self._end(number)

    def answered(self, node: str, answer: MachineChecked) -> None:
        """What a node says."""
        asked = self._rounds.get(answer.number)
        if asked is None:
            self.links.answered(node, answer)
        if asked is None or asked.asked.pop(node, None) is None:
            return
        if asked.addresses is not None and answer.address:
            asked.addresses[node] = answer.address
        asked.found[node] = answer.why
        self._computed[node] = {**self._computed.get(node, {}), **answer.digests}
        if answer.why:
            self._failed(asked, node, answer.why)
        self._end(answer.number)

    def _failed(self, asked: CheckRound, node: str, why: str) -> None:
        asked.found[node] = why
        if asked.done == self._reply:
            self._put(NodeUnfit(node=node, why=why))

    def gone(self, node: str) -> None:
        """Its connection is gone, and the answers with it."""
        self.repetitions.gone(node)
        self.links.gone(node)
        self._without(node)

    def _without(self, node: str) -> None:
        for number, asked in list(self._rounds.items()):
            if asked.asked.pop(node, None) is not None:
                asked.missing.append(node)
                self._end(number)

    def look(self, connected: Collection[str], now: float) -> None:
        """Who has had enough time is not waited for any longer."""
        self.repetitions.look(now, connected)
        self.links.look(connected, now)
        late = {
            node
            for asked in self._rounds.values()
            for node, since in asked.asked.items()
            if now - since >= NODE_S
        }
        for node in sorted(late):
            self._without(node)

    def _end(self, number: int) -> None:
        if self._rounds[number].asked:
            return
        over = self._rounds.pop(number)
        known = {node: all_ for node, all_ in self._computed.items() if node in self._state.nodes}
        self._computed = known
        for node, why in outvoted(known).items():
            if not over.found.get(node, "not asked"):
                self._failed(over, node, why)
        if over.addresses is None:
            over.done(over)
            return
        ranks = {node: rank for rank, node in self._state.ranks.items()}
        sound = sorted(
            (node for node in over.addresses if not over.found[node]),
            key=lambda node: (ranks.get(node, len(ranks)), node),
        )
        addresses = {node: over.addresses[node] for node in sound}
        self.links.begin(addresses, partial(self._measured, over))

    def _measured(self, over: CheckRound, links: Sequence[Link], found: LinkFinding) -> None:
        report = LinkReport(links=tuple(links), lines=found.lines, slow=dict(found.blamed))
        over.done(over._replace(network=report))

    def _reply(self, over: CheckRound) -> None:
        replies, self._replies = self._replies, []
        found = {self._names[node]: why for node, why in over.found.items()}
        missing = tuple(sorted(self._names[node] for node in over.missing))
        for reply in replies:
            reply(ChecksReply(found=found, missing=missing, network=over.network))

    def _tell(self, attempt: int, over: CheckRound) -> None:
        missing, incident = tuple(sorted(over.missing)), self._state.open_incident
        nodes, found = self._state.nodes, dict(over.found)
        for node in [node for node in found if node in nodes and not found[node]]:
            why = over.network.slow.get(nodes[node].name, "")
            found[node] = f"network: {why}" if why else ""
        if over.network.lines and incident is not None:
            lines = over.network.lines
            self._put(EvidenceTaken(incident=incident.id, found=(), network=lines))
        self._put(NodesChecked(found=found, missing=missing, attempt=attempt))
