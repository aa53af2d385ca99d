"""The referee of nodes that are left because they are blamed: only so many in an hour.

Nodes that are gone, or announced to go, do not count. Judged from lines of the journal alone; lines
that were lost with a controller are as if they had never been.
"""

import math

from holdfast.actions import Entry, Fence

HOUR_S = 3600.0
SLACK_S = 1.0
LEAST, SHARE = 4, 0.01  # of the nodes of a job
REPLACE, ISOLATE = "replace", "isolate"


class FairRemovals:
    """Nodes of one job that were left lately."""

    def __init__(self, nodes: int) -> None:
        self._most = max(LEAST, math.ceil(SHARE * nodes))
        self._left: list[tuple[int, float]] = []  # line of the journal, time

    def journaled(self, entry: Entry) -> str:
        """Count whom an entry leaves, and judge."""
        since = entry.at - HOUR_S + SLACK_S
        self._left = [(seq, at) for seq, at in self._left if seq < entry.seq and at > since]
        blamed = {choice.about for choice in entry.choices if choice.step == REPLACE}
        suspected = {choice.reason for choice in entry.choices if choice.step == ISOLATE}
        fences = [action for action in entry.actions if isinstance(action, Fence)]
        left = [one for one in fences if one.node in blamed or one.reason in suspected]
        self._left += [(entry.seq, entry.at)] * len(left)
        if not left or len(self._left) <= self._most:
            return ""
        return f"{left[-1].node} is left, and {len(self._left) - 1} were within an hour before it"
