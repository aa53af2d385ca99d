"""A snapshot in an arena is whole or not there, whatever happens to the process that writes it."""

import ctypes
import errno
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from holdfast.checkpoint.arena import (
    HEADER_BYTES,
    OWN,
    STRIDE,
    Arena,
    Cell,
    CellHeader,
    Key,
    StatePart,
)
from holdfast.checkpoint.free_memory import FreeMemory
from holdfast.checkpoint.seal import seal_of
from holdfast.errors import Error
from tests.more import examples
from tests.patience import PATIENCE_S

SIZE = 200_000
LARGE = 20 << 20  # of what is looked at ahead


@pytest.fixture
def fd() -> Iterator[int]:
    """An empty arena."""
    made = Arena.create()
    yield made
    os.close(made)


def pattern(step: int) -> bytes:
    """Content that names its step everywhere."""
    return step.to_bytes(8, "little") * (SIZE // 8)


def header(step: int, payload: bytes) -> CellHeader:
    return CellHeader(1, step, 0, 1, 7, len(payload), 0)


def write(arena: Arena, step: int, keep: Key | None) -> None:
    """One snapshot, as a worker writes it."""
    payload = pattern(step)
    cell = arena.target(StatePart.SHARED, (keep,) if keep else ())
    assert cell is not None
    cell.reserve(len(payload))
    cell.begin()
    cell.payload[: len(payload)] = payload
    cell.commit(header(step, payload), seal_of(payload))


def newest(arena: Arena) -> int:
    """The step of the newest whole snapshot, 0 for none; fails if what it holds is not that."""
    steps = [0]
    for cell in arena.cells(StatePart.SHARED):
        found = cell.header()
        if found is not None:
            assert cell.intact()
            assert bytes(cell.payload[: found.payload_bytes]) == pattern(found.step)
            steps.append(found.step)
    return max(steps)


def write_on(fd: int) -> None:
    """Write one snapshot after the other, until killed."""
    arena = Arena(fd)
    step = newest(arena)
    while True:
        write(arena, step + 1, Key(1, step))
        step += 1


def in_child(work: Callable[[], Any]) -> int:
    """Fork a process that does this."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(1)
    return pid


def test_killed_at_random_moments_the_newest_snapshot_is_whole(fd: int) -> None:
    rng = random.Random(1)
    before = kills = 0
    longest_s = 0.006
    while kills < examples(100) or before < kills:
        kills += 1
        pid = in_child(lambda: write_on(fd))
        time.sleep(rng.random() * longest_s)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        after = newest(Arena(fd))
        assert after >= before
        if after < kills:  # where a child hardly runs, the next ones get longer
            longest_s *= 1.2
        before = after


def test_killed_before_any_line_of_a_write_the_snapshot_is_the_old_or_the_new_one(
    fd: int,
) -> None:
    """What a kill leaves is what the memory holds then, which others read as we do here."""
    write(Arena(fd), 1, None)
    write(Arena(fd), 2, Key(1, 1))
    seen: list[int] = []

    def look(_frame: FrameType, event: str, _arg: object) -> Any:
        if event == "line":
            seen.append(newest(Arena(fd)))
        return look

    writer = Arena(fd)
    sys.settrace(look)
    try:
        write(writer, 3, Key(1, 2))
    finally:
        sys.settrace(None)
    assert seen == [2] * len(seen) and len(seen) > 30
    assert newest(Arena(fd)) == 3, "from the last line on"


@pytest.mark.parametrize("at", [0, 17, SIZE // 2, SIZE - 1])
def test_one_flipped_byte_of_the_payload_is_found(fd: int, at: int) -> None:
    arena = Arena(fd)
    write(arena, 5, None)
    cell = arena.find(StatePart.SHARED, Key(1, 5))
    assert cell is not None and cell.intact()
    cell.payload[at] ^= 1
    assert not cell.intact()


def test_no_flipped_byte_of_the_header_goes_unseen(fd: int) -> None:
    arena = Arena(fd)
    write(arena, 5, None)
    cell = arena.cells(StatePart.SHARED)[0]
    good = cell.header()
    for at in range(96):
        cell.memory[at] ^= 4
        changed = cell.header()
        assert changed is None or (changed == good and at >= 88), at
        cell.memory[at] ^= 4
    assert cell.header() == good


@pytest.mark.parametrize("length", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, SIZE // 2])
def test_a_truncated_arena_is_empty_or_found_damaged(fd: int, length: int) -> None:
    write(Arena(fd), 5, None)
    os.ftruncate(fd, length)
    assert Arena(fd).find(StatePart.SHARED, Key(1, 5)) is None
    os.ftruncate(fd, STRIDE)
    regrown = Arena(fd).find(StatePart.SHARED, Key(1, 5))
    assert regrown is None or not regrown.intact()


@pytest.mark.parametrize("seed", range(20))
def test_garbage_is_an_empty_arena(fd: int, seed: int) -> None:
    os.write(fd, random.Random(seed).randbytes(3 * HEADER_BYTES))
    assert newest(Arena(fd)) == 0
    write(Arena(fd), 1, None)
    assert newest(Arena(fd)) == 1


def test_a_header_that_claims_more_than_the_file_holds_is_not_believed(fd: int) -> None:
    cell = Cell(fd, 0)
    cell.reserve(100)
    cell.begin()
    cell.commit(header(1, b"")._replace(data_bytes=STRIDE - 1))
    assert cell.header() is None


def test_the_kept_snapshot_is_never_the_target(fd: int) -> None:
    arena = Arena(fd)
    for step in range(1, 20):
        write(arena, step, Key(1, step - 1))
        cell = arena.target(StatePart.SHARED, (Key(1, step),))
        held = cell.header() if cell else None
        assert held is None or held.step == step - 1
    assert arena.target(StatePart.SHARED, (Key(1, 19), Key(1, 18))) is None
    assert arena.target(StatePart.SHARED, (Key(1, 19), Key(1, 18)), slots=3) is not None


def test_a_snapshot_that_grows_keeps_the_older_one(fd: int) -> None:
    arena = Arena(fd)
    write(arena, 1, None)
    cell = arena.target(StatePart.SHARED, (Key(1, 1),))
    assert cell is not None
    cell.reserve(40 * SIZE)
    cell.begin()
    cell.payload[:] = bytes(len(cell.payload))
    assert newest(Arena(fd)) == 1
    cell.commit(header(2, bytes(40 * SIZE)))
    assert Arena(fd).cells(StatePart.SHARED)[1].intact()


def test_what_does_not_fit_into_memory_is_refused_with_the_arithmetic(fd: int) -> None:
    with pytest.raises(Error, match=r"needs \d+ MiB more, \d+ MiB of .* are free") as caught:
        Cell(fd, 0).reserve(STRIDE // 2)
    assert caught.value.slug == "snapshot-too-large"


def test_memory_of_an_earlier_worker_is_not_asked_for_again(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    Cell(fd, 0).reserve(SIZE)
    monkeypatch.setattr("holdfast.checkpoint.arena.free_memory", lambda: FreeMemory(0, "this test"))
    Cell(fd, 0).reserve(SIZE)
    with pytest.raises(Error):
        Cell(fd, 2).reserve(SIZE)


def test_what_is_sealed_later_is_checked_as_well(fd: int) -> None:
    cell = Cell(fd, 0)
    cell.reserve(SIZE)
    cell.begin()
    cell.commit(header(1, pattern(1)))
    assert cell.sealed() is None and cell.seal() and not cell.seal()
    assert cell.intact()
    cell.payload[SIZE // 2] ^= 1
    assert not cell.intact()


def _large(step: int) -> CellHeader:
    return CellHeader(1, step, 0, 1, 7, LARGE, 0)


def ahead(fd: int, step: int) -> Arena:
    """A large snapshot of this step, of which the checksums are being taken."""
    arena = Arena(fd)
    for part in OWN:
        cell = arena.cells(part)[0]
        cell.reserve(LARGE)
        cell.begin()
        cell.payload[:LARGE] = bytes(LARGE)
        cell.commit(_large(step))
        cell.seal()
    again = Arena(fd)
    again.look_ahead(cores=2)
    return again


def test_checksums_that_were_taken_ahead_are_used_once(fd: int) -> None:
    arena = ahead(fd, 1)
    cells = [arena.find(part, Key(1, 1)) for part in OWN]
    assert all(cell is not None and cell._ahead is not None and cell.intact() for cell in cells)
    assert all(cell is not None and cell._ahead is None and cell.intact() for cell in cells)
    for cell in filter(None, cells):
        cell.payload[LARGE // 2] ^= 1
        assert not cell.intact(), "looked at anew"


def test_damage_is_found_ahead(fd: int) -> None:
    ahead(fd, 1)
    damaged = Arena(fd).cells(StatePart.PRIVATE)[0]
    damaged.reserve(LARGE)
    damaged.payload[LARGE - 1] ^= 1
    arena = Arena(fd)
    arena.look_ahead(cores=1)
    private, shared = (
        arena.find(part, Key(1, 1)) for part in (StatePart.PRIVATE, StatePart.SHARED)
    )
    assert private and not private.intact()
    assert shared and shared.intact()


def test_what_was_written_anew_meanwhile_is_looked_at_anew(fd: int) -> None:
    """By us and by somebody else; the header may even be the same."""
    arena = ahead(fd, 1)
    own = arena.find(StatePart.SHARED, Key(1, 1))
    assert own is not None and own._ahead is not None
    own._ahead[1].result()
    own.begin()
    own.payload[0] ^= 1
    own.commit(_large(1))
    assert own.seal() and own.intact()
    foreign = arena.find(StatePart.PRIVATE, Key(1, 1))
    other = Arena(fd).cells(StatePart.PRIVATE)[0]
    other.reserve(LARGE)
    other.begin()
    other.payload[0] ^= 1
    other.commit(_large(2))
    assert foreign is not None and other.seal() and foreign.intact()


# ── memory that is found beside something else ──


def test_memory_is_found_beside_what_follows_and_is_there_when_it_is_written(fd: int) -> None:
    arena, seen, may_go_on = Arena(fd), [], threading.Event()

    def prepare(memory: memoryview) -> None:
        assert may_go_on.wait(PATIENCE_S)
        seen.append(memory)

    arena.reserve({StatePart.SHARED: LARGE, StatePart.PRIVATE: SIZE}, 2, prepare)
    assert seen == [], "nobody has waited for it"
    turns = zip(arena.cells(StatePart.PRIVATE)[:2], arena.cells(StatePart.SHARED)[:2], strict=True)
    cells = [cell for turn in turns for cell in turn]
    may_go_on.set()
    for cell in cells:
        cell.begin()
        assert cell.memory in seen
        assert cell._present_bytes() == len(cell.memory), "all pages have memory"
    assert seen == [cell.memory for cell in cells], "once each, as they are needed"
    arena.reserve({StatePart.SHARED: LARGE, StatePart.PRIVATE: SIZE}, 2, seen.append)
    assert len(seen) == len(cells), "what is there already is not found again"


def test_memory_that_is_mapped_only_to_be_read_is_made_ready_too(fd: int) -> None:
    write(Arena(fd), 1, None)
    arena, seen = Arena(fd), list[memoryview]()
    (cell, *_) = arena.cells(StatePart.SHARED)
    assert cell.intact()
    for _ in range(2):
        arena.reserve({StatePart.SHARED: 2 * SIZE}, 1, seen.append, {StatePart.SHARED: SIZE})
        cell.begin()
        assert seen == [cell.memory], "once, and not mapped anew"


def test_what_fails_beside_is_raised_where_it_is_waited_for(fd: int) -> None:
    arena = Arena(fd)

    def refuse(_: memoryview) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    arena.reserve({StatePart.SHARED: SIZE}, 1, refuse)
    cell = arena.cells(StatePart.SHARED)[0]
    with pytest.raises(OSError, match="no memory"):
        cell.begin()
    assert cell.header() is None


def test_the_memory_of_all_cells_together_has_to_be_free(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is found later is not missing yet when the next cell is asked for."""
    enough_for_one = FreeMemory(LARGE * 3 // 2, "of a test")
    monkeypatch.setattr("holdfast.checkpoint.arena.free_memory", lambda: enough_for_one)
    arena = Arena(fd)
    with pytest.raises(Error, match="snapshot needs 40 MiB more"):
        arena.reserve({StatePart.SHARED: LARGE}, 2)
    assert os.fstat(fd).st_size == 0, "nothing was taken"
    arena.reserve({StatePart.SHARED: LARGE}, 1)
    arena.cells(StatePart.SHARED)[0].begin()


def test_a_kernel_that_cannot_populate_is_helped_and_one_without_memory_is_believed(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, error in enumerate((errno.EINVAL, errno.ENOMEM)):
        monkeypatch.setattr("holdfast.checkpoint.arena._libc", _Kernel(error))
        cell = Arena(fd).cells(StatePart.SHARED)[number]
        if error == errno.EINVAL:
            cell.reserve(SIZE)
            assert cell._present_bytes() == len(cell.memory)
        else:
            with pytest.raises(OSError, match="no memory"):
                cell.reserve(SIZE)


class _Kernel:
    """Whose `madvise` fails."""

    def __init__(self, error: int) -> None:
        self._error = error

    def madvise(self, *_: object) -> int:
        ctypes.set_errno(self._error)
        return -1


def test_small_payloads_and_empty_arenas_are_not_looked_at_ahead(fd: int) -> None:
    arena = Arena(fd)
    arena.look_ahead(cores=1)
    write(arena, 1, None)
    arena.look_ahead(cores=1)
    cells = [cell for part in OWN for cell in arena.cells(part)]
    assert any(cell.header() for cell in cells) and not any(cell._ahead for cell in cells)


def test_a_seal_that_comes_too_late_counts_for_nothing(fd: int) -> None:
    """The agent's side began to seal step 1 when the worker wrote step 2 over it."""
    late, cell = Cell(fd, 0), Cell(fd, 0)
    write(Arena(fd), 1, None)
    stale = late.sealed()
    assert stale is not None
    cell.reserve(SIZE)
    cell.begin()
    cell.commit(header(2, pattern(2)))
    late._store_seal(Key(1, 1), stale)
    assert cell.sealed() is None
    assert cell.seal() and cell.intact()


def test_copies_for_several_ranks_do_not_drive_each_other_out(fd: int) -> None:
    arena = Arena(fd)
    for step in range(1, 6):
        for rank in (4, 5, 6):
            cell = arena.target_for(rank, Key(1, step - 1))
            cell.reserve(8)
            cell.begin()
            cell.commit(CellHeader(1, step, rank, 8, 7, 8, 0))
        for rank in (4, 5, 6):
            assert arena.find(StatePart.BUDDY, Key(1, step), rank)
            assert step == 1 or arena.find(StatePart.BUDDY, Key(1, step - 1), rank)
    cell = arena.target_for(7, None)
    found = cell.header()
    assert found is not None and found.key == Key(1, 4), "the oldest gives way to another rank"
