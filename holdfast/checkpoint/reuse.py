"""What the rank's previous checkpoint holds already, and whether to refer to it pays.

A reference keeps a whole file alive: a few bytes that never change would keep a copy of everything
beside each checkpoint. So a file is referred to only if about half of it or more is still of use.
How much that is, is estimated before the save from some chunks, drawn evenly by bytes, because to
know it exactly would mean to read everything twice.

Every `FRESH_EVERY` saves, and in the first of an attempt, all is written anew: so a file that went
bad cannot spoil the whole history, nor what is saved after it was found.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from holdfast.checkpoint.manifest import Chunk, RankPart, digest
from holdfast.checkpoint.stores import CheckpointStore

FRESH_EVERY = 16
SAMPLES = 64
PAYS = 0.5  # share of a file that has to be of use


class KnownChunks:
    """Chunks of the previous checkpoint, by content."""

    def __init__(self, store: CheckpointStore, previous: RankPart | None, attempt: int) -> None:
        self._store = store
        usable = previous if previous and previous.attempt == attempt else None
        self._fresh = usable.fresh + 1 if usable and usable.fresh + 1 < FRESH_EVERY else 0
        chunks = usable.chunks() if usable and self._fresh else ()
        self._chunks = {(chunk.xxh3_128, chunk.length): chunk for chunk in chunks}
        self._sizes: dict[str, int] = {}  # of the files that pay
        self._used = False

    @property
    def fresh(self) -> int:
        """How many saves ago all was written anew; 0 if nothing was referred to."""
        return self._fresh if self._used else 0

    def judge(self, pieces: Sequence[memoryview]) -> None:
        """Estimate which files pay, by what is to be saved, chunk by chunk."""
        total = sum(map(len, pieces))
        if not self._chunks or not total:
            return
        hits = Counter[str]()
        for piece, count in _sample(pieces, total / SAMPLES):
            if chunk := self._chunks.get((digest(piece), len(piece))):
                hits[chunk.file] += count
        sizes = {file: self._store.size(file) or 0 for file in hits}
        of_use = {file: count * total / SAMPLES for file, count in hits.items()}
        self._sizes = {file: sizes[file] for file in hits if of_use[file] >= PAYS * sizes[file]}

    def find(self, content: str, length: int) -> Chunk | None:
        """A chunk with this content, in a file that is there and pays."""
        chunk = self._chunks.get((content, length))
        if chunk is None or chunk.at + length > self._sizes.get(chunk.file, 0):
            return None
        self._used = True
        return chunk


def _sample(pieces: Sequence[memoryview], distance: float) -> Iterator[tuple[memoryview, int]]:
    """The pieces in which points lie that have this distance in bytes, and how many points."""
    end, taken = 0, 0
    for piece in pieces:
        end += len(piece)
        points = int(end / distance + 0.5)  # the first lies half a distance from the start
        if points > taken:
            yield piece, points - taken
        taken = points
