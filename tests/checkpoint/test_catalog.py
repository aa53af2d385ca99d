"""Every kind of damage is found, named, and does not hide what is sound."""

import os
import random
import shutil
from pathlib import Path

import msgspec
import pytest

from holdfast.checkpoint import manifest as files
from holdfast.checkpoint.catalog import (
    committed,
    index_of,
    open_checkpoint,
    previous_part,
    read_chunk,
    survey,
    verify,
)
from holdfast.checkpoint.key import Key
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.open_store import open_store
from holdfast.checkpoint.save import commit
from holdfast.checkpoint.stores import CheckpointStore
from holdfast.errors import Error
from tests.checkpoint.making import NOW, Snapshot, began, saved

OLD, NEW = Key(1, 10), Key(1, 20)
FROZEN = os.urandom(3000)


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """Two checkpoints of two ranks each; the newer one refers to the older for its frozen leaf."""
    root = tmp_path / "shelf"
    store = open_store(str(root))
    began(store, 1)
    snapshots = [Snapshot(rank, 2) for rank in (0, 1)]
    for key in (OLD, NEW):
        for one in snapshots:
            previous = previous_part(store, one.rank)
            moving = f"{one.rank} {key.step}".encode() * (100 + key.step)
            saved(store, one, key, previous=previous, frozen=FROZEN, moving=moving)
        commit(store, key, ranks=[0, 1], now=NOW)
    for one in snapshots:
        one.close()
    return root


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def place(shelf: Path, name: str) -> Path:
    return shelf / name


def usable(store: CheckpointStore, key: Key) -> bool:
    """Whether a reader gets every byte."""
    try:
        _read(store, key)
    except Error as error:
        return error.slug != "checkpoint-damaged"
    return True


def _read(store: CheckpointStore, key: Key) -> None:
    for part in open_checkpoint(store, key).parts.values():
        for chunk in part.chunks():
            read_chunk(store, chunk)
        for saved_part in part.parts.values():
            index_of(store, saved_part)


def test_what_is_sound_is_said_to_be(shelf: Path) -> None:
    store = open_store(str(shelf))
    assert [one.key for one in committed(store)] == [NEW, OLD]
    assert verify(store, NEW) == verify(store, OLD) == []
    assert usable(store, NEW)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("where", [0.0, 0.5, 1.0])
def test_a_flipped_bit_of_data_is_named_by_file_rank_leaf_and_place(
    shelf: Path, rank: int, where: float
) -> None:
    path = place(shelf, files.data_file(NEW, rank))
    at = int((path.stat().st_size - 1) * where)
    flip(path, at)
    store = open_store(str(shelf))
    (damage,) = verify(store, NEW)
    assert (damage.file, damage.rank) == (files.data_file(NEW, rank), rank)
    assert damage.at is not None and damage.length is not None
    assert damage.at <= at < damage.at + damage.length
    assert damage.leaf == (None if where == 1.0 else "moving")  # the index is at the end
    assert verify(store, OLD) == []
    assert not usable(store, NEW)
    assert usable(store, OLD)


def test_no_flipped_bit_anywhere_goes_unseen(shelf: Path) -> None:
    dice = random.Random(6)
    store = open_store(str(shelf))
    names = [f"{files.folder_of(NEW)}/{name}" for name in store.list(files.folder_of(NEW))]
    assert len(names) == 5
    for name in names:
        path = place(shelf, name)
        sound = path.read_bytes()
        for at in {0, len(sound) - 1, *dice.sample(range(len(sound)), 12)}:
            flip(path, at)
            assert name in {damage.file for damage in verify(store, NEW)}, (name, at)
            assert not usable(store, NEW)
            path.write_bytes(sound)
    assert verify(store, NEW) == []


def test_damage_of_a_file_that_both_need_is_found_in_both(shelf: Path) -> None:
    flip(place(shelf, files.data_file(OLD, 0)), 2003)
    store = open_store(str(shelf))
    for key in (OLD, NEW):
        assert [damage.leaf for damage in verify(store, key)] == ["frozen"]


@pytest.mark.parametrize("name", [files.rank_file(NEW, 0), files.rank_file(NEW, 1)])
@pytest.mark.parametrize("act", ["flip", "cut", "remove", "swap", "older"])
def test_a_damaged_description_is_found_and_the_older_checkpoint_is_left(
    shelf: Path, name: str, act: str
) -> None:
    path = place(shelf, name)
    match act:
        case "flip":
            flip(path, path.stat().st_size // 2)
        case "cut":
            os.truncate(path, path.stat().st_size - 1)
        case "remove":
            path.unlink()
        case "swap":
            other = files.rank_file(NEW, 1 - (files.rank_of(path.name) or 0))
            shutil.copy(place(shelf, other), path)
        case "older":
            shutil.copy(place(shelf, f"{files.folder_of(OLD)}/{path.name}"), path)
    store = open_store(str(shelf))
    assert [(d.file, d.leaf) for d in verify(store, NEW)] == [(name, None)]
    assert not usable(store, NEW)
    assert usable(store, OLD)


@pytest.mark.parametrize("act", ["cut", "remove", "swap", "older"])
def test_damaged_bytes_are_found(shelf: Path, act: str) -> None:
    path = place(shelf, files.data_file(NEW, 1))
    match act:
        case "cut":
            os.truncate(path, path.stat().st_size - 1)
        case "remove":
            path.unlink()
        case "swap":
            shutil.copy(place(shelf, files.data_file(NEW, 0)), path)
        case "older":
            shutil.copy(place(shelf, files.data_file(OLD, 1)), path)
    store = open_store(str(shelf))
    damages = verify(store, NEW)
    assert damages
    assert {damage.file for damage in damages} == {files.data_file(NEW, 1)}
    assert usable(store, OLD)


@pytest.mark.parametrize("act", ["flip", "cut", "empty", "older"])
def test_a_damaged_manifest_does_not_count_and_is_named(shelf: Path, act: str) -> None:
    path = place(shelf, files.manifest_file(NEW))
    match act:
        case "flip":
            flip(path, 20)
        case "cut":
            os.truncate(path, 100)
        case "empty":
            os.truncate(path, 0)
        case "older":
            shutil.copy(place(shelf, files.manifest_file(OLD)), path)
    store = open_store(str(shelf))
    found = survey(store)
    assert [one.key for one in found.committed] == [OLD]
    assert [damage.file for damage in found.damaged] == [files.manifest_file(NEW)]
    assert [damage.file for damage in verify(store, NEW)] == [files.manifest_file(NEW)]


def test_without_a_manifest_there_is_no_checkpoint(shelf: Path) -> None:
    place(shelf, files.manifest_file(NEW)).unlink()
    store = open_store(str(shelf))
    assert [one.key for one in committed(store)] == [OLD]
    assert survey(store).unfinished == (NEW,)
    for act in (open_checkpoint, verify):
        with pytest.raises(Error, match="no checkpoint of step 20"):
            act(store, NEW)


def test_a_renamed_folder_is_another_checkpoint_that_nobody_committed(shelf: Path) -> None:
    shutil.copytree(shelf / files.folder_of(NEW), shelf / files.folder_of(Key(1, 30)))
    store = open_store(str(shelf))
    assert [one.key for one in committed(store)] == [NEW, OLD]
    assert len(survey(store).damaged) == 1


def test_a_damaged_lineage_is_named_and_nothing_is_stuck(shelf: Path) -> None:
    store = open_store(str(shelf))
    began(store, 2, Key(1, 10))
    assert [one.key for one in committed(store)] == [OLD]
    flip(place(shelf, files.lineage_file(2)), 15)
    found = survey(store)
    assert [damage.file for damage in found.damaged] == [files.lineage_file(2)]
    assert [one.key for one in found.committed] == [NEW, OLD]


def test_a_forged_manifest_cannot_reach_out_of_the_place(shelf: Path) -> None:
    """Also if somebody gets all checksums right."""
    (shelf.parent / "outside.json").write_text("{}")
    manifest = open_checkpoint(open_store(str(shelf)), NEW).manifest
    parts = (msgspec.structs.replace(manifest.parts[0], file="../outside.json"), manifest.parts[1])
    forged: Manifest = msgspec.structs.replace(manifest, parts=parts)
    place(shelf, files.manifest_file(NEW)).write_bytes(files.encode(forged))
    with pytest.raises(Error, match="is damaged"):
        open_checkpoint(open_store(str(shelf)), NEW)


def test_strange_files_do_no_harm(shelf: Path) -> None:
    (shelf / "lost+found").mkdir()
    (shelf / "notes.txt").write_text("x")
    (shelf / "step-1.attempt-1").mkdir()
    (shelf / "attempts" / "x.json").write_text("x")
    (shelf / files.folder_of(NEW) / "rank-00000.json.1234.part").write_text("x")
    store = open_store(str(shelf))
    assert [one.key for one in committed(store)] == [NEW, OLD]
    assert verify(store, NEW) == []
