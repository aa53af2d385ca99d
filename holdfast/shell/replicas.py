"""Copies of the journal in the memory of a few agents, so that a lost controller loses nothing.

Where the controller's disk may vanish with it, no order leaves before an agent on another machine
has said that it holds the lines that led to it. Which agents these are is chosen so that they fail
apart: never on the controller's own machine where there is another, and far from each other by
rank, because neighbours share a rack. Who is slow is not waited for: others are asked as well. Only
a job of which nobody is connected gets no copy, and there is nobody then whom an order could reach.

A long journal is sent in parts, of which only a few are under way to a node: a new copy must not
flood its connection, which would be closed for that.
"""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Protocol

from holdfast.messages import Keep, Kept

REPLICAS = 3
ASK_MORE_S = 0.5  # without an answer, until others are asked as well
CHUNK_BYTES = 1 << 20
WINDOW = 4  # parts that one node was sent and has not answered, at most


class Lines(Protocol):
    """The journal as it lies on the disk. Line 0 is the header, `n` the entry with `seq` n."""

    def count(self) -> int:
        """How many whole lines there are."""

    def read(self, first: int, limit_bytes: int) -> list[bytes]:
        """Lines from `first` on: at least one, and no more than fit."""


class Replicas:
    """Who holds the journal, and how far each of them is.

    `ranked` gives the nodes that may be asked, best first: members by rank, then spares;
    `near` says whether a node would go down with the controller.
    """

    def __init__(
        self,
        lines: Lines,
        term: int,
        ranked: Callable[[], Sequence[str]],
        near: Callable[[str], bool],
        send: Callable[[str, Keep], None],
    ) -> None:
        self._lines, self._term = lines, term
        self._ranked, self._near, self._send = ranked, near, send
        self._sent: dict[str, int] = {}  # node → newest line it was sent; the chosen ones
        self._has: dict[str, int] = {}  # node → newest line it says it has
        self._due: dict[str, int] = {}  # node → answers that are still to come
        self._newest = -1  # line that is to be held
        self._wanted = REPLICAS
        self._asked_at = 0.0

    def copy(self, connected: Collection[str], now: float) -> bool:
        """Send what is new; whether it is held by one that counts."""
        self._newest = self._lines.count() - 1
        self._wanted, self._asked_at = REPLICAS, now
        for node in self._choose(connected):
            self._send_more(node)
        return self.held(connected)

    def held(self, connected: Collection[str]) -> bool:
        """Whether what was to be copied is held where it outlives the controller, or nobody could
        hold it."""
        far = self._far(connected)
        return not far or any(self._has.get(node, -1) >= self._newest for node in far)

    def look(self, connected: Collection[str], now: float) -> None:
        """Ask others as well if those that were asked are slow."""
        if self.held(connected) or now - self._asked_at < ASK_MORE_S:
            return
        self._asked_at = now
        self._wanted += REPLICAS
        for node in self._choose(connected):
            if self._has.get(node, -1) < self._newest and not self._due.get(node):
                self._send_more(node)

    def gone(self, node: str) -> None:
        """A node's connection broke: it is asked anew what it has when it is back."""
        for known in (self._sent, self._has, self._due):
            known.pop(node, None)

    def answered(self, node: str, answer: Kept) -> bool:
        """What a node says that it holds. False: a newer controller has been there."""
        if answer.term > self._term:
            return False
        further = answer.seq > self._has.get(node, -1)
        self._due[node] = max(0, self._due.get(node, 0) - 1)
        self._has[node] = answer.seq
        if further and node in self._sent:  # one that refuses is not asked again at once
            self._send_more(node)
        return True

    def _choose(self, connected: Collection[str]) -> list[str]:
        """Those that hold a copy already, the furthest first, then new ones far from each other.
        Of more than are wanted, because some were slow for a while, the last get no more."""
        far = self._far(connected)
        chosen = [node for node in far if node in self._sent]
        others = [node for node in far if node not in self._sent]
        chosen.sort(key=lambda node: self._has.get(node, -1), reverse=True)
        for node in chosen[self._wanted :]:
            del self._sent[node]
        lacking = max(0, min(self._wanted, len(far)) - len(chosen))
        return chosen[: self._wanted] + _spread(others, lacking)

    def _far(self, connected: Collection[str]) -> list[str]:
        """Nodes that may hold a copy: those that outlive the controller, if there are any."""
        there = [node for node in self._ranked() if node in connected]
        return [node for node in there if not self._near(node)] or there

    def _send_more(self, node: str) -> None:
        """Send what it misses, a few parts at a time. One that came back gets everything, of which
        it keeps what it has; one that misses something, which all its answers have told, gets it
        from there on."""
        if self._due.get(node, 0) == 0:
            self._sent[node] = self._has.get(node, -1)
        while self._due.get(node, 0) < WINDOW and self._sent.get(node, self._newest) < self._newest:
            first = self._sent[node] + 1
            lines = self._lines.read(first, CHUNK_BYTES)
            self._due[node] = self._due.get(node, 0) + 1
            self._sent[node] = first + len(lines) - 1
            self._send(node, Keep(first=first, lines=tuple(lines), term=self._term))


def _spread(nodes: Sequence[str], count: int) -> list[str]:
    """So many of these, as far from each other as their order allows."""
    return [nodes[place * len(nodes) // count] for place in range(count)] if count else []


class FileLines:
    """The lines of a journal's file, which only grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ends: list[int] = []  # byte offset of the end of each line

    def count(self) -> int:
        """How many whole lines there are."""
        start = self._ends[-1] if self._ends else 0
        with self._path.open("rb") as file:
            file.seek(start)
            for line in file:
                if line.endswith(b"\n"):
                    start += len(line)
                    self._ends.append(start)
        return len(self._ends)

    def read(self, first: int, limit_bytes: int) -> list[bytes]:
        """Lines from `first` on: at least one, and no more than fit."""
        start = self._ends[first - 1] if first else 0
        last = first + 1
        while last < len(self._ends) and self._ends[last] - start <= limit_bytes:
            last += 1
        with self._path.open("rb") as file:
            file.seek(start)
            return file.read(self._ends[last - 1] - start).splitlines(keepends=True)
