"""Copies of the journal in the memory of a few agents, so that a lost controller loses nothing.

Where the controller's disk may vanish with it, no order leaves before an agent on another machine
has said that it holds the lines that led to it. Which agents these are is chosen so that they fail
apart: never on the controller's own machine where there is another, and far from each other by
rank, because neighbours share a rack. Who is slow is not waited for: others are asked as well. Only
a job of which nobody is connected gets no copy, and there is nobody then whom an order could reach.
"""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Protocol

from holdfast.messages import Keep, Kept

REPLICAS = 3
ASK_MORE_S = 0.5  # without an answer, until others are asked as well
CHUNK_BYTES = 1 << 20


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
        self._wanted = REPLICAS
        self._asked_at = 0.0

    def copy(self, connected: Collection[str], now: float) -> bool:
        """Send what is new; whether it is held by one that counts."""
        newest = self._lines.count() - 1
        self._wanted, self._asked_at = REPLICAS, now
        for node in self._choose(connected):
            self._bring_up(node, newest)
        return self.held(connected)

    def held(self, connected: Collection[str]) -> bool:
        """Whether every line is held where it outlives the controller, or nobody could hold it."""
        newest = self._lines.count() - 1
        there = [node for node in self._ranked() if node in connected]
        far = [node for node in there if not self._near(node)] or there
        return not far or any(self._has.get(node, -1) >= newest for node in far)

    def look(self, connected: Collection[str], now: float) -> None:
        """Ask others as well if those that were asked are slow."""
        if self.held(connected) or now - self._asked_at < ASK_MORE_S:
            return
        self._asked_at = now
        self._wanted += REPLICAS
        newest = self._lines.count() - 1
        for node in self._choose(connected):
            if self._has.get(node, -1) < newest and not self._due.get(node):
                self._bring_up(node, newest)

    def gone(self, node: str) -> None:
        """A node's connection broke: it is asked anew what it has when it is back."""
        for known in (self._sent, self._has, self._due):
            known.pop(node, None)

    def answered(self, node: str, answer: Kept) -> bool:
        """What a node says that it holds. False: a newer controller has been there."""
        if answer.term > self._term:
            return False
        self._due[node] = max(0, self._due.get(node, 0) - 1)
        self._has[node] = answer.seq
        return True

    def _choose(self, connected: Collection[str]) -> list[str]:
        """Those that hold a copy already, then new ones far from each other."""
        there = [node for node in self._ranked() if node in connected]
        far = [node for node in there if not self._near(node)] or there
        chosen = [node for node in far if node in self._sent]
        others = [node for node in far if node not in self._sent]
        lacking = max(0, min(self._wanted, len(far)) - len(chosen))
        return chosen + _spread(others, lacking)

    def _bring_up(self, node: str, newest: int) -> None:
        """Send what it misses. One that came back gets everything, of which it keeps what it has;
        one that misses something, which all its answers have told, gets it from there on."""
        if self._due.get(node, 0) == 0:
            self._sent[node] = self._has.get(node, -1)
        first = self._sent.get(node, -1) + 1
        while first <= newest:
            lines = self._lines.read(first, CHUNK_BYTES)
            self._due[node] = self._due.get(node, 0) + 1
            self._sent[node] = first + len(lines) - 1
            self._send(node, Keep(first=first, lines=tuple(lines), term=self._term))
            first += len(lines)


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
