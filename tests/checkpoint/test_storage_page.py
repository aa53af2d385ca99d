"""The storage page: words of one writer each, whole for the other side, whatever dies."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from holdfast.checkpoint.key import Key
from holdfast.checkpoint.storage_page import (
    STORAGE_PAGE_BYTES,
    Peer,
    SaveStatus,
    StoragePage,
    WorkerInfo,
)
from holdfast.checkpoint.tiers import Tier
from tests.more import examples


@pytest.fixture
def fd() -> Iterator[int]:
    made = StoragePage.create()
    yield made
    os.close(made)


def test_an_empty_board_promises_nothing(fd: int) -> None:
    storage_page = StoragePage(fd)
    assert storage_page.info() is None
    assert (storage_page.released, storage_page.newest_copied, storage_page.urgent) == (
        None,
        None,
        False,
    )
    assert [storage_page.of_tier(tier) for tier in Tier] == [SaveStatus()] * 3


def test_both_sides_see_the_same(fd: int) -> None:
    worker, storage = StoragePage(fd), StoragePage(fd)
    peers = (Peer(3, "10.0.0.1:99", 1), Peer(5, "[::1]:98", 0))
    info = WorkerInfo(
        attempt=2, rank=1, world_size=8, local_world_size=2, parent=Key(1, 40), peers=peers
    )
    worker.introduce(info)
    assert (storage.info(), storage.info_count) == (info, 1)
    storage.release(Key(2, 50))
    storage.copied(Key(2, 49))
    storage.saved(Tier.SHARED, SaveStatus(0, 3.5, 1.5, 2))
    storage.warn(time.monotonic() + 60)
    assert (worker.released, worker.newest_copied) == (Key(2, 50), Key(2, 49))
    assert worker.of_tier(Tier.SHARED) == SaveStatus(0, 3.5, 1.5, 2)
    assert worker.urgent
    storage.release(None)
    storage.warn(0.0)
    assert worker.released is None and not worker.urgent


def test_a_roster_is_never_seen_half_written(fd: int) -> None:
    storage_page = StoragePage(fd)
    storage_page.introduce(
        WorkerInfo(attempt=1, rank=0, world_size=1, local_world_size=1, parent=None)
    )
    os.pwrite(fd, b"?", 1024 + 16 + 3)
    assert storage_page.info() is None
    huge = WorkerInfo(
        attempt=1, rank=0, world_size=1, local_world_size=1, parent=None,
        peers=(Peer(0, "x" * STORAGE_PAGE_BYTES, 0),),
    )  # fmt: skip
    with pytest.raises(ValueError, match="worker info of"):
        storage_page.introduce(huge)


def test_keys_are_whole_for_a_reader_while_the_writer_is_killed(fd: int) -> None:
    """Attempt and step of one key are always equal here: any other pair would be torn."""
    storage_page = StoragePage(fd)
    for _ in range(examples(20)):
        pid = os.fork()
        if pid == 0:
            writer = StoragePage(fd)
            number = 0
            while True:
                number += 1
                writer.release(Key(number, number))
        end = time.monotonic() + 0.02
        while time.monotonic() < end:
            key = storage_page.released
            assert key is None or key.attempt == key.step
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        key = storage_page.released
        assert key is None or key.attempt == key.step
        storage_page.release(None)
        assert storage_page.released is None
