"""Who waits for a rank maps the arena of its rank, and faults on nothing of it later."""

import errno
import mmap
import os
import resource
import threading
from collections.abc import Callable, Iterator

import pytest

from holdfast.checkpoint.arena import Arena, StatePart
from holdfast.checkpoint.arena_ahead import FD, arena_of, map_while_waiting
from tests.checkpoint.test_arena import LARGE, SIZE, _Kernel, newest, write

PAGES = LARGE // mmap.PAGESIZE


@pytest.fixture
def fd(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """An arena with memory for two large cells, that of the worker which waits."""
    made = Arena.create()
    monkeypatch.setenv(FD, str(made))
    reserved(Arena(made))
    yield made
    os.close(made)


def reserved(arena: Arena, size: int = LARGE) -> list[memoryview]:
    """Make room as a worker does that has its rank; returns what was prepared for copies."""
    seen: list[memoryview] = []
    arena.reserve({StatePart.SHARED: size}, 2, seen.append)
    for cell in arena.cells(StatePart.SHARED)[:2]:
        cell.begin()
        cell.discard()
    return seen


def wait_once() -> Callable[[float], bool]:
    """The rank comes at the second look that may take its time."""
    looks = iter((False, True))
    return lambda within_s: next(looks) if within_s else False


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def test_nothing_is_left_to_fault_on_and_no_memory_is_taken(fd: int) -> None:
    taken = os.fstat(fd).st_blocks
    map_while_waiting(wait_once())
    arena = arena_of(fd)
    before = faults()
    seen = reserved(arena)
    for cell in arena.cells(StatePart.SHARED)[:2]:
        cell.payload[:LARGE] = bytes(LARGE)
    of_the_test = 2 * PAGES  # the pages of `bytes` itself
    assert faults() - before < of_the_test + PAGES // 4, "a fault for each page would be as many"
    assert os.fstat(fd).st_blocks == taken
    assert seen == [cell.memory for cell in arena.cells(StatePart.SHARED)[:2]], "for copies"


def test_no_thread_is_started_where_nothing_is_left_to_be_done(fd: int) -> None:
    """A restore waits for a thread that begins."""
    map_while_waiting(wait_once())
    arena, names = arena_of(fd), set()
    sizes = {StatePart.SHARED: LARGE}

    def seen(*_: object) -> None:
        names.add(threading.current_thread().name)

    arena.reserve(sizes, 2)
    assert not any(cell._touching for cell in arena.cells(StatePart.SHARED))
    other = Arena(fd)
    other.reserve(sizes, 2, seen)
    for cell in other.cells(StatePart.SHARED)[:2]:
        cell.begin()
    assert [name.startswith("touch") for name in names] == [True], "or what has to be done is"


def test_a_process_that_did_not_wait_maps_all_that_is_there(fd: int) -> None:
    arena = Arena(fd)
    before = faults()
    reserved(arena)
    assert faults() - before < PAGES // 2, "many pages at a time"


def test_what_was_written_before_is_read_and_what_grows_is_found(fd: int) -> None:
    write(Arena(fd), 1, None)
    map_while_waiting(wait_once())
    arena = arena_of(fd)
    assert newest(arena) == 1
    size = 2 * LARGE
    assert [len(memory) > size for memory in reserved(arena, size)] == [True, True]
    assert all(cell._present_bytes() > size for cell in arena.cells(StatePart.SHARED)[:2])


def test_a_rank_that_comes_in_the_middle_is_not_kept_waiting(fd: int) -> None:
    """What has not been mapped by then is touched as ever."""
    looks = iter((False, False, True))
    arena = Arena(fd)
    arena.map_ahead(lambda: next(looks, True))
    cells = arena.cells(StatePart.SHARED)[:2]
    assert [cell._mapped_ahead for cell in cells] == [len(cells[0].memory), 0]
    seen = reserved(arena)
    assert seen == [cell.memory for cell in cells]


def test_an_arena_that_comes_later_is_found_and_an_empty_one_stays_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = Arena.create()
    monkeypatch.setenv(FD, str(late))
    looks = iter((lambda: None, lambda: write(Arena(late), 1, None)))

    def has_come(within_s: float) -> bool:
        if not within_s:
            return False
        act = next(looks, None)
        if act is not None:
            assert os.fstat(late).st_size == 0
            act()
        return act is None

    map_while_waiting(has_come)
    arena = arena_of(late)
    assert arena.cells(StatePart.SHARED)[0]._mapped_ahead and newest(arena) == 1
    assert arena_of(late) is not arena, "it is given once"
    os.close(late)


def test_an_older_kernel_is_no_fault(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.checkpoint.arena._libc", _Kernel(errno.EINVAL))
    arena = Arena(fd)
    arena.map_ahead(lambda: False)
    assert [len(memory) > LARGE for memory in reserved(arena)] == [True, True]
    assert SIZE < LARGE
