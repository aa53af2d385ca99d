"""The output of a container, as `pods/log` gives it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

POLL_S = 0.05


async def lines(path: Path, goes_on: Callable[[], bool], tail: int | None) -> AsyncIterator[bytes]:
    """What is there, and what comes as long as it goes on."""
    offset = 0
    whole = path.read_bytes() if path.is_file() else b""
    offset = len(whole)
    kept = whole.splitlines(keepends=True)
    first = kept if tail is None else kept[len(kept) - min(tail, len(kept)) :]
    if first:
        yield b"".join(first)
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
