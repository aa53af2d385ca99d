"""Sets of ranks as rows, put together without counting each rank: of 100,000 there are few rows."""

from holdfast.events import Ranks

LOOSE = 64  # rows that are put in order together, at least


class JoinedRows:
    """Rows of ranks as they come. They are put in order when there are twice as many as the last
    time, so that rows which do not touch cost no more than others."""

    def __init__(self, rows: Ranks) -> None:
        self._rows = list(rows)
        self._due = LOOSE

    def add(self, rows: Ranks) -> None:
        """More of them."""
        self._rows += rows
        if len(self._rows) > self._due:
            self._rows = list(merged(self._rows))
            self._due = max(LOOSE, 2 * len(self._rows))

    def rows(self) -> Ranks:
        """All of them, in order."""
        return merged(self._rows)


def merged(rows: Ranks | list[tuple[int, int]]) -> Ranks:
    """In order, those that touch or overlap made one."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(rows):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return tuple(found)
