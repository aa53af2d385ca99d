"""Snapshots are gathered into huge pages once, bit by bit, and stay what they were."""

import os
from collections.abc import Callable, Iterator

import pytest

from holdfast.agent.storage import huge_snapshots
from holdfast.agent.storage.huge_snapshots import BYTES, HugeSnapshots
from holdfast.checkpoint import huge_memory
from holdfast.checkpoint.arena import Arena, Cell, CellHeader, StatePart
from holdfast.checkpoint.huge_memory import HUGE_BYTES
from holdfast.checkpoint.seal import seal_of
from tests.patience import until

SIZE = 2 * BYTES + 3 * HUGE_BYTES


@pytest.fixture
def fd() -> Iterator[int]:
    """An arena with one large snapshot and a small one."""
    made = Arena.create()
    for part, size in ((StatePart.SHARED, SIZE), (StatePart.PRIVATE, 1000)):
        write(Arena(made).cells(part)[0], size)
    yield made
    os.close(made)


def write(cell: Cell, size: int) -> None:
    content = os.urandom(1000) * (size // 1000)
    cell.reserve(size)
    cell.begin()
    cell.payload[: len(content)] = content
    cell.commit(CellHeader(1, 5, 0, 1, 7, len(content), 0), seal_of(content))


def asked(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[memoryview], bool]
) -> list[memoryview]:
    """What is gathered from now on."""
    found: list[memoryview] = []

    def gather(memory: memoryview) -> bool:
        found.append(memory)
        return answer(memory)

    monkeypatch.setattr(huge_snapshots, "gather", gather)
    return found


def rests(one: HugeSnapshots) -> bool:
    """It was looked, and nothing is left to be done."""
    one.look()
    return one._under_way is None


def test_what_is_large_is_gathered_once_and_bit_by_bit(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, one = asked(monkeypatch, huge_memory.gather), HugeSnapshots([Arena(fd)])
    assert until(lambda: rests(one))
    assert [len(memory) for memory in found][:1] == [BYTES]
    assert sum(map(len, found)) in (len(one_cell(fd).memory), 2 * BYTES), "or the kernel cannot"
    assert one_cell(fd).intact()
    count = len(found)
    assert until(lambda: rests(one))
    assert len(found) == count


def one_cell(fd: int) -> Cell:
    cell = Arena(fd).cells(StatePart.SHARED)[0]
    cell.reserve(SIZE, touch=False)
    return cell


def test_between_two_bits_there_is_a_pause_ten_times_as_long(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [5.0, 100.0, 107.0]  # of a look, and of a bit
    found = asked(monkeypatch, lambda _: True)
    one = HugeSnapshots([Arena(fd)], lambda: clock.pop(0))
    one.look()
    assert one._under_way is not None
    one._under_way.result()
    clock = [176.9]
    one.look()
    assert len(found) == 1
    clock = [177.1, 177.1, 177.1]
    one.look()
    one._under_way.result()
    assert len(found) == 2


def test_a_kernel_that_cannot_is_asked_twice_for_each_cell(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(Arena(fd).cells(StatePart.SHARED)[1], SIZE)
    found, one = asked(monkeypatch, lambda _: False), HugeSnapshots([Arena(fd)])
    assert until(lambda: rests(one))
    assert [len(memory) for memory in found] == [BYTES] * 4


def test_one_bit_that_cannot_be_gathered_now_is_left_out(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter((False, True, False))
    found, one = asked(monkeypatch, lambda _: next(answers)), HugeSnapshots([Arena(fd)])
    assert until(lambda: rests(one))
    assert len(found) == 3


def test_one_that_is_being_written_waits_until_it_is_whole(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Arena(fd).cells(StatePart.SHARED)[0]
    header = writer.header()
    assert header is not None
    writer.reserve(SIZE)
    writer.begin()
    found, one = asked(monkeypatch, lambda _: True), HugeSnapshots([Arena(fd)])
    assert until(lambda: rests(one))
    assert found == []
    writer.commit(header, None)
    assert until(lambda: rests(one))
    assert len(found) == 3
