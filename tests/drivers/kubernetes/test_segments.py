"""A journal is compressed once, however often it is published, and known again by its successor."""

import gzip
import random
import zlib
from pathlib import Path

import pytest

from holdfast.drivers.kubernetes.segments import Packed, Segments
from holdfast.drivers.kubernetes.sharded import ShardEntry, digest_of
from holdfast.drivers.kubernetes.sharding import SHARD_BYTES

DICE = random.Random(1)


def line(size: int = 4_000) -> bytes:
    """A line that cannot be compressed to less than half."""
    return DICE.randbytes(size // 2).hex().encode() + b"\n"


def whole(packed: Packed) -> bytes:
    return b"".join(gzip.decompress(one.pack()) for one in packed.closed) + gzip.decompress(
        packed.open
    )


def entries(packed: Packed) -> list[ShardEntry]:
    return [ShardEntry(one.digest, one.size, (i,)) for i, one in enumerate(packed.closed)]


@pytest.mark.usefixtures("small_segments")
def test_all_of_a_growing_file_can_be_had_at_any_time_and_a_closed_segment_stays(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal"
    path.touch()
    cut = Segments(path)
    before: tuple[str, ...] = ()
    for _ in range(200):
        with path.open("ab") as file:
            file.write(b"".join(line() for _ in range(DICE.randrange(5))))
        packed = cut.advance()
        assert whole(packed) == path.read_bytes()
        digests = tuple(one.digest for one in packed.closed)
        assert digests[: len(before)] == before
        assert [digest_of(gzip.decompress(one.pack())) for one in packed.closed] == [*digests]
        before = digests
    assert len(before) > 5


def test_a_line_without_its_end_waits_for_it(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b"one\ntw")
    cut = Segments(path)
    assert whole(cut.advance()) == b"one\n"
    path.write_bytes(b"one\ntwo\n")
    assert whole(cut.advance()) == b"one\ntwo\n"


@pytest.mark.usefixtures("small_segments")
def test_each_byte_is_compressed_once_however_often_it_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b"".join(line() for _ in range(300)))
    eaten: list[int] = []
    real = zlib.compressobj

    class Counting:
        def __init__(self, **options: int) -> None:
            self._real = real(wbits=options["wbits"])

        def compress(self, block: bytes) -> bytes:
            eaten.append(len(block))
            return self._real.compress(block)

        def copy(self) -> object:
            return self._real.copy()

    monkeypatch.setattr(zlib, "compressobj", Counting)
    cut = Segments(path)
    for _ in range(5):
        cut.advance()
        with path.open("ab") as file:
            file.write(line())
    cut.advance()
    assert sum(eaten) == path.stat().st_size


@pytest.mark.usefixtures("small_segments")
def test_a_new_controller_knows_the_segments_of_the_last_one_again(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b"".join(line() for _ in range(300)))
    old = Segments(path).advance()
    again = Segments(path, entries(old)).advance()
    assert [one.digest for one in again.closed] == [one.digest for one in old.closed]
    assert whole(again) == path.read_bytes()


@pytest.mark.usefixtures("small_segments")
def test_segments_of_another_journal_are_not_taken_for_ours(tmp_path: Path) -> None:
    path, other = tmp_path / "journal", tmp_path / "other"
    other.write_bytes(b"".join(line() for _ in range(300)))
    path.write_bytes(other.read_bytes()[:300_000] + b"".join(line() for _ in range(300)))
    published = entries(Segments(other).advance())
    again = Segments(path, published).advance()
    assert whole(again) == path.read_bytes()
    kept = [one.digest for one in again.closed if one.digest in {e.digest for e in published}]
    assert 0 < len(kept) < len(published)


def test_a_segment_fits_into_a_shard_even_if_nothing_can_be_compressed(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(DICE.randbytes(2_000_000) + b"\n")
    packed = Segments(path).advance()
    assert max(len(one.pack()) for one in packed.closed) <= SHARD_BYTES
    assert len(packed.open) <= SHARD_BYTES
