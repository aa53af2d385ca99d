"""Every kind of place keeps the same promises."""

import contextlib
import errno
import os
from pathlib import Path

import pytest

from holdfast.checkpoint import folder as folder_store
from holdfast.checkpoint.stores import Store, open_store
from holdfast.errors import Error


def test_what_was_put_is_read_back_in_whole_and_in_part(store: Store) -> None:
    store.put("a/b.json", b"0123456789")
    assert store.read("a/b.json") == b"0123456789"
    assert store.read("a/b.json", 3, 4) == b"3456"
    assert store.read("a/b.json", 8) == b"89"
    target = bytearray(4)
    store.read_into("a/b.json", 1, memoryview(target))
    assert bytes(target) == b"1234"
    store.put("a/b.json", b"new")
    assert (store.read("a/b.json"), store.size("a/b.json")) == (b"new", 3)


def test_names_are_those_of_a_folder_and_not_of_those_below(store: Store) -> None:
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


def test_what_is_not_there_and_what_ends_too_early_is_missing(store: Store) -> None:
    store.put("a/b", b"123")
    assert store.size("a/c") is None
    for name, at, length in (("a/c", 0, None), ("a/b", 0, 4), ("a/b", 5, 2), ("c/d", 1, 1)):
        with pytest.raises(Error) as caught:
            store.read(name, at, length)
        assert caught.value.slug == "storage-missing", (name, at, length)


@pytest.mark.parametrize("place", ["folder", "s3"], indirect=True)
def test_a_large_file_is_there_when_it_is_whole_and_not_before(store: Store) -> None:
    with store.create("a/big") as upload:
        for letter in (b"a", b"b", b"c"):
            upload.write(memoryview(letter * 100_000))
            assert "big" not in store.list("a")
    assert store.read("a/big") == b"a" * 100_000 + b"b" * 100_000 + b"c" * 100_000


def test_of_a_file_that_is_given_up_nothing_is_left(store: Store) -> None:
    with contextlib.suppress(KeyboardInterrupt), store.create("a/big") as upload:
        upload.write(b"x" * 1000)
        raise KeyboardInterrupt
    assert store.list("a") == []


def test_no_name_leads_out_of_the_place(store: Store) -> None:
    for name in ("../x", "/etc/passwd", "a/../../x", "a//b", "", ".", "a/.hidden", "a\\b", "a\0b"):
        for act in (store.read, store.size, store.remove):
            with pytest.raises(ValueError, match="no name"):
                act(name)
        with pytest.raises(ValueError, match="no name"):
            store.put(name, b"")


def test_an_error_of_a_flush_on_the_way_is_not_lost(
    folder: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system tells it once, to whoever flushes first."""

    def fails(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(folder_store, "FLUSH_BYTES", 1000)
    monkeypatch.setattr(os, "fdatasync", fails)
    with pytest.raises(Error, match="cannot be reached"), folder.create("a/b") as upload:
        upload.write(b"x" * 1000)
    assert folder.list("") == []


@pytest.mark.parametrize("place", ["nope://x/y", "s4:///"])
def test_a_place_of_an_unknown_kind_is_refused(place: str) -> None:
    with pytest.raises(Error, match="no place for checkpoints"):
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
