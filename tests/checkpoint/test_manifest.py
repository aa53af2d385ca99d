"""The files of a checkpoint say what they are, and nothing else is believed."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint import manifest as files
from holdfast.checkpoint.key import Key
from holdfast.checkpoint.manifest import (
    Chunk,
    Lineage,
    Manifest,
    ParentSnapshot,
    PartFile,
    RankPart,
    SavedLeaf,
    SavedPart,
)
from holdfast.errors import Error

KEY = Key(3, 480)
DIGEST = "0123456789abcdef" * 2
SEAL = "0123456789abcdef"
CHUNK = Chunk("step-000000000470.attempt-000003/rank-00001.data", 10, 4, DIGEST)
LEAF = SavedLeaf("w", "t", "float32", (1,), (0,), (4,), (2,), False, 0, 4, (CHUNK,))
PART = RankPart(
    job="job",
    attempt=3,
    step=480,
    rank=1,
    world_size=2,
    fingerprint="00000000000000ff",
    name="",
    fresh=0,
    data_bytes=14,
    parts={"shared": SavedPart((LEAF,), (CHUNK,), SEAL), "private": SavedPart((), (CHUNK,), SEAL)},
)
MANIFEST = Manifest(
    job="job",
    attempt=3,
    step=480,
    world_size=2,
    name="golden",
    created_at=1.5,
    bytes=10,
    written_bytes=5,
    parts=tuple(PartFile(rank, files.rank_file(KEY, rank), 100, DIGEST) for rank in (0, 1)),
    files=(CHUNK.file,),
)
LINEAGE = Lineage(attempt=3, parent=ParentSnapshot(2, 470))
RECORDS: list[tuple[RankPart | Manifest | Lineage, str]] = [
    (PART, files.rank_file(KEY, 1)),
    (MANIFEST, files.manifest_file(KEY)),
    (LINEAGE, files.lineage_file(3)),
]


def test_names_are_found_again_and_others_are_not() -> None:
    assert files.folder_of(KEY) == "step-000000000480.attempt-000003"
    assert files.key_of(files.folder_of(KEY)) == KEY
    assert files.key_of(files.folder_of(Key(10**7, 10**13))) == Key(10**7, 10**13)
    assert files.rank_of("rank-00012.json") == 12
    assert files.attempt_of("000003.json") == 3
    for name in ("step-480.attempt-3", "step-0000000000480.attempt-000003", "attempts", "step-x"):
        assert files.key_of(name) is None
    assert files.rank_of("rank-00012.data") is None
    assert files.attempt_of("3.json.part") is None


@pytest.mark.parametrize(("record", "name"), RECORDS)
def test_a_record_is_read_back_and_ends_with_the_checksum_of_the_rest(
    record: RankPart | Manifest | Lineage, name: str
) -> None:
    data = files.encode(record)
    read = files.decode(data, type(record), name)
    assert msgspec.structs.replace(read, xxh3_128=record.xxh3_128) == record
    assert data.endswith(f'"xxh3_128":"{files.digest(data[:-34])}"}}'.encode())
    assert msgspec.json.decode(data)["format"] == 1


@given(st.data())
def test_any_flipped_bit_cut_or_growth_is_found(data: st.DataObject) -> None:
    record, name = data.draw(st.sampled_from(RECORDS))
    encoded = bytearray(files.encode(record))
    match data.draw(st.sampled_from(("flip", "cut", "grow"))):
        case "flip":
            at = data.draw(st.integers(0, len(encoded) - 1))
            encoded[at] ^= 1 << data.draw(st.integers(0, 7))
        case "cut":
            del encoded[data.draw(st.integers(0, len(encoded) - 1)) :]
        case _:
            encoded += data.draw(st.binary(min_size=1, max_size=40))
    with pytest.raises(Error) as caught:
        files.decode(bytes(encoded), type(record), name)
    assert caught.value.slug == "checkpoint-damaged"
    assert name in caught.value.what


@pytest.mark.parametrize(
    "file",
    [
        "../../../etc/passwd",
        "/etc/passwd",
        "step-000000000470.attempt-000003/../../x/rank-00001.data",
        "step-000000000470.attempt-000003/rank-00001.data\n",
        "step-000000000470.attempt-000003/rank-00001.json",
        "step-000000000470.attempt-000003/rank-00001.data/..",
        "",
    ],
)
def test_a_file_outside_is_refused_though_the_checksum_is_right(file: str) -> None:
    chunk = msgspec.structs.replace(CHUNK, file=file)
    leaf = msgspec.structs.replace(LEAF, chunks=(chunk,))
    part = msgspec.structs.replace(PART, parts={"shared": SavedPart((leaf,), (), SEAL)})
    with pytest.raises(Error, match="is damaged"):
        files.decode(files.encode(part), RankPart, files.rank_file(KEY, 1))
    manifest = msgspec.structs.replace(MANIFEST, files=(file,))
    with pytest.raises(Error, match="is damaged"):
        files.decode(files.encode(manifest), Manifest, files.manifest_file(KEY))


@pytest.mark.parametrize(
    "changes",
    [
        {"rank": 0},  # the file of rank 0 under the name of rank 1
        {"step": 479},
        {"attempt": 2},
        {"rank": 5, "world_size": 2},
        {"format": 2},
        {"data_bytes": -1},
        {"fingerprint": "x"},
        {"parts": {"shared": SavedPart((msgspec.structs.replace(LEAF, length=5),), (), SEAL)}},
    ],
)
def test_a_part_that_cannot_be_is_refused(changes: dict[str, object]) -> None:
    part = msgspec.structs.replace(PART, **changes)
    with pytest.raises(Error, match="is damaged"):
        files.decode(files.encode(part), RankPart, files.rank_file(KEY, 1))


@pytest.mark.parametrize(
    "parts",
    [
        (),
        (MANIFEST.parts[0], MANIFEST.parts[0]),
        (PartFile(2, files.rank_file(KEY, 2), 1, DIGEST),),
        (PartFile(0, files.rank_file(KEY, 1), 1, DIGEST),),
        (PartFile(0, "../rank-00000.json", 1, DIGEST),),
    ],
)
def test_a_manifest_with_impossible_parts_is_refused(parts: tuple[PartFile, ...]) -> None:
    manifest = msgspec.structs.replace(MANIFEST, parts=parts)
    with pytest.raises(Error, match="is damaged"):
        files.decode(files.encode(manifest), Manifest, files.manifest_file(KEY))
