"""Whose machine answers nothing: found sooner than silence alone is believed.

A node that says nothing is dead, cut off, or only paused: stopped, swapping, starved. A machine
whose process is paused still acknowledges what arrives, because its kernel does that. So who is
silent is asked, and our kernel tells whether theirs has answered: `TcpState`. A machine that has
answered none of several transmissions over some time is gone, or cannot be reached, unless it is we
who are cut off: others elsewhere have to be heard meanwhile, no fewer than answer nothing.

What counts is the time between the first and the newest transmission that were not answered, and
not the silence: a link that is switched over may swallow everything for more than a second, and
what was lost in it is sent again at growing distances. All times are shares of the time after which
a node that is only silent is lost, so that whoever makes that longer makes these longer.

In a small job a node is asked between two of its own signs of life already, so that the time that
proves something begins with the darkness; in a larger one only when such a sign is overdue, because
asking all of them all the time would be felt.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

ASK = 0.02  # after so much silence a node is asked
ASK_OVERDUE = 0.05  # the same where signs of life come sooner by themselves
FEW_ASKS_A_SECOND = 500  # of all nodes together: below that, silence is not waited for
ASK_LAST = 0.275  # the same in the largest job: by then a sign of life has come unasked
ASKS_A_SECOND = 1_500  # of all nodes together, about
DARK = 0.27  # so long nothing that was sent has been answered
OTHERS = 0.25  # so much later than a node was asked others are heard
TRIES = 3  # times that our kernel has sent the same again after a timeout
ANSWER_S = 0.1  # for an answer to the newest of them
ROUND_TRIPS = 3.0  # the same, where the way is long


class TcpState(NamedTuple):
    """What our kernel knows of a connection. Times are of the caller's clock."""

    waits: bool  # something that was sent is not acknowledged
    tries: int  # how often it was sent again after a timeout
    sent_at: float  # the newest, such repetitions included
    answered_at: float  # when anything came from their kernel, acknowledgements included
    round_trip_s: float


class Answers:
    """Which nodes are silent and were asked, and what became of that."""

    def __init__(self, timeout_s: float, nodes_count: int) -> None:
        """`timeout_s`: after which a node that is only silent is lost."""
        soon_s = min(nodes_count / FEW_ASKS_A_SECOND, ASK_OVERDUE * timeout_s)
        ask_s = max(ASK * timeout_s, soon_s, nodes_count / ASKS_A_SECOND)
        self.ask_s = min(ask_s, ASK_LAST * timeout_s)
        self._dark_s, self._others_s = DARK * timeout_s, OTHERS * timeout_s
        self._asked: dict[str, float] = {}  # and when
        self._waiting: dict[str, TcpState] = {}  # those that have not answered
        self._named: set[str] = set()

    @property
    def in_doubt(self) -> bool:
        """Whether somebody has been asked and has not answered yet."""
        return bool(self._waiting)

    @property
    def asked(self) -> bool:
        """Whether somebody who is silent has been asked."""
        return bool(self._asked)

    def waits_for(self, node: str) -> bool | None:
        """Whether its machine has not acknowledged what it was asked; None: that is not known."""
        return node in self._waiting if node in self._asked else None

    def only(self, silent: Collection[str]) -> None:
        """All others are heard."""
        for node in self._asked.keys() - silent:
            self._forget(node)
        self._named.intersection_update(silent)

    def _forget(self, node: str) -> None:
        self._asked.pop(node, None)
        self._waiting.pop(node, None)

    def forgive(self) -> None:
        """Nobody listened for a while: everybody is asked anew."""
        self._asked.clear()
        self._waiting.clear()

    def is_to_be_asked(self, node: str, tcp_state: TcpState | None, now: float) -> bool:
        """Whether to ask it now, first or again, by what the kernel says. None: it says nothing."""
        asked_at = self._asked.get(node)
        if tcp_state is None:
            self._waiting.pop(node, None)
            return False
        if asked_at is not None and tcp_state.waits and tcp_state.answered_at <= asked_at:
            self._waiting[node] = tcp_state
            return False
        self._waiting.pop(node, None)
        if asked_at is not None and now - asked_at < self.ask_s:
            return False
        self._asked[node] = now
        return True

    def gone(self, heard: Iterable[float], now: float) -> list[str]:
        """Nodes that are lost, each named once. `heard`: when each node elsewhere was, at last."""
        dark = [node for node in self._waiting if self._is_dark(node, now)]
        if not dark:
            return []
        since = max(self._asked[node] for node in dark) + self._others_s
        if sum(at >= since for at in heard) < len(self._waiting):
            return []
        found = [node for node in dark if node not in self._named]
        self._named.update(found)
        return found

    def _is_dark(self, node: str, now: float) -> bool:
        tcp_state = self._waiting[node]
        answer_s = max(ANSWER_S, ROUND_TRIPS * tcp_state.round_trip_s)
        return (
            tcp_state.tries >= TRIES
            and tcp_state.sent_at - self._asked[node] >= self._dark_s
            and now - tcp_state.sent_at >= answer_s
        )
