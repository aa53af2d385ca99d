"""Checksums for what workers wrote without one, as soon as it is whole.

A look at a cell costs a microsecond: a cell whose first words are those of the last look is left
alone. The checksum itself is taken in a thread, because training must not wait for a look and the
next cell not for this one.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from holdfast.checkpoint.arena import OWN, Arena, Cell

THREADS = 2


class Sealing:
    """Which cells are being sealed just now."""

    def __init__(self, arenas: Sequence[Arena]) -> None:
        self._cells = [cell for arena in arenas for part in OWN for cell in arena.cells(part)]
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="seal")
        self._busy: set[Cell] = set()

    def look(self) -> None:
        """Begin to seal what is whole and has no seal."""
        for cell in self._unsealed():
            self._busy.add(cell)
            self._pool.submit(self._seal, cell)

    def _unsealed(self) -> Iterator[Cell]:
        for cell in self._cells:
            if cell not in self._busy and cell.header() is not None and cell.sealed() is None:
                yield cell

    def _seal(self, cell: Cell) -> None:
        try:
            cell.seal()
        finally:
            self._busy.discard(cell)
