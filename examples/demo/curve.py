"""Draw a curve in the terminal: dots of braille, axes, and marks on the time axis; pure.

A braille character has two columns and four rows of dots, so a plot of 70 × 14 characters resolves
140 × 56 points. Nothing is smoothed: each point of the data sets one dot.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

BLANK = 0x2800
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # by column, then row from the top
LABEL = 6  # characters left of the axis


class Area(NamedTuple):
    """What the plot shows (data) and how big it is (characters)."""

    left: float
    right: float
    bottom: float
    top: float
    width: int
    height: int

    def column(self, x: float, per_cell: int = 1) -> int:
        """Where x lies, in columns of which a character has `per_cell`."""
        count = self.width * per_cell
        share = (x - self.left) / ((self.right - self.left) or 1.0)
        return min(count - 1, max(0, int(share * count)))

    def row(self, y: float) -> int:
        """Where y lies, in rows of dots from the top."""
        count = self.height * 4
        share = (self.top - y) / ((self.top - self.bottom) or 1.0)
        return min(count - 1, max(0, int(share * count)))


def plot(
    points: Sequence[tuple[float, float]],
    marks: Mapping[str, float],
    *,
    width: int,
    height: int,
    unit: str = "s",
) -> list[str]:
    """Lines of a plot of `points` (x, y) with a vertical line for each mark, its name on top.

    Raises ValueError if there are no points.
    """
    xs, ys = [x for x, _ in points], [y for _, y in points]
    area = Area(min(0.0, min(xs)), max(xs), min(ys), max(ys), width - LABEL - 2, height)
    cells = _dots(points, area)
    lines = [[chr(BLANK | dots) if dots else " " for dots in row] for row in cells]
    columns = {name: area.column(x) for name, x in marks.items()}
    for column in columns.values():
        for row in lines:
            row[column] = "┊" if row[column] == " " else row[column]
    labels = {0: f"{area.top:.2f}", height - 1: f"{area.bottom:.2f}"}
    body = [f"{labels.get(i, ''):>{LABEL}} │{''.join(row)}" for i, row in enumerate(lines)]
    axis = " " * LABEL + " └" + "─" * area.width
    ends = f"{area.left:.0f} {unit}", f"{area.right:.0f} {unit}"
    scale = " " * (LABEL + 2) + ends[0] + ends[1].rjust(area.width - len(ends[0]))
    return [_names(columns, area.width), *(line.rstrip() for line in body), axis, scale]


def _dots(points: Sequence[tuple[float, float]], area: Area) -> list[list[int]]:
    cells = [[0] * area.width for _ in range(area.height)]
    for x, y in points:
        column, row = area.column(x, 2), area.row(y)
        cells[row // 4][column // 2] |= DOTS[column % 2][row % 4]
    return cells


def _names(columns: Mapping[str, int], width: int) -> str:
    """The names of the marks over their lines; one that has no room begins after the last one."""
    line = ""
    for name, column in sorted(columns.items(), key=lambda item: item[1]):
        at = max(min(column, width - len(name)), len(line) + 1 if line else 0)
        line = line.ljust(at) + name
    return (" " * (LABEL + 2) + line).rstrip()
