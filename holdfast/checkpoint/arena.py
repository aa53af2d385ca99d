"""The snapshot arena of one rank: shared memory in which a copy is either whole or not there.

An arena is a memfd with six cells: for each kind of content (`Part`) two, so that one can be
written while the other keeps the newest whole copy. A cell is a page of header and a payload. Its
state word says EMPTY, WRITING or WHOLE and is stored after everything else: payload, its checksum
and the header's own. So a SIGKILL at any instruction leaves the other cell untouched and this one
visibly unfinished. Whoever reads trusts a cell only after both checksums match.

Cells lie a tebibyte apart in a sparse file. A copy that grows (Adam makes its state in the first
step) then never moves anything: its cell gets more pages and the whole copy beside it stays valid.
"""

import mmap
import os
import struct
from enum import IntEnum
from typing import NamedTuple

import xxhash

from holdfast.checkpoint.key import Key as Key
from holdfast.errors import Error

MAGIC = 0x3143_5241_4846_4F4C
HEADER_BYTES = 4096
STRIDE = 1 << 40
SLOTS = 2
_STATE_AT = 8
_FIELDS_AT = 16
_FIELDS = struct.Struct("<qqqqQqqQ")
_WORD = struct.Struct("<q")
_DIGEST = struct.Struct("<Q")
_DIGEST_AT = _FIELDS_AT + _FIELDS.size
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14


class Part(IntEnum):
    """What a cell holds."""

    SHARED = 0  # state that is the same on every rank
    PRIVATE = 1  # state of this rank alone
    BUDDY = 2  # the PRIVATE part of a rank on another node


class State(IntEnum):
    """How far the writing of a cell is."""

    EMPTY = 0
    WRITING = 1
    WHOLE = 2


class Header(NamedTuple):
    """What a whole cell says about its payload. The index follows the data."""

    attempt: int
    step: int
    rank: int
    world_size: int
    fingerprint: int  # of the names and shapes that were tracked
    data_bytes: int
    index_bytes: int
    checksum: int  # xxh3_64 of data and index

    @property
    def key(self) -> Key:
        return Key(self.attempt, self.step)

    @property
    def payload_bytes(self) -> int:
        return self.data_bytes + self.index_bytes


def parse_header(memory: memoryview) -> Header | None:
    """The header at the start of this memory; None unless it is marked whole and undamaged."""
    magic, state = struct.unpack_from("<qq", memory)
    if magic != MAGIC or state != State.WHOLE:
        return None
    (digest,) = _DIGEST.unpack_from(memory, _DIGEST_AT)
    if digest != xxhash.xxh3_64_intdigest(memory[_FIELDS_AT:_DIGEST_AT]):
        return None
    header = Header(*_FIELDS.unpack_from(memory, _FIELDS_AT))
    sizes_make_sense = 0 <= header.data_bytes < STRIDE and 0 <= header.index_bytes < STRIDE
    return header if sizes_make_sense else None


class Cell:
    """One cell, mapped as far as it has been reserved."""

    def __init__(self, fd: int, slot: int, part: Part) -> None:
        self._fd = fd
        self._offset = (slot * len(Part) + part) * STRIDE
        self._room = -1
        self.memory = memoryview(b"")

    def reserve(self, payload_bytes: int, *, touch: bool = True) -> None:
        """Make room for a payload, keeping what is there. Pages are touched now, not in a step.

        Raises `Error` (snapshot-too-large) where the machine lacks the memory.
        """
        if payload_bytes <= self._room:
            return
        length = _pages(HEADER_BYTES + payload_bytes)
        if touch:
            _require(length - self._present_bytes())
        if os.fstat(self._fd).st_size < self._offset + length:
            os.ftruncate(self._fd, self._offset + length)
        mapped = mmap.mmap(self._fd, length, offset=self._offset)
        if touch:
            _touch(mapped, length)
        self.memory = memoryview(mapped)
        self._room = length - HEADER_BYTES

    @property
    def payload(self) -> memoryview:
        """The reserved payload, writable."""
        return self.memory[HEADER_BYTES:]

    def begin(self) -> None:
        """From here until `commit` the cell counts as unfinished."""
        _WORD.pack_into(self.memory, 0, MAGIC)
        _WORD.pack_into(self.memory, _STATE_AT, State.WRITING)

    def commit(self, header: Header) -> None:
        """The payload is complete. The state is stored last, as one aligned word."""
        _FIELDS.pack_into(self.memory, _FIELDS_AT, *header)
        fields = self.memory[_FIELDS_AT:_DIGEST_AT]
        _DIGEST.pack_into(self.memory, _DIGEST_AT, xxhash.xxh3_64_intdigest(fields))
        _WORD.pack_into(self.memory, _STATE_AT, State.WHOLE)

    def discard(self) -> None:
        """Forget what the cell holds."""
        if self._map_header():
            _WORD.pack_into(self.memory, _STATE_AT, State.EMPTY)

    def header(self) -> Header | None:
        """What the cell holds, or None unless it is marked whole and fits into the file.

        The payload itself is not looked at: see `intact`.
        """
        if not self._map_header():
            return None
        header = parse_header(self.memory)
        return header if header is not None and self._fits(header) else None

    def intact(self) -> bool:
        """Whether the payload is, byte for byte, the one that was committed."""
        header = self.header()
        if header is None:
            return False
        self.reserve(header.payload_bytes, touch=False)
        found = xxhash.xxh3_64_intdigest(self.payload[: header.payload_bytes])
        return found == header.checksum

    def _present_bytes(self) -> int:
        """Memory the cell has from an earlier worker: it need not be found again."""
        try:
            return os.lseek(self._fd, self._offset, os.SEEK_HOLE) - self._offset
        except OSError:  # the file ends before this cell
            return 0

    def _map_header(self) -> bool:
        if os.fstat(self._fd).st_size < self._offset + HEADER_BYTES:
            return False
        if self._room < 0:
            self.reserve(0, touch=False)
        return True

    def _fits(self, header: Header) -> bool:
        end = self._offset + HEADER_BYTES + header.payload_bytes
        return end <= os.fstat(self._fd).st_size


class Arena:
    """The six cells of one rank. The file belongs to the agent; a worker only maps it."""

    def __init__(self, fd: int) -> None:
        self._cells = {p: tuple(Cell(fd, s, p) for s in range(SLOTS)) for p in Part}

    @staticmethod
    def create() -> int:
        """A new, empty arena as a memfd; it vanishes with its last holder."""
        return os.memfd_create("holdfast-arena", os.MFD_CLOEXEC)

    def cells(self, part: Part) -> tuple[Cell, ...]:
        """Both cells of a part."""
        return self._cells[part]

    def find(self, part: Part, key: Key) -> Cell | None:
        """The cell that holds this snapshot, if one does."""
        for cell in self._cells[part]:
            header = cell.header()
            if header is not None and header.key == key:
                return cell
        return None

    def target(self, part: Part, keep: Key | None) -> Cell:
        """The cell to write next: an empty one, else one that does not hold `keep`.

        Where both hold it (a buddy's copy that was sent again), either will do.
        """

        def cost(cell: Cell) -> int:
            header = cell.header()
            return 0 if header is None else 1 + (header.key == keep)

        return min(self._cells[part], key=cost)


def _pages(length: int) -> int:
    return -(-length // mmap.PAGESIZE) * mmap.PAGESIZE


def _require(more_bytes: int) -> None:
    free = _available_bytes()
    if more_bytes > free:
        mib = 1 << 20
        raise Error(
            "snapshot-too-large",
            f"a snapshot needs {more_bytes / mib:.0f} MiB more, {free / mib:.0f} MiB are free",
            why="two copies of the tracked state are kept in memory beside the training itself",
            help="track less, use fewer workers per node, or a machine with more memory",
        )


def _available_bytes() -> int:
    with open("/proc/meminfo") as file:
        fields = dict(line.split(":", 1) for line in file)
    return int(fields["MemAvailable"].split()[0]) * 1024


def _touch(mapped: mmap.mmap, length: int) -> None:
    try:
        mapped.madvise(_POPULATE_WRITE)
    except OSError:  # kernels before 5.14
        for at in range(0, length, mmap.PAGESIZE):
            mapped[at] = mapped[at]
