"""A planted bug: one line of the code under test, and the promise it breaks."""

from typing import NamedTuple

from holdfast.simulation.environment import Promise

HOURS, NODES = 6.0, 6  # of a world, as a rule


class Mutant(NamedTuple):
    """In `file`, the line `line` (without its indentation) becomes `instead`.

    Worlds are searched from seed `first` on; what is rarely seen begins close to where it is.
    Of a promise that others break as well, `when_asked` are those that take long, with
    HOLDFAST_TEST_MORE=1.
    """

    file: str
    line: str
    instead: str
    breaks: Promise
    first: int = 0
    hours: float = HOURS
    nodes: int = NODES
    when_asked: bool = False

    def planted(self, source: str) -> str:
        """The source with the bug in it. Raises `LookupError` unless the line is there once."""
        lines = source.splitlines(keepends=True)
        found = [number for number, line in enumerate(lines) if line.strip() == self.line]
        if len(found) != 1:
            raise LookupError(f"{self.file} has {len(found)} lines that read: {self.line}")
        lines[found[0]] = lines[found[0]].replace(self.line, self.instead)
        return "".join(lines)
