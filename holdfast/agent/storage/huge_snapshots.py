"""Snapshots of workers are gathered into huge pages, once for each cell, a bit at a look.

It costs more than a copy does, so it waits until there is a snapshot, and takes little at a time:
training goes on beside it, and whoever writes to what is being gathered waits for that long.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from holdfast.checkpoint.arena import OWN, Arena, Cell
from holdfast.checkpoint.huge_memory import HUGE_BYTES, gather

BYTES = 16 << 20  # at a look


class HugeSnapshots:
    """How far that is."""

    def __init__(self, arenas: Sequence[Arena]) -> None:
        cells = (cell for arena in arenas for part in OWN for cell in arena.cells(part))
        self._done = dict.fromkeys(cells, 0)  # bytes
        self._failed: set[Cell] = set()  # the last bit was not gathered; after two the rest stays
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="gather")
        self._under_way: Future[None] | None = None

    def look(self) -> None:
        """Begin with the next bit, unless one is under way."""
        if self._under_way is not None and not self._under_way.done():
            return
        cell = next(self._due(), None)
        self._under_way = None if cell is None else self._pool.submit(self._gather, cell)

    def _due(self) -> Iterator[Cell]:
        for cell, done in self._done.items():
            header = cell.header()
            if header is not None and header.payload_bytes >= done + HUGE_BYTES:
                yield cell

    def _gather(self, cell: Cell) -> None:
        header, done = cell.header(), self._done[cell]
        if header is None:  # it is being written again
            return
        self._done[cell] = done + BYTES
        cell.reserve(header.payload_bytes, touch=False)
        fails = not gather(cell.memory[done : done + BYTES])
        if fails and cell in self._failed:
            self._done[cell] = len(cell.memory)
        (self._failed.add if fails else self._failed.discard)(cell)
