"""Copies of the journal in the memory of a few agents, so that a lost controller pod loses nothing.

Every new line goes to the keepers before an order of that line goes to anybody, and one of them
has to say that it has it. A new controller on an empty disk asks whoever connects and takes the
longest copy: whatever was ever ordered is in the copy of some keeper that outlived the order.
"""

import asyncio
import contextlib
from pathlib import Path

from holdfast.controller.state import State
from holdfast.drivers.links import Links
from holdfast.messages import FromKeeper, Keep, Kept

KEEPERS = 3
ANSWER_S = 1.0
CHUNK_BYTES = 1 << 20


class Keepers:
    """Who keeps the journal and how far each of them is. `copy()` before orders leave.

    Lines are numbered as in the file, the header is line 0. `term` is that of this controller.
    """

    def __init__(self, links: Links, journal: Path, state: State, term: int) -> None:
        self._links = links
        self._journal = journal
        self._state = state
        self._term = term
        self._ends: list[int] = []  # byte offset of the end of each line
        self._sent: dict[str, int] = {}  # node → newest line it was sent
        self._has: dict[str, int] = {}  # node → newest line it says it has
        self._due: dict[str, int] = {}  # node → answers that are still to come
        self._answered = asyncio.Event()
        links.on_kept = self._heard

    async def copy(self) -> None:
        """Send what is new, and wait a moment for one of the keepers to have all of it."""
        self._measure()
        chosen = self._choose()
        for node in chosen:
            await self._send(node)
        if chosen:
            await self._one_has_all(chosen)

    def gone(self, node: str) -> None:
        """A node's connection broke: it is asked anew what it has when it is back."""
        for known in (self._sent, self._has, self._due):
            known.pop(node, None)

    def _heard(self, node: str, message: FromKeeper) -> None:
        match message:
            case Kept(term=term) if term > self._term:
                return  # a newer controller was there; the lease will tell us
            case Kept(seq=seq):
                self._due[node] = max(0, self._due.get(node, 0) - 1)
                self._has[node] = seq
                self._answered.set()
            case _:
                return

    def _measure(self) -> None:
        start = self._ends[-1] if self._ends else 0
        with self._journal.open("rb") as file:
            file.seek(start)
            for line in file:
                if line.endswith(b"\n"):
                    start += len(line)
                    self._ends.append(start)

    def _choose(self) -> list[str]:
        """Those that keep already, then members by rank, then spares: few changes, no gaps."""
        connected = self._links.connected
        members = [node for _, node in sorted(self._state.ranks.items())]
        order = dict.fromkeys([*sorted(self._sent), *members, *self._state.spares])
        return [node for node in order if node in connected][:KEEPERS]

    async def _send(self, node: str) -> None:
        """To one that came back everything, of which it keeps what it has; to one that misses
        something, which all its answers have told, from there on."""
        if self._due.get(node, 0) == 0:
            self._sent[node] = self._has.get(node, -1)
        first = self._sent.get(node, -1) + 1
        while first < len(self._ends):
            last = self._chunk(first)
            lines = _part(self._journal, self._end(first - 1), self._end(last - 1))
            order = Keep(first=first, lines=tuple(lines), term=self._term)
            self._due[node] = self._due.get(node, 0) + 1
            await self._links.send(node, order)
            first = last
        self._sent[node] = len(self._ends) - 1

    def _chunk(self, first: int) -> int:
        """The line after the last one that fits into one message with line `first`."""
        last = first + 1
        while last < len(self._ends) and self._end(last) - self._end(first - 1) <= CHUNK_BYTES:
            last += 1
        return last

    def _end(self, line: int) -> int:
        return self._ends[line] if line >= 0 else 0

    async def _one_has_all(self, chosen: list[str]) -> None:
        newest = len(self._ends) - 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                while all(self._has.get(node, -1) < newest for node in chosen):
                    self._answered.clear()
                    await self._answered.wait()


def _part(path: Path, start: int, end: int) -> list[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(end - start).splitlines(keepends=True)
