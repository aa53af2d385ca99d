"""What stays is asked for in huge pages; what it holds is the same."""

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from holdfast.train.huge_pages import LEAST_BYTES, SWITCH, copy_of, for_new_memory, new_spans

CPU = torch.device("cpu")
SIZE = LEAST_BYTES // 4 * 8  # elements: 32 MiB, which malloc maps by itself if it has no room
IS_MMAPPED = 2  # of glibc's malloc, in the word before a chunk


def is_asked(tensor: torch.Tensor) -> bool:
    """Whether the kernel was asked for huge pages in the middle of this tensor's memory."""
    middle, here = tensor.data_ptr() + tensor.nbytes // 2, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if "-" in name:
            begin, _, end = name.partition("-")
            here = int(begin, 16) <= middle < int(end, 16)
        elif here and name == "VmFlags:":
            return "hg" in rest.split()
    raise AssertionError("no mapping has it")


@pytest.fixture(autouse=True)
def _kernel() -> None:
    if not Path("/sys/kernel/mm/transparent_hugepage").is_dir():
        pytest.skip("this kernel has no huge pages")


@pytest.fixture(autouse=True)
def _no_room() -> Iterator[None]:
    """What earlier tests of this process have freed on the heap would be given first, whatever was
    asked for it then."""
    kept = [torch.empty(SIZE)]
    while not ctypes.c_size_t.from_address(kept[-1].data_ptr() - 8).value & IS_MMAPPED:
        kept.append(torch.empty(SIZE))
    kept.pop()
    yield
    kept.clear()


def test_a_copy_that_stays_is_the_same_in_every_bit() -> None:
    value = torch.randn(SIZE // 1000, 1000).t()
    copy = copy_of(value, CPU)
    assert is_asked(copy) and not is_asked(value)
    assert torch.equal(copy, value) and copy.stride() == value.stride()
    small = copy_of(torch.ones(3), CPU)
    assert torch.equal(small, torch.ones(3))


def test_what_is_allocated_meanwhile_is_asked_for_and_nothing_else() -> None:
    before = torch.empty(SIZE)
    with for_new_memory(CPU):
        meanwhile = torch.empty(SIZE)
    after = torch.empty(SIZE)
    assert [is_asked(tensor) for tensor in (before, meanwhile, after)] == [False, True, False]


def test_who_does_not_want_them_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "0")
    with for_new_memory(CPU):
        meanwhile = torch.empty(SIZE)
    assert not is_asked(meanwhile) and not is_asked(copy_of(torch.ones(SIZE), CPU))


def test_new_memory_is_what_was_not_there_before() -> None:
    before = [(10, 20), (30, 40), (60, 70)]
    assert list(new_spans(before, before)) == []
    assert list(new_spans([], before)) == before
    assert list(new_spans(before, [])) == []
    merged = [(5, 50), (60, 80), (90, 95)]  # the kernel makes one of neighbours
    assert list(new_spans(before, merged)) == [(5, 10), (20, 30), (40, 50), (70, 80), (90, 95)]
    assert list(new_spans([(10, 40)], [(10, 15), (30, 45)])) == [(40, 45)]
