"""Referees of a job's controllers: one at a time, each knows what those before have done, and one
that hears of no node gives its place to another, not to itself, and not for ever.
"""

import math
from collections.abc import Callable

from holdfast.actions import Entry, StartAttempt
from holdfast.messages import Leave, Start, Stop

IN_A_ROW = 6  # controllers that may find that they hear of nobody
SAID_S = 15.0  # after which the journal says, for sure, that a node was met
OTHERS_S = 60.0  # that all the others have come, or are given up, after the first has
FIRST_S = 10.0  # that the second of them may wait for somebody, and each one twice as long


class OneTerm:
    """Of two controllers only one acts, and what was done is known to all that follow."""

    def __init__(self) -> None:
        self._obeyed: dict[str, int] = {}  # node → newest term
        self._ordered: dict[int, int] = {}  # attempt → entry that ordered its start
        self._begun: set[int] = set()  # attempts that a node was told to start, and did

    def journaled(self, entry: Entry) -> None:
        """What this entry orders."""
        for action in entry.actions:
            if isinstance(action, StartAttempt):
                self._ordered.setdefault(action.attempt, entry.seq)

    def obeyed(self, node: str, order: Start | Stop | Leave) -> str:
        """A node does what it was told."""
        newest = self._obeyed.get(node, 0)
        self._obeyed[node] = max(newest, order.term)
        if isinstance(order, Start):
            self._begun.add(order.attempt)
        return f"{node} obeys term {order.term} after {newest}" if order.term < newest else ""

    def took_over(self, ordered: dict[int, int], is_kept: Callable[[int], bool]) -> str:
        """A controller has only what it has gathered. `is_kept`: whether an entry could be had."""
        lost = [a for a in sorted(self._begun) if ordered.get(a) != self._ordered[a]]
        missed = [attempt for attempt in lost if is_kept(self._ordered[attempt])]
        self._begun -= set(lost)
        self._ordered = dict(ordered)
        return f"attempt {missed[0]} was begun, and is in no journal now" if missed else ""


class Succession:
    """Who follows a controller that has given its place away."""

    def __init__(self) -> None:
        self._deaf: list[int] = []  # entries that say so, since a node was met
        self._waited_s, self._waited_at = 0.0, -math.inf  # before the last one was, and when
        self._met: list[int] = []  # entries of those that do not count since
        self._met_seq, self._met_at = 0, -math.inf  # the newest entry then, and when that was

    def waits_s(self, now: float) -> float:
        """How much longer a controller may wait for nodes because those before it met none; and for
        the others once it has met one."""
        waits_s = FIRST_S * 2 ** (len(self._deaf) - 1) if self._deaf else 0.0
        return max(waits_s, self._waited_s if now - self._waited_at < OTHERS_S else 0.0)

    def met(self, seq: int, now: float) -> None:
        """A node on another machine has connected, which the journal is to say soon."""
        if self._deaf:
            self._waited_s, self._waited_at = self.waits_s(now), now
            self._met, self._met_seq, self._met_at = self._deaf, seq, now
            self._deaf = []

    def crashed(self, now: float) -> None:
        """A controller is lost: what it was about to say, if it had just met a node, with it."""
        if now - self._met_at < SAID_S:
            self._unmeet()

    def forget(self, after: int) -> None:
        """Later entries are lost: who goes on cannot know of them."""
        if after <= self._met_seq:
            self._unmeet()
        self._deaf = [seq for seq in self._deaf if seq <= after]

    def _unmeet(self) -> None:
        self._deaf, self._met = [*self._met, *self._deaf], []

    def handed_over(self, seq: int) -> str:
        """A controller hears of nobody on other machines, and gives its place away."""
        self._deaf.append(seq)
        count = len(self._deaf)
        again = f"controller {count} in a row gives its place away, and no node was met"
        return again if count > IN_A_ROW else ""

    def returned(self, *, standby: bool) -> str:
        """It begins again where it was; whether another one stood by."""
        return "a controller that hears of nobody takes its place again" if standby else ""
