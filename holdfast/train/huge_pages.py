"""Huge pages for memory as large as the model that is there from the first step to the last.

A new process finds memory for its gradients and its optimizer's state while everybody waits for its
first step, and gives it back while everybody waits for its end: a fault for each 4 KiB. Linux does
both 2 MiB at a time for memory for which it is asked to (`madvise` in
/sys/kernel/mm/transparent_hugepage/enabled, as most distributions have it; elsewhere this changes
nothing). Values are the same, only where they lie is not.

Not the whole allocator is asked (PyTorch's THP_MEM_ALLOC_ENABLE, glibc's malloc.hugetlb): tensors
of a moment would be made of fresh pages, all of them cleared, in each step.
"""

import bisect
import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

SWITCH = "HOLDFAST_HUGE_PAGES"
LEAST_BYTES = 4 << 20  # less is hardly worth a call
_HUGEPAGE = 14  # MADV_HUGEPAGE
_PAGE = 4096
_MAPS = Path("/proc/self/maps")
_libc = ctypes.CDLL(None, use_errno=True)
Span = tuple[int, int]


def copy_of(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy that stays, on this device."""
    if device.type != "cpu" or value.nbytes < LEAST_BYTES or not _wanted():
        return value.to(device, copy=True)
    made = torch.empty_like(value, device=device)
    ask_for(made)
    return made.copy_(value)


def ask_for(made: torch.Tensor) -> None:
    """For the memory of this tensor on the CPU, which nothing was written to yet."""
    if _wanted():
        _ask((made.data_ptr(), made.data_ptr() + made.untyped_storage().nbytes()))


@contextmanager
def for_new_memory(device: torch.device) -> Iterator[None]:
    """For what is allocated meanwhile on the CPU and not written to before the end."""
    if device.type != "cpu" or not _wanted():
        yield
        return
    before = _anonymous(_MAPS)
    yield
    for span in new_spans(before, _anonymous(_MAPS)):
        if span[1] - span[0] >= LEAST_BYTES:
            _ask(span)


def new_spans(before: list[Span], after: list[Span]) -> Iterator[Span]:
    """What is in `after` and was not in `before`; both ascend and do not overlap."""
    ends = [end for _, end in before]
    for begin, end in after:
        at = bisect.bisect_right(ends, begin)
        for old_begin, old_end in before[at:]:
            if old_begin >= end:
                break
            if old_begin > begin:
                yield begin, old_begin
            begin = max(begin, old_end)
        if begin < end:
            yield begin, end


def _wanted() -> bool:
    return os.environ.get(SWITCH) != "0"


def _anonymous(maps: Path) -> list[Span]:
    """Private memory of this process that is of no file: mappings and the heap."""
    found = []
    for line in maps.read_text().splitlines():
        fields = line.split(None, 5)
        if fields[1] == "rw-p" and fields[4] == "0" and fields[5:] in ([], ["[heap]"]):
            begin, _, end = fields[0].partition("-")
            found.append((int(begin, 16), int(end, 16)))
    return found


def _ask(span: Span) -> None:
    """A kernel that has no huge pages says no, which is as well."""
    begin, end = -(-span[0] // _PAGE) * _PAGE, span[1] // _PAGE * _PAGE
    if begin < end:
        _libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _HUGEPAGE)
