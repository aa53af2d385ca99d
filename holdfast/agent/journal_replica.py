"""A replica of the controller's journal in the memory of an agent.

Where the controller's disk goes with its pod, a few agents hold every line before it takes effect,
and a new controller gathers the best replica: the one whose last line is of the newest term and,
among those, the longest. Sending lines again does no harm: those that are the same stay, with their
term, and only a line that differs ends what was held before. So a controller that knows nothing of
a replica may send it everything from the start, and may die half way. Lines are taken as they were
written: a line whose checksum is wrong, or that does not follow the one before it, is none.
"""

from collections.abc import Iterator

from holdfast import lines
from holdfast.messages import JournalCopy, Keep, Kept

PART_BYTES = 1024 * 1024  # of a copy that is given back


class JournalReplica:
    """Lines by number, without a gap: `_lines[n]` is line `n` of the journal."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._checksums: list[int] = []  # of each line
        self._obeyed = 0  # newest term of which an order was obeyed
        self.term = 0  # of the last line

    @property
    def seq(self) -> int:
        """The newest line that is held; -1 if there is none."""
        return len(self._lines) - 1

    def keep(self, order: Keep) -> Kept:
        """Take these lines, unless something is missing before them or they are no lines."""
        if order.term < self._obeyed or not 0 <= order.first <= len(self._lines):
            return Kept(seq=self.seq, term=self._obeyed)
        checksums = self._checked(order)
        if checksums is None:
            return Kept(seq=min(self.seq, order.first - 1), term=self._obeyed)
        self._obeyed = order.term
        self._take(order, checksums)
        return Kept(seq=order.first + len(order.lines) - 1, term=self._obeyed)

    def _checked(self, order: Keep) -> list[int] | None:
        """The checksums of these lines; None if they are not what was written."""
        if not all(_is_line(line) for line in order.lines):
            return None
        header = (self._lines[:1] if order.first else order.lines[:1]) or [b""]
        if header[0].startswith(lines.UNSEALED):
            return [0] * len(order.lines)
        return lines.follow(order.lines, self._checksums[order.first - 1] if order.first else 0)

    def _take(self, order: Keep, checksums: list[int]) -> None:
        held = self._lines[order.first : order.first + len(order.lines)]
        pairs = zip(held, order.lines, strict=False)
        same = next((i for i, (old, new) in enumerate(pairs) if old != new), len(held))
        if same < len(order.lines):
            self._lines[order.first + same :] = order.lines[same:]
            self._checksums[order.first + same :] = checksums[same:]
            self.term = order.term

    def copy(self) -> Iterator[JournalCopy]:
        """Everything that is held, in parts; one empty part if that is nothing."""
        whole = b"".join(self._lines)
        for offset in range(0, max(1, len(whole)), PART_BYTES):
            data = whole[offset : offset + PART_BYTES]
            yield JournalCopy(offset=offset, data=data, size=len(whole))


def _is_line(line: bytes) -> bool:
    return line.find(b"\n") == len(line) - 1 >= 0
