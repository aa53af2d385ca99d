"""Every kind of place keeps the same promises."""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest

from holdfast.checkpoint import folder as folder_store
from holdfast.checkpoint.open_store import open_store
from holdfast.checkpoint.stores import CheckpointStore
from holdfast.errors import Error


def test_what_was_put_is_read_back_in_whole_and_in_part(store: CheckpointStore) -> None:
    store.put("a/b.json", b"0123456789")
    assert store.read("a/b.json") == b"0123456789"
    assert store.read("a/b.json", 3, 4) == b"3456"
    assert store.read("a/b.json", 8) == b"89"
    target = bytearray(4)
    store.read_into("a/b.json", 1, memoryview(target))
    assert bytes(target) == b"1234"
    store.put("a/b.json", b"new")
    assert (store.read("a/b.json"), store.size("a/b.json")) == (b"new", 3)


def test_names_are_those_of_a_folder_and_not_of_those_below(store: CheckpointStore) -> None:
    assert (store.list(""), store.list("a")) == ([], [])
    for name in ("a/x", "a/y", "b/z"):
        store.put(name, b"1")
    assert store.list("") == ["a", "b"]
    assert store.list("a") == ["x", "y"]
    store.remove("a/x")
    store.remove("a/x")
    assert store.list("a") == ["y"]
    store.remove("a/y")
    assert store.list("") == ["b"]


def test_what_is_not_there_and_what_ends_too_early_is_missing(store: CheckpointStore) -> None:
    store.put("a/b", b"123")
    assert store.size("a/c") is None
    for name, at, length in (("a/c", 0, None), ("a/b", 0, 4), ("a/b", 5, 2), ("c/d", 1, 1)):
        with pytest.raises(Error) as caught:
            store.read(name, at, length)
        assert caught.value.slug == "storage-missing", (name, at, length)


@pytest.mark.parametrize("place", ["folder", "s3"], indirect=True)
def test_a_large_file_is_there_when_it_is_whole_and_not_before(store: CheckpointStore) -> None:
    with store.create("a/big") as upload:
        for letter in (b"a", b"b", b"c"):
            upload.write(memoryview(letter * 100_000))
            assert "big" not in store.list("a")
    assert store.read("a/big") == b"a" * 100_000 + b"b" * 100_000 + b"c" * 100_000


def test_of_a_file_that_is_given_up_nothing_is_left(store: CheckpointStore) -> None:
    with contextlib.suppress(KeyboardInterrupt), store.create("a/big") as upload:
        upload.write(b"x" * 1000)
        raise KeyboardInterrupt
    assert store.list("a") == []


def test_no_name_leads_out_of_the_place(store: CheckpointStore) -> None:
    for name in ("../x", "/etc/passwd", "a/../../x", "a//b", "", ".", "a/.hidden", "a\\b", "a\0b"):
        for act in (store.read, store.size, store.remove):
            with pytest.raises(ValueError, match="not a valid file name"):
                act(name)
        with pytest.raises(ValueError, match="not a valid file name"):
            store.put(name, b"")


LENGTHS = [0, 1, 4095, folder_store.BLOCK_BYTES - 1, folder_store.BLOCK_BYTES]
LENGTHS += [folder_store.BLOCK_BYTES + 4097, 3 * folder_store.BLOCK_BYTES + 5]


@pytest.fixture(params=["direct", "refused", "refused late", "short"])
def taken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the file system takes writes past the page cache."""
    set_flags, write = fcntl.fcntl, os.write

    def refusing(fd: int, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return set_flags(fd, command, flags)

    def refusing_late(fd: int, data: memoryview) -> int:
        if set_flags(fd, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return write(fd, data)

    match request.param:
        case "refused":
            monkeypatch.setattr(fcntl, "fcntl", refusing)
        case "refused late":
            monkeypatch.setattr(os, "write", refusing_late)
        case "short":
            monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[: 1 << 20]))
    return str(request.param)


@pytest.mark.parametrize("length", LENGTHS)
def test_what_is_written_in_pieces_arrives_whole(
    folder: CheckpointStore, taken: str, length: int
) -> None:
    data = random.Random(length).randbytes(length)
    with folder.create("a/b") as upload:
        for at in range(0, length, 1_500_007):
            upload.write(memoryview(data)[at : at + 1_500_007])
    assert folder.size("a/b") == length and folder.read("a/b") == data, taken


def test_large_files_do_not_go_through_the_page_cache(folder: CheckpointStore) -> None:
    """Or for one block only, of which this is the test."""
    size = 8 * folder_store.BLOCK_BYTES
    with folder.create("a/b") as upload:
        for _ in range(8):
            upload.write(bytes(folder_store.BLOCK_BYTES))
    path = Path(folder.where, "a", "b")
    if not direct(path.with_name("probe")):
        pytest.skip("the file system of the temporary folder does not take O_DIRECT")
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as mapped:
        present = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
        at = np.frombuffer(mapped, np.uint8).ctypes.data
        result = ctypes.CDLL(None).mincore(ctypes.c_void_p(at), ctypes.c_size_t(size), present)
        assert result == 0
        assert sum(page & 1 for page in present) * mmap.PAGESIZE <= folder_store.BLOCK_BYTES


def direct(path: Path) -> bool:
    """Whether writes past the page cache work here."""
    try:
        fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT)
        os.write(fd, mmap.mmap(-1, 4096))
    except OSError:
        return False
    os.close(fd)
    return "tmpfs" not in subprocess.check_output(["stat", "-f", "-c", "%T", path], text=True)


@pytest.mark.parametrize("taken", ["refused"], indirect=True)
def test_an_error_of_a_flush_on_the_way_is_not_lost(
    folder: CheckpointStore, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system tells it once, to whoever flushes first."""

    def fails(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(folder_store, "FLUSH_BYTES", 1000)
    monkeypatch.setattr(os, "fdatasync", fails)
    with pytest.raises(Error, match="is unreachable"), folder.create("a/b") as upload:
        upload.write(b"x" * folder_store.BLOCK_BYTES)
    assert folder.list("") == [], taken


def test_an_error_of_a_block_is_not_lost(
    folder: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_fd: int, _data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", fails)
    with pytest.raises(Error) as caught, folder.create("a/b") as upload:
        upload.write(b"x" * 2 * folder_store.BLOCK_BYTES)
    assert caught.value.slug == "storage-full"
    assert folder.list("") == []


@pytest.mark.parametrize("place", ["nope://x/y", "s4:///"])
def test_a_place_of_an_unknown_kind_is_refused(place: str) -> None:
    with pytest.raises(Error, match="not a valid checkpoint location"):
        open_store(place)


def test_a_client_that_is_not_installed_is_named() -> None:
    with pytest.raises(Error) as caught:
        open_store("gs://bucket/job")
    assert caught.value.slug == "storage-place"
    assert "pip install gcsfs" in caught.value.why


def test_a_file_url_is_a_folder(tmp_path: Path) -> None:
    open_store(f"file://{tmp_path}/x").put("a", b"1")
    assert (tmp_path / "x" / "a").read_bytes() == b"1"


def test_a_link_in_the_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    store = open_store(str(tmp_path / "shelf"))
    store.put("a/b", b"1")
    os.symlink(tmp_path / "secret", tmp_path / "shelf" / "a" / "link")
    with pytest.raises(Error):
        store.read("a/link")


def test_a_folder_that_cannot_be_used_is_said_by_its_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Error) as caught:
        open_store(str(tmp_path / "file")).put("a/b", b"1")
    assert caught.value.slug in ("storage-missing", "storage-unreachable")
    with pytest.raises(Error) as caught:
        open_store("/proc/self/nothing").put("a/b", b"1")
    assert caught.value.slug in ("storage-missing", "storage-denied")
