"""Nodes that have left their connection and do not come back: whether anything of them is there.

An agent that lives connects again within a second. Where its process, its machine or the way to it
is gone, nothing answers at its rendezvous store either; the kernel of a machine whose processes are
only stopped answers. So whoever stays away is knocked at, and is lost once no knock was answered
for as long as a link that is switched over may swallow them: sooner than silence alone is believed.
Whether it is we who are cut off, or a firewall that swallows knocks, is told by connected nodes,
on other machines where there are any, that are knocked at beside: they have to answer, and be no
fewer than those that stay away. All times are shares of the time after which a node that is only
silent is lost.
"""

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from holdfast.controller import State
from holdfast.detection.answers import DARK
from holdfast.events import Store

AWAY = 0.1  # before it is knocked at
WITHIN = 0.1  # for an answer
LOOK = 0.05  # between two looks at who is away
MOST = 8  # nodes that are knocked at together

Answered = Callable[[Sequence[bool], float], None]
Knock = Callable[[Sequence[Store], float, Answered], None]


def store_of(state: State, node: str) -> Store | None:
    """Where the rendezvous store of a node listens: that for the next attempt, or of this one."""
    known, start = state.nodes.get(node), state.start
    if known is None or known.store is not None:
        return known.store if known is not None else None
    return start.store if start is not None and known.node_rank == 0 else None


@dataclass(slots=True)
class _Away:
    """One node that is not connected."""

    since: float
    dark_since: float | None = None  # the first knock of those that were not answered


class Knocking:
    """One round after the other. `knock` tries all these within so many seconds, then tells at
    which of them something answered, and the time; `gone` hears of each node that is lost, for how
    long it was away, and the time."""

    def __init__(
        self, state: State, timeout_s: float, gone: Callable[[str, float, float], None]
    ) -> None:
        self._state, self._timeout_s, self._gone = state, timeout_s, gone
        self._away: dict[str, _Away] = {}
        self._told: dict[str, Store | None] = {}
        self._looked_at = -math.inf
        self._round = 0
        self._knocks = False
        self.near: Callable[[str], bool] = lambda _node: False  # whether it goes down with us
        self.knock: Knock = lambda _stores, _within_s, _answered: None  # nothing is known

    def told(self, node: str, store: Store | None) -> None:
        """Where its newest store listens, if it has one. The state follows once the attempt has
        stopped everywhere, which a node that is away delays."""
        self._told[node] = store

    def left(self, node: str, now: float) -> None:
        """It was connected, or is expected."""
        self._away.setdefault(node, _Away(now))

    def back(self, node: str) -> None:
        """It is connected, or is not waited for any more."""
        self._away.pop(node, None)

    def forget(self, node: str) -> None:
        """It was given up."""
        self.back(node)
        self._told.pop(node, None)

    def forgive(self, late_s: float) -> None:
        """Nobody listened for so long: a round that is under way says nothing."""
        self._abandon()
        for away in self._away.values():
            away.since, away.dark_since = away.since + late_s, None

    def _abandon(self) -> None:
        self._round += 1
        self._knocks = False

    def look(self, now: float, connected: Callable[[], Collection[str]]) -> None:
        """Knock where it is due. `connected`: nodes of which we hear."""
        if self._knocks or not self._away or now - self._looked_at < LOOK * self._timeout_s:
            return
        self._looked_at, after_s = now, AWAY * self._timeout_s
        due = [node for node, away in self._away.items() if now - away.since >= after_s]
        asked = dict(itertools.islice(self._doors(due), MOST))
        if not asked:
            return
        found = connected()
        others = [node for node in found if not self.near(node)] or found
        if len(others) < len(due):
            return
        beside = [door for _, door in itertools.islice(self._doors(others), len(asked))]
        if len(beside) == len(asked):
            self._begin(asked, beside, now)

    def _begin(self, asked: Mapping[str, Store], beside: Sequence[Store], began: float) -> None:
        self._knocks, number = True, self._round

        def answered(answers: Sequence[bool], now: float) -> None:
            if number == self._round:
                self._abandon()
                if all(answers[len(asked) :]):
                    self._judge(dict(zip(asked, answers, strict=False)), began, now)

        self.knock([*asked.values(), *beside], WITHIN * self._timeout_s, answered)

    def _doors(self, nodes: Iterable[str]) -> Iterator[tuple[str, Store]]:
        found = ((node, self.door(node)) for node in nodes)
        return ((node, store) for node, store in found if store is not None)

    def door(self, node: str) -> Store | None:
        """Where to knock at a node."""
        known = node in self._told and node in self._state.nodes
        return self._told[node] if known else store_of(self._state, node)

    def _judge(self, asked: Mapping[str, bool], began: float, now: float) -> None:
        for node, answers in asked.items():
            if (away := self._away.get(node)) is None:
                continue
            if answers:
                away.dark_since = None
                self._away[node] = self._away.pop(node)  # others have their turn
                continue
            if away.dark_since is None:
                away.dark_since = began
            if now - away.dark_since >= DARK * self._timeout_s:
                del self._away[node]
                self._gone(node, now - away.since, now)
