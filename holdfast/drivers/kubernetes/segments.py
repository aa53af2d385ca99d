"""A growing journal as compressed segments: each byte is compressed once, and closed ones rest.

The newest segment is open: what is new in the file is added to one stream of deflate, of which a
copy is finished whenever somebody wants to publish. Once it is as large as a ConfigMap should be,
it is closed. A new controller recognises segments that were published before by their digests.
"""

import gzip
import threading
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

import xxhash

from holdfast.drivers.kubernetes.sharded import ShardEntry, digest_of
from holdfast.drivers.kubernetes.sharding import ShardChunk

SEGMENT_BYTES = 560_000  # compressed; a block that is still in the compressor comes on top
BLOCK_BYTES = 64 * 1024
GZIP = 16 + zlib.MAX_WBITS


class Packed(NamedTuple):
    """The journal as far as it was read: segments that will not change, and the open one."""

    closed: tuple[ShardChunk, ...]
    open: bytes


class _Stream:
    """A segment that still grows."""

    def __init__(self) -> None:
        self.size = 0
        self.packed = bytearray()
        self._deflate = zlib.compressobj(wbits=GZIP)
        self._digest = xxhash.xxh3_128()

    def add(self, block: bytes) -> None:
        """More of the file."""
        self.size += len(block)
        self.packed += self._deflate.compress(block)
        self._digest.update(block)

    def finished(self) -> bytes:
        """What there would be if nothing came any more."""
        return bytes(self.packed) + self._deflate.copy().flush()

    @property
    def digest(self) -> str:
        """As of any other chunk."""
        return self._digest.hexdigest()


class Segments:
    """Reads a file that only grows; blocks, so it is for a thread beside the event loop."""

    def __init__(self, path: Path, published: Sequence[ShardEntry] = ()) -> None:
        self._path = path
        self._lock = threading.Lock()  # whoever waits for a thread can be cancelled, a thread not
        self._closed = _unchanged(path, published)
        self._start = sum(chunk.size for chunk in self._closed)  # of the open one
        self._open = _Stream()

    def advance(self) -> Packed:
        """Take in what is new, up to the last whole line."""
        with self._lock, self._path.open("rb") as file:
            while block := _block(file, self._start + self._open.size):
                self._open.add(block)
                if len(self._open.packed) >= SEGMENT_BYTES:
                    self._close()
            return Packed(tuple(self._closed), self._open.finished())

    def _close(self) -> None:
        done, packed = self._open, self._open.finished()
        self._closed.append(ShardChunk(done.digest, done.size, lambda: packed))
        self._start += done.size
        self._open = _Stream()


def _block(file: BinaryIO, start: int) -> bytes:
    """The next bytes; at the end of the file only whole lines."""
    file.seek(start)
    block = file.read(BLOCK_BYTES)
    return block if len(block) == BLOCK_BYTES else block[: block.rfind(b"\n") + 1]


def _unchanged(path: Path, published: Sequence[ShardEntry]) -> list[ShardChunk]:
    """Segments that were published before, as far as this is the same journal."""
    found: list[ShardChunk] = []
    with path.open("rb") as file:
        for entry in published:
            start = file.tell()
            content = file.read(entry.size)
            if digest_of(content) != entry.digest:
                break
            found.append(
                ShardChunk(entry.digest, entry.size, partial(_packed, path, start, entry.size))
            )
    return found


def _packed(path: Path, start: int, size: int) -> bytes:
    """For a segment that has vanished from the cluster."""
    with path.open("rb") as file:
        file.seek(start)
        return gzip.compress(file.read(size), 6, mtime=0)
