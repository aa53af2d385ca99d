"""Snapshots in huge pages are the same bytes, for whoever maps them, and cost less to let go."""

import ctypes
import errno
import gc
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint import huge_memory
from holdfast.checkpoint.huge_memory import HUGE_BYTES, SWITCH, gather, mapped
from tests.patience import until

LENGTH = 2 * HUGE_BYTES + 8192
OFFSET = 1 << 40


@pytest.fixture
def fd() -> Iterator[int]:
    """Shared memory with some bytes, far from its beginning."""
    made = os.memfd_create("of-a-test", os.MFD_CLOEXEC)
    os.ftruncate(made, OFFSET + LENGTH)
    yield made
    os.close(made)


def address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def mappings() -> list[str]:
    return re.findall(r".* /memfd:of-a-test .*", Path("/proc/self/maps").read_text())


def pmd_mapped_bytes(memory: memoryview) -> int:
    """Of the mapping that begins there."""
    parts = Path("/proc/self/smaps").read_text().split(f"\n{address(memory):x}-")
    (found,) = re.findall(r"ShmemPmdMapped: +(\d+) kB", parts[1])[:1]
    return int(found) << 10


def test_it_is_the_file_and_lies_where_a_huge_page_can(fd: int) -> None:
    memory, other = mapped(fd, LENGTH, OFFSET), mapped(fd, LENGTH, OFFSET)
    assert (
        len(memory) == LENGTH and address(memory) % HUGE_BYTES == address(other) % HUGE_BYTES == 0
    )
    memory[-4:] = b"last"
    assert bytes(other[-4:]) == os.pread(fd, 4, OFFSET + LENGTH - 4) == b"last"
    assert bytes(mapped(fd, 4096, OFFSET)) == bytes(4096), "and what has no room for one"


def test_it_is_mapped_as_long_as_something_of_it_is_used(fd: int) -> None:
    part = mapped(fd, LENGTH, OFFSET)[-100:]
    gc.collect()
    assert len(mappings()) == 1
    part[0] = 7
    assert os.pread(fd, 1, OFFSET + LENGTH - 100) == b"\x07"
    del part
    gc.collect()
    assert mappings() == []


def test_nothing_is_lost_that_is_written_meanwhile(fd: int) -> None:
    memory, worker = mapped(fd, LENGTH, OFFSET), mapped(fd, LENGTH, OFFSET)
    over = threading.Event()
    rounds: list[int] = []

    def write() -> None:
        while not over.is_set():
            rounds.append(len(rounds) % 256)
            worker[:] = bytes(rounds[-1:]) * LENGTH

    writer = threading.Thread(target=write)
    writer.start()
    assert until(lambda: len(rounds) > 3)
    gather(memory)
    count = len(rounds)
    assert until(lambda: len(rounds) > count + 3)
    over.set()
    writer.join()
    assert bytes(memory) == os.pread(fd, LENGTH, OFFSET) == bytes(rounds[-1:]) * LENGTH


class Refuses:
    """A kernel that does, with this number."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __getattr__(self, _: str) -> Any:
        return self._refuse

    def _refuse(self, *_: object) -> int:
        ctypes.set_errno(self._number)
        assert huge_memory._FAILED is not None
        return huge_memory._FAILED


def test_where_the_kernel_maps_nothing_over_it_it_lies_anywhere(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huge_memory, "_libc", Refuses(errno.ENOMEM))
    memory = mapped(fd, LENGTH, OFFSET)
    memory[:4] = b"here"
    assert len(memory) == LENGTH and os.pread(fd, 4, OFFSET) == b"here"


def test_what_is_gathered_has_the_same_bytes_for_all_and_is_mapped_at_once(fd: int) -> None:
    memory, worker = mapped(fd, LENGTH, OFFSET), mapped(fd, LENGTH, OFFSET)
    content = os.urandom(4096) * (LENGTH // 4096)
    worker[:] = content
    if not gather(memory):
        pytest.skip("this kernel gathers no shared memory")
    assert bytes(worker) == bytes(memory) == content
    assert pmd_mapped_bytes(worker) == pmd_mapped_bytes(memory) == 2 * HUGE_BYTES
    worker[:4] = b"next"
    assert os.pread(fd, 4, OFFSET) == b"next" and gather(memory)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOMEM, errno.EAGAIN])
def test_what_cannot_be_gathered_stays_as_it_is(
    fd: int, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    memory = mapped(fd, LENGTH, OFFSET)
    memory[:4] = b"here"
    monkeypatch.setattr(huge_memory, "_libc", Refuses(number))
    assert not gather(memory) and bytes(memory[:4]) == b"here"


def test_nothing_is_gathered_where_nobody_wants_that_or_there_is_too_little(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = mapped(fd, LENGTH, OFFSET)
    monkeypatch.setattr(huge_memory, "_libc", None)
    assert not gather(memory[: HUGE_BYTES - 1])
    monkeypatch.setenv(SWITCH, "0")
    assert not gather(memory)
