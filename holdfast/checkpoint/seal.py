"""The checksum of a payload: of its blocks, and of their checksums.

A single running checksum of many gigabytes keeps one core busy for seconds while a restart waits
for it. Blocks can be taken by several threads (xxhash lets the interpreter's lock go); whoever sees
the bytes one after the other gets the same number from `Seal`.
"""

import os
from concurrent.futures import ThreadPoolExecutor

import xxhash

BLOCK_BYTES = 16 << 20
THREADS_MAX = 8


class Seal:
    """The checksum of bytes that come piece by piece."""

    def __init__(self) -> None:
        self._blocks = xxhash.xxh3_64()
        self._block = xxhash.xxh3_64()
        self._room = BLOCK_BYTES

    def update(self, data: bytes | memoryview) -> None:
        """More bytes."""
        view = memoryview(data).cast("B")
        while len(view) > self._room:
            self._block.update(view[: self._room])
            view = view[self._room :]
            self._blocks.update(self._block.digest())
            self._block = xxhash.xxh3_64()
            self._room = BLOCK_BYTES
        self._block.update(view)
        self._room -= len(view)

    def intdigest(self) -> int:
        """The checksum of all that came: xxh3_64 of the xxh3_64 of each block, big-endian. The last
        block may be short; there is at least one."""
        whole = self._blocks.copy()
        whole.update(self._block.digest())
        return int(whole.intdigest())


def seal_of(memory: bytes | memoryview, cores: int | None = None) -> int:
    """The checksum of memory, by several threads where it is large; `cores` are all by default."""
    view = memoryview(memory).cast("B")
    starts = range(0, max(len(view), 1), BLOCK_BYTES)
    blocks = (view[at : at + BLOCK_BYTES] for at in starts)
    threads = min(len(starts), cores or len(os.sched_getaffinity(0)), THREADS_MAX)
    if threads == 1:
        digests = [xxhash.xxh3_64_digest(block) for block in blocks]
    else:
        with ThreadPoolExecutor(threads) as pool:
            digests = list(pool.map(xxhash.xxh3_64_digest, blocks))
    return xxhash.xxh3_64_intdigest(b"".join(digests))
