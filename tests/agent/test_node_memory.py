"""A node's folder in shared memory is one of its own, and only that is removed."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agent import node_memory


@pytest.fixture
def shm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """In place of the machine's."""
    (tmp_path / "shm").mkdir()
    monkeypatch.setattr(node_memory, "SHM", tmp_path / "shm")
    yield tmp_path / "shm"
    shutil.rmtree(tmp_path)


def test_it_is_made_once_and_goes(shm: Path) -> None:
    assert node_memory.made("n-1") == node_memory.made("n-1") == shm / "holdfast-n-1"
    assert (shm / "holdfast-n-1").stat().st_mode & 0o777 == 0o700
    (shm / "holdfast-n-1" / "segment").write_bytes(b"x")
    node_memory.forget("n-1")
    node_memory.forget("n-1")
    assert list(shm.iterdir()) == []


@pytest.mark.parametrize("name", ["x/../../mine", "../mine", "x/..", "nul\0"])
def test_a_name_that_leads_elsewhere_removes_nothing(shm: Path, name: str) -> None:
    mine = shm.parent / "mine"
    mine.mkdir()
    (shm / "holdfast-x").mkdir()
    (shm / "holdfast-..").mkdir()
    before = sorted(shm.parent.rglob("*"))
    node_memory.forget(name)
    assert sorted(shm.parent.rglob("*")) == before


def test_what_another_user_has_put_there_is_neither_used_nor_removed(
    shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = shm.parent / "mine"
    mine.mkdir()
    (shm / "holdfast-n-1").symlink_to(mine)
    assert node_memory.made("n-1") is None
    node_memory.forget("n-1")
    assert mine.exists()
    (shm / "holdfast-n-2").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: (shm / "holdfast-n-2").stat().st_uid + 1)
    assert node_memory.made("n-2") is None
    node_memory.forget("n-2")
    assert (shm / "holdfast-n-2").exists()
