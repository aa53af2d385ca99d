"""The snapshot arena of one rank: shared memory in which a copy is either whole or not there.

An arena is a memfd with cells: for each kind of content (`StatePart`) two, so that one can be
written while the other keeps the newest whole copy; a third one where copies of it are read for
long, by those who write to disks or to other nodes; and two for each rank whose copy is kept here.
A cell is a page of header and a payload. Its state word says EMPTY, WRITING or WHOLE and is stored
after everything else: payload and header, with the header's own checksum. So a SIGKILL at any
instruction leaves the other cell untouched and this one visibly unfinished.

The payload's checksum is the seal. Small payloads are sealed by the worker while it copies; large
ones by the agent's side right after, because a checksum would make training wait for half as long
again as the copy. Whoever reads a sealed cell trusts it only after the seal has matched.

Cells lie a tebibyte apart in a sparse file. A copy that grows (Adam makes its state in the first
step) then never moves anything: its cell gets more pages and the whole copy beside it stays valid.
"""

import ctypes
import errno
import mmap
import os
import struct
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from enum import IntEnum
from typing import NamedTuple

import xxhash

from holdfast.checkpoint.free_memory import free_memory
from holdfast.checkpoint.key import Key as Key
from holdfast.checkpoint.seal import BLOCK_BYTES, seal_of
from holdfast.errors import Error
from holdfast.files import require_memory

MAGIC = 0x3143_5241_4846_4F4C
HEADER_BYTES = 4096
STRIDE = 1 << 40
SLOTS = 3  # of a rank's own parts; the third is only used (and costs memory) where one is asked for
COPY_SLOTS = 2
COPIES_MAX = 3  # ranks whose private part one arena can keep
_STATE_AT = 8
_FIELDS_AT = 16
_FIELDS = struct.Struct("<qqqqQqqq")
_WORD = struct.Struct("<q")
_DIGEST = struct.Struct("<Q")
_DIGEST_AT = _FIELDS_AT + _FIELDS.size
_SEAL_AT = _DIGEST_AT + _DIGEST.size
_SEAL = struct.Struct("<QQ")  # checksum of the payload, checksum of that and the snapshot's key
_POPULATE_READ, _POPULATE_WRITE = 22, 23  # MADV_POPULATE_READ and _WRITE, Linux 5.14
_TOUCH_BYTES = 16 << 20  # at a time: whoever maps memory meanwhile waits for so much
_libc = ctypes.CDLL(None, use_errno=True)


class StatePart(IntEnum):
    """What a cell holds."""

    SHARED = 0  # state that is the same on every rank
    PRIVATE = 1  # state of this rank alone
    BUDDY = 2  # the PRIVATE parts of ranks on other nodes


OWN = (StatePart.SHARED, StatePart.PRIVATE)  # what a rank writes of itself


class CellState(IntEnum):
    """How far the writing of a cell is."""

    EMPTY = 0
    WRITING = 1
    WHOLE = 2


class CellHeader(NamedTuple):
    """What a whole cell says about its payload. The index follows the data."""

    attempt: int
    step: int
    rank: int
    world_size: int
    fingerprint: int  # of the names and shapes that were tracked
    data_bytes: int
    index_bytes: int
    flags: int = 0  # what is to become of it: see `tiers.SnapshotFlag`

    @property
    def key(self) -> Key:
        return Key(self.attempt, self.step)

    @property
    def payload_bytes(self) -> int:
        return self.data_bytes + self.index_bytes


def parse_header(memory: memoryview) -> CellHeader | None:
    """The header at the start of this memory; None unless it is marked whole and undamaged."""
    magic, state = struct.unpack_from("<qq", memory)
    if magic != MAGIC or state != CellState.WHOLE:
        return None
    (digest,) = _DIGEST.unpack_from(memory, _DIGEST_AT)
    if digest != xxhash.xxh3_64_intdigest(memory[_FIELDS_AT:_DIGEST_AT]):
        return None
    header = CellHeader(*_FIELDS.unpack_from(memory, _FIELDS_AT))
    sizes_make_sense = 0 <= header.data_bytes < STRIDE and 0 <= header.index_bytes < STRIDE
    return header if sizes_make_sense else None


class Cell:
    """One cell, mapped as far as it has been reserved."""

    def __init__(self, fd: int, number: int) -> None:
        self._fd = fd
        self._offset = number * STRIDE
        self._room = -1
        self._ahead: tuple[CellHeader, Future[int]] | None = None
        self._touching: Future[None] | None = None
        self._mapped_ahead: int | None = None  # of how many bytes `map_ahead` has mapped the pages
        self._ready = False  # whether what is mapped was, or is being, touched and prepared
        self.memory = memoryview(b"")

    def reserve(self, payload_bytes: int, *, touch: bool = True) -> None:
        """Make room for a payload, keeping what is there. Pages are touched now.

        Raises `Error` (snapshot-too-large) where the machine lacks the memory.
        """
        if payload_bytes <= self._room:
            return
        if touch:
            _require(self.lacks(payload_bytes))
        present = self._map(payload_bytes)
        if touch:
            _touch(self.memory, present)

    def reserve_beside(
        self,
        payload_bytes: int,
        least_bytes: int,
        pool: ThreadPoolExecutor,
        prepare: Callable[[memoryview], None] | None,
    ) -> None:
        """Make room for a payload, unless there is some for `least_bytes`. `pool` touches its
        pages, then calls `prepare` with the memory; `begin` waits for that. Of what was mapped
        ahead only what is missing is touched, and a thread is started only for what is to be
        done."""
        ahead, self._mapped_ahead = self._mapped_ahead, None
        if least_bytes > self._room:
            ahead, present = None, self._map(payload_bytes)
        else:
            present = self._present_bytes()
        begin = ahead or 0
        if not self._ready and (begin < len(self.memory) or prepare is not None):
            self._touching = pool.submit(_made_ready, self.memory, begin, present, prepare)
        self._ready = True

    def map_ahead(self, stops: Callable[[], bool]) -> None:
        """Map the pages that are there, until it `stops`: who waits for a rank has the time, and
        who has one would fault on each of them. No memory is taken but for page tables."""
        present = self._present_bytes()
        if present - HEADER_BYTES > self._room:
            self._map(present - HEADER_BYTES)
            self._mapped_ahead = 0
        begin = self._mapped_ahead
        while begin is not None and begin < len(self.memory) and not stops():
            if not _populate(self.memory[begin : begin + _TOUCH_BYTES], _POPULATE_READ):
                return
            self._mapped_ahead = begin = min(begin + _TOUCH_BYTES, len(self.memory))

    def lacks(self, payload_bytes: int) -> int:
        """Bytes of memory that have to be found for such a payload."""
        if payload_bytes <= self._room:
            return 0
        return max(0, _pages(HEADER_BYTES + payload_bytes) - self._present_bytes())

    def _map(self, payload_bytes: int) -> int:
        """Returns how many bytes of it have memory already."""
        length = _pages(HEADER_BYTES + payload_bytes)
        present = self._present_bytes()
        if os.fstat(self._fd).st_size < self._offset + length:
            os.ftruncate(self._fd, self._offset + length)
        self.memory = memoryview(mmap.mmap(self._fd, length, offset=self._offset))
        self._room = length - HEADER_BYTES
        self._ready = False
        return present

    @property
    def payload(self) -> memoryview:
        """The reserved payload, writable."""
        return self.memory[HEADER_BYTES:]

    def begin(self) -> None:
        """From here until `commit` the cell counts as unfinished."""
        touching, self._touching = self._touching, None
        if touching is not None:
            touching.result()
        self._ahead = None
        _WORD.pack_into(self.memory, 0, MAGIC)
        _WORD.pack_into(self.memory, _STATE_AT, CellState.WRITING)
        _SEAL.pack_into(self.memory, _SEAL_AT, 0, 0)

    def commit(self, header: CellHeader, checksum: int | None = None) -> None:
        """The payload is complete. The state is stored last, as one aligned word.

        `checksum` is that of the payload (`seal`), None to have it sealed by somebody else.
        """
        _FIELDS.pack_into(self.memory, _FIELDS_AT, *header)
        fields = self.memory[_FIELDS_AT:_DIGEST_AT]
        _DIGEST.pack_into(self.memory, _DIGEST_AT, xxhash.xxh3_64_intdigest(fields))
        if checksum is not None:
            self._store_seal(header.key, checksum)
        _WORD.pack_into(self.memory, _STATE_AT, CellState.WHOLE)

    def stamp(self) -> bytes:
        """State, header and seal as they lie there: other bytes whenever the cell has changed."""
        return bytes(self.memory[: _SEAL_AT + _SEAL.size]) if self._map_header() else b""

    def sealed(self) -> int | None:
        """The checksum of the payload; None while nothing whole is here or it is not sealed."""
        header = self.header()
        return None if header is None else parse_seal(self.memory, header.key)

    def seal(self) -> bool:
        """Seal what is whole and not sealed yet; whether a seal was set.

        The cell may be overwritten meanwhile: then the seal names a snapshot that is not here any
        more, which counts as none.
        """
        header = self.header()
        if header is None or parse_seal(self.memory, header.key) is not None:
            return False
        self.reserve(header.payload_bytes, touch=False)
        self._store_seal(header.key, self._digest(header))
        return True

    def _store_seal(self, key: Key, checksum: int) -> None:
        _SEAL.pack_into(self.memory, _SEAL_AT, checksum, _seal_of(key, checksum))

    def _digest(self, header: CellHeader) -> int:
        return seal_of(self.payload[: header.payload_bytes])

    def discard(self) -> None:
        """Forget what the cell holds."""
        if self._map_header():
            _WORD.pack_into(self.memory, _STATE_AT, CellState.EMPTY)

    def header(self) -> CellHeader | None:
        """What the cell holds, or None unless it is marked whole and fits into the file.

        The payload itself is not looked at: see `intact`.
        """
        if not self._map_header():
            return None
        header = parse_header(self.memory)
        if header is None:
            return None
        end = self._offset + HEADER_BYTES + header.payload_bytes
        return header if end <= os.fstat(self._fd).st_size else None

    def look_ahead(self, pool: ThreadPoolExecutor, cores: int) -> None:
        """Begin to take the checksum of what is here, for the next `intact`."""
        header = self.header()
        if header is not None and header.payload_bytes > BLOCK_BYTES:
            self.reserve(header.payload_bytes, touch=False)
            payload = self.payload[: header.payload_bytes]
            self._ahead = header, pool.submit(seal_of, payload, cores)

    def intact(self) -> bool:
        """Whether the payload is, byte for byte, the one that was sealed.

        One that the agent had no time to seal is taken as it is, and sealed now.
        """
        header = self.header()
        if header is None:
            return False
        self.reserve(header.payload_bytes, touch=False)
        (known, ahead), self._ahead = self._ahead or (None, None), None
        found = ahead.result() if ahead and known == header else self._digest(header)
        sealed = parse_seal(self.memory, header.key)
        if sealed is None:
            self._store_seal(header.key, found)
        return sealed in (None, found)

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


class Arena:
    """All cells of one rank. The file belongs to the agent; a worker only maps it."""

    def __init__(self, fd: int) -> None:
        require_memory(fd, "holdfast-arena")
        numbers = iter(range(2 * SLOTS + COPY_SLOTS * COPIES_MAX))
        counts = {
            StatePart.SHARED: SLOTS,
            StatePart.PRIVATE: SLOTS,
            StatePart.BUDDY: COPY_SLOTS * COPIES_MAX,
        }
        self._cells = {
            part: tuple(Cell(fd, next(numbers)) for _ in range(count))
            for part, count in counts.items()
        }

    @staticmethod
    def create() -> int:
        """A new, empty arena as a memfd; it vanishes with its last holder."""
        return os.memfd_create("holdfast-arena", os.MFD_CLOEXEC)

    def cells(self, part: StatePart) -> tuple[Cell, ...]:
        """Both cells of a part."""
        return self._cells[part]

    def reserve(
        self,
        sizes: Mapping[StatePart, int],
        slots: int,
        prepare: Callable[[memoryview], None] | None = None,
        least: Mapping[StatePart, int] | None = None,
    ) -> None:
        """Make room for payloads of these sizes, in the first `slots` cells of each part. A thread
        touches the pages and calls `prepare` with the memory of each cell, in time for its `begin`:
        what comes first here, a restore and a step, need not wait for that. A cell that is mapped
        and has room for `least` stays as it is: to map it anew costs a fault for each of its pages.

        Raises `Error` (snapshot-too-large) where the machine lacks the memory for all of it.
        """
        wanted = {part: self._by_turn(part, slots) for part in sizes}
        enough = least or sizes
        lacking = [(p, c) for p, cells in wanted.items() for c in cells if c.lacks(enough[p])]
        _require(sum(cell.lacks(sizes[part]) for part, cell in lacking))
        pool = ThreadPoolExecutor(1, thread_name_prefix="touch")
        for turn in zip(*wanted.values(), strict=True):
            for part, cell in sorted(zip(wanted, turn, strict=True), key=lambda p: sizes[p[0]]):
                cell.reserve_beside(sizes[part], enough[part], pool, prepare)
        pool.shutdown(wait=False)

    def _by_turn(self, part: StatePart, slots: int) -> list[Cell]:
        """The cells of a part in the order in which they are written next."""
        return sorted(self._cells[part][:slots], key=lambda cell: _age(cell.header()))

    def map_ahead(self, stops: Callable[[], bool]) -> None:
        """Map all that is there, until it `stops`."""
        for cells in self._cells.values():
            for cell in cells:
                cell.map_ahead(stops)

    def look_ahead(self, cores: int) -> None:
        """Begin to verify this rank's own parts of its newest snapshot, on so many cores.

        A worker has other things to do before it restores. Nothing may write here meanwhile.
        """
        headers = (cell.header() for part in OWN for cell in self._cells[part])
        newest = max((header.key for header in headers if header), default=None)
        cells = [newest and self.find(part, newest) for part in OWN]
        pool = ThreadPoolExecutor(1, thread_name_prefix="verify")  # one after the other
        for cell in filter(None, cells):
            cell.look_ahead(pool, cores)
        pool.shutdown(wait=False)

    def find(self, part: StatePart, key: Key, rank: int | None = None) -> Cell | None:
        """The cell that holds this snapshot, if one does; of this rank, if one is named."""
        for cell in self._cells[part]:
            header = cell.header()
            if header is not None and header.key == key and rank in (None, header.rank):
                return cell
        return None

    def target(self, part: StatePart, keep: Collection[Key], slots: int = 2) -> Cell | None:
        """The cell of the SHARED or PRIVATE part to write next, one of the first `slots`.

        An empty one, else the oldest of those that hold nothing of `keep`; None if there is none.
        """
        found = [(cell, cell.header()) for cell in self._cells[part][:slots]]
        free = [(cell, header) for cell, header in found if not header or header.key not in keep]
        return min(free, key=lambda pair: _age(pair[1]), default=(None, None))[0]

    def target_for(self, rank: int, keep: Key | None) -> Cell:
        """Where to write a copy for another rank: an empty cell or an older copy of that rank.

        A rank has at most two cells. Where both hold `keep` (a copy that was sent again), either
        will do. With all cells taken by other ranks, one of those that are kept for nobody any
        more has to give way: the oldest.
        """
        found = [(cell, cell.header()) for cell in self._cells[StatePart.BUDDY]]
        own = [(cell, header) for cell, header in found if header and header.rank == rank]
        empty = [cell for cell, header in found if header is None]
        if len(own) < COPY_SLOTS and empty:
            return empty[0]
        choice = own or [(cell, header) for cell, header in found if header]
        return min(choice, key=lambda pair: (pair[1].key == keep, pair[1].key))[0]


def parse_seal(memory: memoryview, key: Key) -> int | None:
    """The checksum in the seal at the start of this memory, None unless it is for this snapshot."""
    checksum, own = _SEAL.unpack_from(memory, _SEAL_AT)
    return int(checksum) if own == _seal_of(key, checksum) else None


def _seal_of(key: Key, checksum: int) -> int:
    return xxhash.xxh3_64_intdigest(struct.pack("<qqQ", *key, checksum), seed=1)


def _age(header: CellHeader | None) -> tuple[int, ...]:
    return () if header is None else header.key


def _pages(length: int) -> int:
    return -(-length // mmap.PAGESIZE) * mmap.PAGESIZE


def _require(more_bytes: int) -> None:
    if more_bytes <= 0:
        return
    found = free_memory()
    if more_bytes > found.free_bytes:
        mib = 1 << 20
        raise Error(
            "snapshot-too-large",
            f"a snapshot needs {more_bytes / mib:.0f} MiB more, "
            f"{found.free_bytes / mib:.0f} MiB of {found.of} are free",
            why="the state of each worker is kept twice, or three times with durable tiers or "
            "large copies, and the state of ranks on other nodes twice for each copy kept "
            "here",
            help="track less, use fewer workers per node or snapshots.copies, or more memory",
        )


def _made_ready(
    memory: memoryview, begin: int, present: int, prepare: Callable[[memoryview], None] | None
) -> None:
    _touch(memory, present, begin)
    if prepare is not None:
        prepare(memory)


def _touch(memory: memoryview, present: int = 0, begin: int = 0) -> None:
    """Find memory for all pages from `begin` on. The first `present` bytes have it: to map them as
    for reading, many at a time, costs a third, and they can be written to all the same."""
    for at in range(begin, len(memory), _TOUCH_BYTES):
        part = memory[at : at + _TOUCH_BYTES]
        there = at + len(part) <= present
        if not _populate(part, _POPULATE_READ if there else _POPULATE_WRITE):
            _touch_by_hand(part)


def _populate(memory: memoryview, advice: int) -> bool:
    """Whether the kernel knows how. Python's own `madvise` would keep all other threads waiting.

    Raises `OSError` where there is no memory.
    """
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    failed = _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(len(memory)), advice)
    if failed and ctypes.get_errno() != errno.EINVAL:
        raise OSError(ctypes.get_errno(), "no memory for a snapshot")
    return not failed


def _touch_by_hand(memory: memoryview) -> None:
    """On kernels before 5.14."""
    for at in range(0, len(memory), mmap.PAGESIZE):
        memory[at] = memory[at]
