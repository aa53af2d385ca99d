"""The referee of nodes that are left because they are blamed: only so many in an hour.

Nodes that are gone, or announced to go, do not count. Judged from lines of the journal; lines that
were lost with a controller are as if they had never been.

Nor may a job end for that limit: where a node is really sick, a spare that is well waits, and the
node stays only because others were left before, the job goes on, however often its attempts fail
with that node after the first time. But it does not try all the time.
"""

import math
from collections.abc import Callable, Sequence

from holdfast.actions import EndJob, Entry, Fence, Outcome
from holdfast.events import NodeJoined, NodeLeft, NodeLost

HOUR_S = 3600.0
SLACK_S = 1.0
LEAST, SHARE = 4, 0.01  # of the nodes of a job
LEAST_OF_RACK, SHARE_OF_RACK = 2, 0.5
TRIES_MOST = 40  # within an hour, with nodes that only the limit keeps
REPLACE, ISOLATE = "replace", "isolate"
STAYS = ("restart", "wait", "give-up")  # what may be chosen once an attempt has failed on a node


class FairRemovals:
    """Nodes of one job that were left lately, and those that should be."""

    def __init__(self, nodes: int) -> None:
        self.is_sick: Callable[[str], bool] = bool
        self.spares: Callable[[], Sequence[str]] = tuple
        self.free = False  # the next start does not count as a restart
        self._most = max(LEAST, math.ceil(SHARE * nodes))
        self._left: list[tuple[int, float, str]] = []  # line of the journal, time, rack
        self._racks: dict[str, str] = {}  # of nodes that are there
        self._kept: list[tuple[int, float, str]] = []  # line, time, node

    def journaled(self, entry: Entry) -> str:
        """Count whom an entry leaves, and judge."""
        self._forget(entry)
        held = self._held(entry)
        blamed = {choice.about for choice in entry.choices if choice.step == REPLACE}
        suspected = {choice.reason for choice in entry.choices if choice.step == ISOLATE}
        fences = [action for action in entry.actions if isinstance(action, Fence)]
        left = [one for one in fences if one.node in blamed or one.reason in suspected]
        self._left += [(entry.seq, entry.at, self._racks.get(one.node, "")) for one in left]
        self._move(entry, fences)
        if held or not left or len(self._left) <= self._most:
            return held
        return f"{left[-1].node} is left, and {len(self._left) - 1} were within an hour before it"

    def _forget(self, entry: Entry) -> None:
        since = entry.at - HOUR_S + SLACK_S
        self._left = [one for one in self._left if one[0] < entry.seq and one[1] > since]
        self._kept = [one for one in self._kept if one[0] < entry.seq and one[1] > since]

    def _move(self, entry: Entry, fences: Sequence[Fence]) -> None:
        """Who is there."""
        event = entry.event
        if isinstance(event, NodeJoined):
            self._racks[event.node] = event.rack
        gone = [event.node] if isinstance(event, NodeLost | NodeLeft) else []
        for node in (*gone, *(one.node for one in fences)):
            self._racks.pop(node, None)

    def _held(self, entry: Entry) -> str:
        """What is wrong with how a node is dealt with that only the limit keeps."""
        about = (choice.about for choice in entry.choices if choice.step in STAYS)
        node = next(filter(self.is_sick, about), "")
        well = [one for one in self.spares() if not self.is_sick(one)]
        self.free = False
        if not (node and self._is_held(node) and well):
            return ""
        again = any(node == kept for _, _, kept in self._kept)
        self._kept.append((entry.seq, entry.at, node))
        ends = [one.outcome for one in entry.actions if isinstance(one, EndJob)]
        if again and Outcome.GAVE_UP in ends:
            return f"the job ends: only the limit of removals keeps {node}, and {well[0]} waits"
        self.free = again
        if len(self._kept) > TRIES_MOST:
            return f"{node} stays, and {len(self._kept)} attempts with such nodes fail in an hour"
        return ""

    def _is_held(self, node: str) -> bool:
        """Whether too many were left before it."""
        rack = self._racks.get(node, "")
        there = sum(one[2] == rack for one in self._left) if rack else 0
        all_there = there + sum(other == rack for other in self._racks.values())
        most = max(LEAST_OF_RACK, math.ceil(SHARE_OF_RACK * all_there))
        return len(self._left) >= self._most or there >= most
