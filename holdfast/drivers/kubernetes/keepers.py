"""Copies of the journal in the memory of a few agents, so that a lost controller pod loses nothing.

Every new line goes to the keepers before an order of that line goes to anybody, and one of them has
to say that it has it. A new controller on an empty disk asks whoever connects and takes the longest
copy: whatever an agent was ever ordered to do is in the copy of some keeper that outlived the order.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from holdfast.controller.state import State
from holdfast.drivers.links import Links
from holdfast.messages import Keep

KEEPERS = 3
ANSWER_S = 1.0
CHUNK_BYTES = 1 << 20


class Keepers:
    """Who keeps the journal and how far each of them is. `copy()` before orders leave."""

    def __init__(self, links: Links, journal: Path, state: State) -> None:
        self._links = links
        self._journal = journal
        self._state = state
        self._lines: list[int] = []  # byte offset of the end of each line
        self._sent: dict[str, int] = {}  # node → lines it was sent
        self._has: dict[str, int] = {}  # node → lines it says it has
        self._answered = asyncio.Event()

    async def copy(self) -> None:
        """Send what is new, and wait a moment for one of the keepers to have all of it."""
        self._measure()
        chosen = self._choose()
        for node in chosen:
            await self._send(node)
        if chosen:
            await self._one_has_all(chosen)

    def kept(self, node: str, count: int) -> None:
        """A node says how many lines it has."""
        self._has[node] = count
        self._answered.set()

    def gone(self, node: str) -> None:
        """A node's connection broke: it says anew what it has when it is back."""
        self._sent.pop(node, None)
        self._has.pop(node, None)

    def greet(self, node: str, count: int) -> None:
        """A node (re)connected and holds so many lines."""
        self._sent[node] = self._has[node] = count

    def _measure(self) -> None:
        start = self._lines[-1] if self._lines else 0
        with self._journal.open("rb") as file:
            file.seek(start)
            for line in file:
                if line.endswith(b"\n"):
                    start += len(line)
                    self._lines.append(start)

    def _choose(self) -> list[str]:
        """Those that keep already, then members by rank, then spares: few changes, no gaps."""
        connected = self._links.connected
        members = [node for _, node in sorted(self._state.ranks.items())]
        order = dict.fromkeys([*sorted(self._has), *members, *self._state.spares])
        return [node for node in order if node in connected][:KEEPERS]

    async def _send(self, node: str) -> None:
        first = min(self._sent.get(node, 0), len(self._lines))
        while first < len(self._lines):
            start = self._lines[first - 1] if first else 0
            last = first + 1
            while last < len(self._lines) and self._lines[last] - start <= CHUNK_BYTES:
                last += 1
            data = _part(self._journal, start, self._lines[last - 1])
            await self._links.send(node, Keep(first=first, lines=data))
            first = last
        self._sent[node] = first

    async def _one_has_all(self, chosen: list[str]) -> None:
        done: Callable[[], bool] = lambda: any(  # noqa: E731
            self._has.get(node, 0) >= len(self._lines) for node in chosen
        )
        try:
            async with asyncio.timeout(ANSWER_S):
                while not done():
                    self._answered.clear()
                    await self._answered.wait()
        except TimeoutError:
            return


def _part(path: Path, start: int, end: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(end - start)
