"""Times of ranks are kept look by look for minutes and more coarsely for weeks."""

import math
import struct
from pathlib import Path

import pytest

from holdfast.history import QUANTITIES, RankHistory, RankPicture, ranks, read_ranks


def rows(count: int, value: float) -> list[list[float]]:
    return [[value + rank for rank in range(count)] for _ in QUANTITIES]


def values(found: RankPicture) -> list[list[float]]:
    """By column."""
    flat = struct.unpack(f"<{len(found.values) // 2}e", found.values)
    return [list(flat[n : n + found.ranks]) for n in range(0, len(flat), found.ranks)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ranks.bin"


def looks(path: Path, count: int, of: int = 4) -> None:
    file = RankHistory(path, of)
    for look in range(count):
        file.add(10.0 * look, 10.0, 1, rows(of, look % 16))
    file.close()


def test_every_look_is_there(path: Path) -> None:
    looks(path, 5)
    found = read_ranks(path, "late")
    assert (found.ranks, found.at) == (4, [0.0, 10.0, 20.0, 30.0, 40.0])
    assert values(found)[3] == [3.0, 4.0, 5.0, 6.0]


def test_old_ones_are_their_mean(path: Path) -> None:
    looks(path, ranks.RING + 100)
    assert len(read_ranks(path, "wait", 0).at) == ranks.RING
    coarse = read_ranks(path, "wait", 1)
    assert len(coarse.at) == (ranks.RING + 100) // ranks.FANOUT
    assert coarse.span_s[0] == 160.0 and values(coarse)[0] == [7.5, 8.5, 9.5, 10.5]


def test_more_ranks_than_fit_begin_anew(path: Path) -> None:
    looks(path, 3, of=4)
    file = RankHistory(path, 4)
    file.add(99.0, 1.0, 2, rows(4, 0.0))
    file.add(100.0, 1.0, 3, rows(100, 0.0))
    file.close()
    found = read_ranks(path, "step_s")
    assert (found.ranks, found.at) == (100, [100.0])


def test_fewer_ranks_leave_gaps(path: Path) -> None:
    file = RankHistory(path, 8)
    file.add(1.0, 1.0, 1, rows(8, 0.0))
    file.add(2.0, 1.0, 2, rows(6, 0.0))
    file.close()
    last = values(read_ranks(path, "late"))[1]
    assert last[:6] == [0, 1, 2, 3, 4, 5] and all(map(math.isnan, last[6:]))


def test_a_writer_goes_on_where_the_last_was_killed(path: Path) -> None:
    looks(path, 4)
    size = ranks.COLUMN_BYTES + len(QUANTITIES) * 2 * ranks.SMALLEST
    with path.open("r+b") as file:  # in the middle of the last column
        file.seek(ranks.HEADER_BYTES + 3 * size + ranks.COLUMN_BYTES)
        file.write(b"\x01\x02\x03")
    looks(path, 1)
    assert len(read_ranks(path, "late").at) == 4


@pytest.mark.parametrize("content", [b"", b"\0" * 500, b"HFRANKS1" + b"\xff" * 64])
def test_garbage_is_nothing(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert read_ranks(path, "late").at == []


def test_only_what_there_is_can_be_asked_for(path: Path) -> None:
    for quantity, level in (("mood", None), ("late", 9), ("late", -1)):
        with pytest.raises(ValueError, match=r"."):
            read_ranks(path, quantity, level)
