"""The output of a container, as `pods/log` gives it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

POLL_S = 0.05


class Extent(NamedTuple):
    """How much of what is there is asked for."""

    tail: int | None  # lines
    since: float | None  # seconds since the epoch; lines have no times here, only the whole has

    def of(self, whole: bytes, written_at: float) -> bytes:
        """The part of a log."""
        kept = whole.splitlines(keepends=True)
        if self.since is not None and written_at < self.since:
            kept = []
        return b"".join(kept if self.tail is None else kept[max(0, len(kept) - self.tail) :])


async def lines(path: Path, goes_on: Callable[[], bool], extent: Extent) -> AsyncIterator[bytes]:
    """What is there, and what comes as long as it goes on."""
    whole = path.read_bytes() if path.is_file() else b""
    offset = len(whole)
    if first := extent.of(whole, path.stat().st_mtime if whole else 0.0):
        yield first
    more = True
    while more:
        more = goes_on()
        if path.is_file():
            with path.open("rb") as file:
                file.seek(offset)
                piece = file.read()
            if piece:
                offset += len(piece)
                yield piece
        if more:
            await asyncio.sleep(POLL_S)
