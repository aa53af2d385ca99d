"""Snapshots of workers are gathered into huge pages, once for each cell, a bit at a look.

It costs more than a copy does, so it waits until there is a snapshot, and takes little at a time
and a tenth of a core: training goes on beside it, and whoever writes to what is being gathered
waits for that long.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from holdfast.checkpoint.arena import OWN, Arena, Cell
from holdfast.checkpoint.huge_memory import HUGE_BYTES, gather

BYTES = 16 << 20  # at a look
PAUSE = 10.0  # times as long as a bit takes: training on few cores is hardly slower meanwhile


class HugeSnapshots:
    """How far that is."""

    def __init__(
        self, arenas: Sequence[Arena], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        cells = (cell for arena in arenas for part in OWN for cell in arena.cells(part))
        self._done = dict.fromkeys(cells, 0)  # bytes
        self._failed: set[Cell] = set()  # the last bit was not gathered; after two the rest stays
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="gather")
        self._under_way: Future[None] | None = None
        self._next_at = 0.0

    def look(self) -> None:
        """Begin with the next bit, unless one is under way or was just before."""
        busy = self._under_way is not None and not self._under_way.done()
        if busy or self._clock() < self._next_at:
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
        began, self._done[cell] = self._clock(), done + BYTES
        cell.reserve(header.payload_bytes, touch=False)
        fails = not gather(cell.memory[done : done + BYTES])
        if fails and cell in self._failed:
            self._done[cell] = len(cell.memory)
        now = self._clock()
        self._next_at = now + PAUSE * (now - began)
        (self._failed.add if fails else self._failed.discard)(cell)
