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


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 500, ranks.MAGIC + b"\xff" * 64,
     ranks.HEADER.pack(ranks.MAGIC, 1 << 60, 5, 0, 0, 0),
     ranks.HEADER.pack(ranks.MAGIC, 16, (1 << 63) - 1, -1, 0, 0)],
)  # fmt: skip
def test_garbage_is_nothing_and_is_written_over(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    for level in range(ranks.LEVELS):
        assert read_ranks(path, "late", level).at == []
    looks(path, 2)
    assert len(read_ranks(path, "late").at) == 2


def test_a_column_whose_head_is_damaged_is_left_out(path: Path) -> None:
    looks(path, 3)
    size = ranks.COLUMN_BYTES + len(QUANTITIES) * 2 * ranks.SMALLEST
    with path.open("r+b") as file:  # when it was
        file.seek(ranks.HEADER_BYTES + size + 8)
        file.write(struct.pack("<d", 1e300))
    assert read_ranks(path, "late").at == [0.0, 20.0]


def test_attempts_and_what_is_not_known_spoil_no_mean(path: Path) -> None:
    """An attempt every ten looks; rank 1 is silent now and then, rank 2 ever."""
    file = RankHistory(path, 3)
    for look in range(ranks.FANOUT**3):
        second = math.nan if look % 3 == 0 else 2.0
        each = [[1.0, second, math.nan] for _ in QUANTITIES]
        file.add(float(look), 1.0, 1 + look // 10, each)
    file.close()
    weeks = read_ranks(path, "late", 3)
    assert weeks.span_s == [float(ranks.FANOUT**3)] and weeks.attempt == [410]
    (found,) = values(weeks)
    assert found[:2] == [1.0, 2.0] and math.isnan(found[2])


def test_another_number_of_ranks_begins_a_mean_anew(path: Path) -> None:
    file = RankHistory(path, 4)
    for look in range(ranks.FANOUT + 5):
        file.add(float(look), 1.0, 1, rows(4 if look < 5 else 3, 0.0))
    file.close()
    assert values(read_ranks(path, "late", 1)) == [[0.0, 1.0, 2.0]]


def test_values_beyond_all_bounds_are_the_greatest_that_fit(path: Path) -> None:
    file = RankHistory(path, 4)
    file.add(1.0, 1.0, 1, [[1e30, -1e30, math.inf, math.nan] for _ in QUANTITIES])
    file.close()
    (found,) = values(read_ranks(path, "step_s"))
    assert found[:3] == [65504.0, -65504.0, 65504.0] and math.isnan(found[3])


def test_only_what_there_is_can_be_asked_for(path: Path) -> None:
    for quantity, level in (("mood", None), ("late", 9), ("late", -1)):
        with pytest.raises(ValueError, match=r"."):
            read_ranks(path, quantity, level)
