"""Memory for the first step of a worker that waits for its rank, found before the rank comes.

What a first step on the CPU computes with (restored values of an optimizer, outputs of layers, what
the backward pass makes of them) lies in memory that the process has never used: a fault for each
4 KiB, in that step, while everybody waits for it. Later steps use the same memory again. A worker
that waits has the time: it finds a bounded piece ahead, in huge pages where the kernel has them,
and gives it back to the allocator, which keeps it.

glibc keeps what it is given back as long as its threshold for that is higher, and raises the
threshold by itself when a large block is freed (M_MMAP_THRESHOLD in mallopt(3)). Another allocator
may do otherwise: then nothing is gained, and nothing is lost.
"""

import contextlib
import mmap
import os

import torch

from holdfast import rank
from holdfast.checkpoint.free_memory import free_memory
from holdfast.train import huge_pages

BLOCK_BYTES = 28 << 20
BLOCKS = 2  # together less than what glibc gives back at once after a block of LARGEST_BYTES
LARGEST_BYTES = (32 << 20) - (64 << 10)  # DEFAULT_MMAP_THRESHOLD_MAX of glibc, with its own words
SHARE = 64  # of free memory: it is kept by those who wait as well, and one that lacks it gains more


def offer() -> None:
    """Find it when this worker begins to wait for its rank, first of all."""
    if rank.CONTROL in os.environ:
        rank.while_waiting.append(_find)


def _find(_control: int) -> None:
    """What lacks memory shows in the script, if it lacks it there."""
    with contextlib.suppress(OSError, RuntimeError, ValueError, LookupError):
        find()


def find() -> None:
    """Have the allocator keep memory that was used before."""
    if free_memory().free_bytes < SHARE * BLOCKS * BLOCK_BYTES:
        return
    _block(LARGEST_BYTES)  # freed at once: from here on the allocator keeps what is smaller
    blocks = [_block(BLOCK_BYTES) for _ in range(BLOCKS)]
    for block in blocks:
        huge_pages.ask_for(block)
    for block in blocks:
        block[:: mmap.PAGESIZE].zero_()


def _block(length: int) -> torch.Tensor:
    return torch.empty(length, dtype=torch.uint8, device="cpu")
