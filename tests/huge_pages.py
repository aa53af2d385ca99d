"""Makes a process that is forked often cheap to fork: what it has is kept in pages of 2 MiB.

A fork copies an entry for each page that was written to, and the end of the child takes them back.
With PyTorch imported that is 70,000 entries and 20 ms of a core, and a job is a dozen forks; with
huge pages it is 5 ms. What a child writes to is still copied in pages of 4 KiB.
"""

import ctypes
import gc
from collections.abc import Iterator
from pathlib import Path

MADV_COLLAPSE = 25
HUGE = 1 << 21


def share() -> None:
    """What this process has stays: the collector looks at it no more, and children share it.

    Kernels before 6.1 have no such call; then all is as it was, and costs what it did."""
    gc.collect()
    gc.freeze()
    libc = ctypes.CDLL(None)
    for start, end in _ranges():
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_COLLAPSE)


def _ranges() -> Iterator[tuple[int, int]]:
    """Whole huge pages of memory that belongs to no file."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        places, rights, _, _, _, *name = line.split(maxsplit=5)
        start, end = (int(place, 16) for place in places.split("-"))
        start, end = -(-start // HUGE) * HUGE, end // HUGE * HUGE
        if rights == "rw-p" and name in ([], ["[heap]"]) and start < end:
            yield start, end
