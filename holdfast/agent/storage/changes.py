"""Whether the workers of this node have written anything: the first words of each cell tell."""

from collections.abc import Sequence

from holdfast.checkpoint.arena import OWN, Arena


class CellChanges:
    """What the cells of all ranks looked like at the last look."""

    def __init__(self, arenas: Sequence[Arena]) -> None:
        self._cells = [cell for arena in arenas for part in OWN for cell in arena.cells(part)]
        self._stamps: list[bytes] = []

    def any(self) -> bool:
        """Whether a worker has done anything since the last look."""
        before = self._stamps
        self._stamps = [cell.stamp() for cell in self._cells]
        return self._stamps != before
