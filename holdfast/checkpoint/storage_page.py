"""What a worker and the storage process of its node tell each other: one page of shared memory.

The storage page of a local rank outlives its workers, like the arena. Each word has one writer and
is an aligned 8-byte store, so it is seen whole. Pairs that belong together are written between two
counts (odd while that goes on), and read until both counts agree.

    worker  → storage   who it is, where it stands, which ranks keep its copies and where they are,
                        which snapshot is whole on all ranks, and which one will never be
    storage → worker    what may be overwritten, what is safe elsewhere, what saving costs,
                        that the node is about to go, or the attempt to end
"""

import mmap
import os
import struct
import time
from enum import IntEnum
from typing import NamedTuple

import msgspec
import xxhash

from holdfast.checkpoint.key import Key
from holdfast.checkpoint.tiers import Tier
from holdfast.decoding import known
from holdfast.files import require_memory

STORAGE_PAGE_BYTES = 64 * 1024
_TEXT_AT = 1024
_TEXT_HEAD = struct.Struct("<QQ")  # length, checksum
_PAIR = struct.Struct("<qq")
_NO_KEY = Key(-1, -1)


class _Word(IntEnum):
    """Index of each 8-byte word. A key takes three: its count, then attempt and step."""

    URGENT = 0  # monotonic time until which this node lives; 0: nothing to fear
    RELEASED = 1  # newest snapshot for durable tiers that is not read any more
    COPIED = 4  # newest snapshot that is whole on every rank that keeps copies
    INFO_COUNT = 7
    TIERS = 8  # for each tier, four words: see `SaveStatus`
    VOID = 20  # newest snapshot that all ranks have given up
    MET = 23  # newest snapshot that is known to be whole on all ranks
    HOLDS = 26  # whether the attempt ends with the snapshot that is urgent


class Peer(msgspec.Struct, frozen=True):
    """A rank that keeps a copy: where its agent listens, and which of its arenas takes it."""

    rank: int
    address: str  # HOST:PORT
    local_rank: int


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says about itself once it has a rank and knows what it continues from.

    `parent` is what it restored (attempt, step), None when it began from nothing.
    """

    attempt: int
    rank: int
    world_size: int
    local_world_size: int
    parent: Key | None
    peers: tuple[Peer, ...] = ()  # who keeps copies of this rank; empty: nobody, or gloo does it


class SaveStatus(NamedTuple):
    """What is known of one durable tier."""

    step: int = -1  # of the newest committed checkpoint; -1: none yet
    at: float = 0.0  # monotonic, when the snapshot that it holds was taken up; 0: none yet
    seconds: float = 0.0  # that the last save took, start to commit; 0: none yet
    failures: int = 0  # in a row


class StoragePage:
    """One mapped storage page; the same class for both sides."""

    def __init__(self, fd: int) -> None:
        require_memory(fd, "holdfast-storage-page", STORAGE_PAGE_BYTES)
        self._map = mmap.mmap(fd, STORAGE_PAGE_BYTES)
        view = memoryview(self._map)
        self._ints = view.cast("q")
        self._floats = view.cast("d")

    @staticmethod
    def create() -> int:
        """A new, empty storage page as a memfd; it vanishes with its last holder."""
        fd = os.memfd_create("holdfast-storage-page", os.MFD_CLOEXEC)
        os.ftruncate(fd, STORAGE_PAGE_BYTES)
        storage_page = StoragePage(fd)
        storage_page.release(None)
        storage_page.copied(None)
        storage_page.void(None)
        storage_page.met(None)
        for tier in Tier:
            storage_page.saved(tier, SaveStatus())
        storage_page.close()
        return fd

    def close(self) -> None:
        """Unmap; the memory stays while another process maps it."""
        self._ints.release()
        self._floats.release()
        self._map.close()

    # ── written by the worker ──

    def introduce(self, info: WorkerInfo) -> None:
        """Say who this worker is. Raises `ValueError` for worker info that does not fit."""
        text = msgspec.json.encode(info)
        if len(text) > STORAGE_PAGE_BYTES - _TEXT_AT - _TEXT_HEAD.size:
            raise ValueError(f"worker info of {len(text)} bytes")
        start = _TEXT_AT + _TEXT_HEAD.size
        self._map[start : start + len(text)] = text
        _TEXT_HEAD.pack_into(self._map, _TEXT_AT, len(text), xxhash.xxh3_64_intdigest(text))
        self._ints[_Word.INFO_COUNT] += 1

    @property
    def info_count(self) -> int:
        """Grows with every new worker info: cheap to look at."""
        return self._ints[_Word.INFO_COUNT]

    def info(self) -> WorkerInfo | None:
        """The last worker info; None while there is none or it is just being written."""
        length, checksum = _TEXT_HEAD.unpack_from(self._map, _TEXT_AT)
        start = _TEXT_AT + _TEXT_HEAD.size
        text = self._map[start : start + min(length, STORAGE_PAGE_BYTES - start)]
        if length == 0 or xxhash.xxh3_64_intdigest(text) != checksum:
            return None
        return msgspec.json.decode(text, type=known(WorkerInfo))

    def void(self, key: Key | None) -> None:
        """All ranks have given this snapshot up: some part of it is not what it should be."""
        _put(self, _Word.VOID, key)

    @property
    def voided(self) -> Key | None:
        """The newest snapshot that was given up."""
        return _get(self, _Word.VOID)

    def met(self, key: Key | None) -> None:
        """All ranks have met, and have this snapshot whole."""
        _put(self, _Word.MET, key)

    @property
    def newest_met(self) -> Key | None:
        """The newest snapshot that is known to be whole on all ranks."""
        return _get(self, _Word.MET)

    # ── written by the storage process ──

    def warn(self, deadline: float, *, holds: bool = False) -> None:
        """The node lives until this monotonic time, or (0) for good. `holds`: what is done after
        the snapshot that is taken because of it will be done again."""
        self._ints[_Word.HOLDS] = int(holds)
        self._floats[_Word.URGENT] = deadline

    @property
    def urgent(self) -> bool:
        """Whether the node is about to go."""
        return self._floats[_Word.URGENT] > time.monotonic()

    @property
    def hold_s(self) -> float:
        """For how long training stands still after the urgent snapshot at most; 0: it goes on."""
        left_s = self._floats[_Word.URGENT] - time.monotonic()
        return max(0.0, left_s) if self._ints[_Word.HOLDS] else 0.0

    def release(self, key: Key | None) -> None:
        """Snapshots for durable tiers up to this one are saved or given up: not read any more."""
        _put(self, _Word.RELEASED, key)

    @property
    def released(self) -> Key | None:
        """The newest snapshot for durable tiers that may be overwritten.

        The worker leaves the cells of a newer one alone from the moment it is written, so that it
        need not be caught in time.
        """
        return _get(self, _Word.RELEASED)

    def copied(self, key: Key | None) -> None:
        """This snapshot of the rank is whole with all its peers."""
        _put(self, _Word.COPIED, key)

    @property
    def newest_copied(self) -> Key | None:
        """The newest snapshot that all peers have."""
        return _get(self, _Word.COPIED)

    def saved(self, tier: Tier, saved: SaveStatus) -> None:
        """How saving to this tier goes."""
        word = _Word.TIERS + len(SaveStatus._fields) * tier
        self._floats[word + 1] = saved.at
        self._floats[word + 2] = saved.seconds
        self._ints[word + 3] = saved.failures
        self._ints[word] = saved.step

    def of_tier(self, tier: Tier) -> SaveStatus:
        """How saving to this tier goes."""
        word = _Word.TIERS + len(SaveStatus._fields) * tier
        ints, floats = self._ints, self._floats
        return SaveStatus(ints[word], floats[word + 1], floats[word + 2], ints[word + 3])


def _put(page: StoragePage, word: _Word, key: Key | None) -> None:
    count = page._ints[word] // 2 * 2
    page._ints[word] = count + 1
    _PAIR.pack_into(page._map, 8 * (word + 1), *(key or _NO_KEY))
    page._ints[word] = count + 2


def _get(page: StoragePage, word: _Word) -> Key | None:
    while True:
        before = page._ints[word]
        key = Key(*_PAIR.unpack_from(page._map, 8 * (word + 1)))
        if before % 2 == 0 and page._ints[word] == before:
            return None if key == _NO_KEY else key
        if before % 2 == 1:  # the writer died in between, or is about to finish
            time.sleep(0.001)
            if page._ints[word] == before:
                return None
