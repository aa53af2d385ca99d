"""Snapshots in huge pages: shared memory mapped so that it can have some, and gathered into them.

A snapshot of 320 MiB is 80,000 pages of 4 KiB. A process that ends gives its mapping of each of
them back, while everybody waits for its end, and the next one maps them anew. In huge pages both
are over in two milliseconds, and a snapshot is written in four fifths of the time. Linux gives
shared memory none by itself (`shmem_enabled` is `never` in most distributions) and, since 6.1, does
so where it is asked to gather what is there (MADV_COLLAPSE). That costs more than a copy, and
whoever uses the memory meanwhile waits for the page in question: so it is done bit by bit once a
snapshot is there (`agent.storage.huge_snapshots`), not when memory is found.

A huge page can be mapped as one only where file and address have the same place within it, which
Python's `mmap` leaves to chance: so room for one more is mapped, and the file over what fits.
"""

import ctypes
import mmap
import os

HUGE_BYTES = 2 << 20
SWITCH = "HOLDFAST_HUGE_PAGES"
_COLLAPSE = 25  # MADV_COLLAPSE
_FIXED, _NORESERVE = 0x10, 0x4000
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_long]
_FAILED = ctypes.c_void_p(-1).value


def mapped(fd: int, length: int, offset: int) -> memoryview:
    """This part of a file, writable and shared, and where huge pages can be mapped if it has room
    for one. `offset` is a multiple of theirs."""
    if length >= HUGE_BYTES:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        try:
            room = mmap.mmap(-1, length + HUGE_BYTES, flags=flags)
        except OSError:  # the kernel commits no more than there is
            return memoryview(mmap.mmap(fd, length, offset=offset))
        start = -_address(memoryview(room)) % HUGE_BYTES
        memory = memoryview(room)[start : start + length]  # `room` goes with it, and all of this
        rights = mmap.PROT_READ | mmap.PROT_WRITE
        place = _libc.mmap(
            *(_address(memory), length, rights, mmap.MAP_SHARED | _FIXED, fd, offset)
        )
        if place != _FAILED:
            return memory
    return memoryview(mmap.mmap(fd, length, offset=offset))


def gather(memory: memoryview) -> bool:
    """Put what is in this memory into huge pages, the same bytes; whether that is done. `mapped`
    has given it, at a multiple of `HUGE_BYTES`; what is left over at its end stays. An older kernel
    does not, nor where memory is pinned for a GPU, or no 2 MiB in one piece are found."""
    length = len(memory) // HUGE_BYTES * HUGE_BYTES
    if not length or os.environ.get(SWITCH) == "0":
        return False
    failed = _libc.madvise(
        *(ctypes.c_void_p(_address(memory)), ctypes.c_size_t(length), ctypes.c_int(_COLLAPSE))
    )
    return not failed


def _address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
