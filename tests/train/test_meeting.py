"""What ranks agree on when they meet: what is to become of a snapshot, and what it must not cost.

The storage process is played by the test, which reads the same shared memory.
"""

import multiprocessing
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.checkpoint.arena import Arena, CellHeader, Key, StatePart
from holdfast.checkpoint.index import read_index
from holdfast.checkpoint.settings import VARIABLE, CheckpointSettings, TierRule
from holdfast.checkpoint.storage_page import SaveStatus, StoragePage
from holdfast.checkpoint.tiers import SnapshotFlag, Tier
from tests.patience import PATIENCE_S
from tests.train.cluster import Cluster

LARGE = str(3 << 20)  # numbers of 4 bytes that the private part grows by in each step


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Cluster]:
    """Two nodes of one worker."""
    cluster = Cluster(tmp_path, nodes=2, local=1)
    yield cluster
    cluster.close()


def told(cluster: Cluster, settings: CheckpointSettings) -> None:
    """Give the workers these settings."""
    cluster.env[VARIABLE] = msgspec.json.encode(settings).decode()


def headers(
    cluster: Cluster, rank: int, part: StatePart = StatePart.SHARED
) -> dict[int, CellHeader]:
    """What the cells of a rank hold, by step."""
    found = (cell.header() for cell in Arena(cluster.arenas[rank]).cells(part))
    return {header.step: header for header in found if header}


def label(cluster: Cluster, rank: int, step: int) -> str:
    """What a snapshot is called."""
    cell = Arena(cluster.arenas[rank]).find(StatePart.PRIVATE, headers(cluster, rank)[step].key)
    assert cell is not None and cell.intact()
    header = cell.header()
    assert header is not None
    return read_index(cell.payload[header.data_bytes : header.payload_bytes]).name


def test_a_snapshot_for_a_durable_tier_stays_until_it_is_released(two: Cluster) -> None:
    told(two, CheckpointSettings(shared=TierRule(every_s=1e9, every_steps=3)))
    two.finish()
    for rank in (0, 1):
        kept = headers(two, rank)
        assert kept[3].flags == SnapshotFlag.SHARED, "the first multiple of three"
        assert label(two, rank, 3) == "step-3", "a milestone is kept for good"
        assert kept[8].flags == SnapshotFlag.SHARED, "the end of training"
        assert kept.keys() == {3, 7, 8}, "step 6 was not added to what is still being saved"


def test_what_is_released_gives_its_room_back(two: Cluster) -> None:
    told(two, CheckpointSettings(shared=TierRule(every_s=1e9, every_steps=3)))
    for storage_page in two.storage_pages:
        StoragePage(storage_page).release(Key(9, 0))
    two.finish()
    assert headers(two, 0).keys() == {6, 7, 8}
    assert headers(two, 1)[6].flags == SnapshotFlag.SHARED


def test_only_the_first_rank_decides_and_what_its_node_has_saved_counts(two: Cluster) -> None:
    told(two, CheckpointSettings(shared=TierRule(every_s=50.0)))
    now = time.monotonic()
    StoragePage(two.storage_pages[0]).saved(Tier.SHARED, SaveStatus(1, now - 60.0, 1.0, 0))
    two.finish()
    assert two.attempts[0].pages[0].report(0, 1, 0.0).tier_every_s == (0.0, 50.0, 0.0)
    assert two.attempts[0].pages[1].report(1, 1, 0.0).tier_every_s == (), "told by rank 0 alone"
    assert SnapshotFlag.SHARED in SnapshotFlag(headers(two, 0)[1].flags)
    assert headers(two, 1)[1].flags == headers(two, 0)[1].flags


def test_a_named_checkpoint_is_of_the_step_it_was_asked_in(two: Cluster) -> None:
    told(two, CheckpointSettings(local=TierRule(every_s=1e9), shared=TierRule(every_s=1e9)))
    two.env |= {"GOLDEN": "4", "HOLDFAST_SNAPSHOT_EVERY": "100"}
    two.finish()
    for rank in (0, 1):
        found = headers(two, rank)
        assert found[5].flags == SnapshotFlag.SHARED and found.keys() == {1, 5, 8}
        assert label(two, rank, 5) == "golden"


def test_a_checkpoint_that_was_spoiled_while_it_was_copied_is_taken_again_by_all_ranks(
    two: Cluster,
) -> None:
    told(two, CheckpointSettings(local=TierRule(every_s=1e9), shared=TierRule(every_s=1e9)))
    two.env |= {"GOLDEN": "4", "MEDDLE": "plain:5", "LAZY": "thread"}
    two.env["HOLDFAST_SNAPSHOT_EVERY"] = "100"
    two.finish()
    for rank in (0, 1):
        found = headers(two, rank)
        assert found[6].flags == SnapshotFlag.SHARED and found.keys() == {1, 6, 8}
        assert label(two, rank, 6) == "golden"
        assert StoragePage(two.storage_pages[rank]).voided == Key(1, 5), "nobody goes on saving it"


def test_a_named_checkpoint_without_a_place_is_an_error(two: Cluster) -> None:
    two.env["GOLDEN"] = "4"
    assert two.run().exit_codes != [0, 0]
    assert "the checkpoint golden cannot be saved" in two.story()


def test_one_node_that_is_about_to_go_makes_all_ranks_hurry_once(two: Cluster) -> None:
    told(two, CheckpointSettings(shared=TierRule(every_s=1e9)))
    two.env["HOLDFAST_SNAPSHOT_EVERY"] = "100"
    StoragePage(two.storage_pages[1]).warn(time.monotonic() + 60.0)
    two.finish()
    for rank in (0, 1):
        found = headers(two, rank)
        hurried = [step for step, header in found.items() if SnapshotFlag.URGENT & header.flags]
        assert hurried == [1] and found[1].flags == SnapshotFlag.URGENT | SnapshotFlag.SHARED


@pytest.mark.parametrize("nodes", [1, 2])
def test_no_step_follows_the_snapshot_that_an_attempt_ends_with(tmp_path: Path, nodes: int) -> None:
    """Workers are ended a moment later, wherever they are then: a step that one of them had done by
    that time would be lost. The agents wait until all know that it is whole, a lone rank too."""
    cluster = Cluster(tmp_path, nodes=nodes, local=1)
    told(cluster, CheckpointSettings())
    pages = [StoragePage(fd) for fd in cluster.storage_pages]
    pages[-1].warn(time.monotonic() + PATIENCE_S, holds=True)
    until = time.monotonic() + PATIENCE_S

    def end_them() -> None:
        while any(page.newest_met is None for page in pages) and time.monotonic() < until:
            time.sleep(0.01)
        for child in multiprocessing.active_children():
            child.terminate()

    thread = threading.Thread(target=end_them)
    thread.start()
    cluster.run()
    thread.join()
    assert [page.newest_met for page in pages] == [Key(1, 1)] * nodes, "whole on all"
    pages[-1].warn(0.0)
    assert cluster.redo_until == 1, "no step was done after that one"
    assert cluster.finish().restored == [1] * nodes
    cluster.close()


def test_who_is_not_ended_in_time_trains_on(two: Cluster) -> None:
    told(two, CheckpointSettings())
    StoragePage(two.storage_pages[1]).warn(time.monotonic() + 3.0, holds=True)
    assert two.finish().restored == [0, 0]
    assert headers(two, 0).keys() == {7, 8}


def test_a_snapshot_in_a_hurry_is_whole_before_the_next_step_begins(two: Cluster) -> None:
    """Nothing is copied beside training: that step may never come to its optimizer."""
    told(two, CheckpointSettings(shared=TierRule(every_s=1e9)))
    two.env |= {"HOLDFAST_SNAPSHOT_EVERY": "100", "LAZY": "thread"}
    StoragePage(two.storage_pages[1]).warn(time.monotonic() + 60.0)
    two.run("1:1:after_backward:1")
    assert headers(two, 1)[1].flags == SnapshotFlag.URGENT | SnapshotFlag.SHARED


def test_large_private_parts_are_left_to_the_agents_and_kept_until_they_are_copied(
    two: Cluster,
) -> None:
    told(two, CheckpointSettings())
    two.env |= {"BALLAST": LARGE, "HOLDFAST_STORAGE_ADDRESS": "127.0.0.1:9", "STEPS": "5"}
    two.finish()
    for rank in (0, 1):
        info = StoragePage(two.storage_pages[rank]).info()
        assert info is not None
        assert [peer.rank for peer in info.peers] == [1 - rank]
        found = headers(two, rank, StatePart.PRIVATE)
        assert [h.step for h in found.values() if h.flags == SnapshotFlag.COPY] == [3], (
            "waits to be copied"
        )
        assert 5 in found, "which keeps no later snapshot from being taken"


def test_the_last_step_waits_for_room(two: Cluster) -> None:
    """Three cells: one for the newest, two that are still being saved when training ends."""
    told(two, CheckpointSettings(shared=TierRule(every_s=1e9, every_steps=6)))
    two.env |= {"GOLDEN": "6", "STEPS": "8"}

    def release_later() -> None:
        while not two.pages or two.pages[0].progress(0.0).step != 8:
            time.sleep(0.01)
        for storage_page in two.storage_pages:
            StoragePage(storage_page).release(Key(9, 0))

    thread = threading.Thread(target=release_later)
    thread.start()
    two.finish()
    thread.join()
    assert headers(two, 0)[8].flags == headers(two, 1)[8].flags == SnapshotFlag.SHARED


def test_copies_that_arrive_let_the_next_snapshot_be_copied(two: Cluster) -> None:
    told(two, CheckpointSettings())
    two.env |= {"BALLAST": LARGE, "HOLDFAST_STORAGE_ADDRESS": "127.0.0.1:9", "STEPS": "5"}
    for storage_page in two.storage_pages:
        StoragePage(storage_page).copied(Key(9, 0))
    two.finish()
    flags = [header.flags for header in headers(two, 1, StatePart.PRIVATE).values()]
    assert flags == [SnapshotFlag.COPY] * 3
