"""A save is whole or does not count, costs what is new, and stops when it should."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.checkpoint import manifest as files
from holdfast.checkpoint.arena import StatePart
from holdfast.checkpoint.bandwidth_limit import BandwidthLimit
from holdfast.checkpoint.catalog import (
    committed,
    index_of,
    open_checkpoint,
    previous_part,
    read_chunk,
    verify,
)
from holdfast.checkpoint.index import EVERYWHERE, ON_NODE
from holdfast.checkpoint.key import Key
from holdfast.checkpoint.manifest import CHUNK_BYTES, RankPart
from holdfast.checkpoint.open_store import open_store
from holdfast.checkpoint.reuse import FRESH_EVERY
from holdfast.checkpoint.save import (
    SaveCancelledError,
    commit,
    lacking,
    save_rank,
)
from holdfast.checkpoint.stores import CheckpointStore
from holdfast.checkpoint.tiers import Tier
from holdfast.errors import Error
from tests.checkpoint.making import NOW, Held, Snapshot, began, committed_step, saved

SMALL, LARGE = b"s" * 1000, os.urandom(CHUNK_BYTES + 5)


def test_what_was_saved_is_read_back_on_every_kind_of_place(store: CheckpointStore) -> None:
    snapshot = Snapshot()
    shared = {"model.w": LARGE, "model.empty": b"", "model.b": SMALL}
    cells = snapshot.take(Key(2, 7), shared=shared, private={"rng": b"r"}, name="golden")
    began(store, 2, Key(1, 5))
    save_rank(store, cells, job="job", tier=Tier.ARCHIVE)
    assert committed(store) == []
    made = commit(store, Key(2, 7), ranks=[0], now=NOW)
    assert (made.job, made.step, made.name, made.created_at) == ("job", 7, "golden", NOW)
    opened = open_checkpoint(store, Key(2, 7))
    assert [one.key for one in committed(store)] == [Key(2, 7)]
    part = opened.parts[0].parts["shared"]
    read = {
        leaf.name: b"".join(read_chunk(store, c) for c in leaf.chunks or ()) for leaf in part.leaves
    }
    assert read == shared
    assert [len(leaf.chunks or ()) for leaf in part.leaves] == [2, 0, 1]
    assert index_of(store, part).tree[1::2] == list(shared)
    assert verify(store, Key(2, 7)) == []
    snapshot.close()


def test_what_did_not_change_is_not_written_again(
    folder: CheckpointStore, snapshot: Snapshot
) -> None:
    saved(folder, snapshot, Key(1, 1), frozen=LARGE, moving=b"1" * 500)
    first = commit(folder, Key(1, 1), ranks=[0], now=NOW)
    before = previous_part(folder, 0)
    part = saved(folder, snapshot, Key(1, 2), previous=before, frozen=LARGE, moving=b"2" * 500)
    second = commit(folder, Key(1, 2), ranks=[0], now=NOW)
    assert part.data_bytes == folder.size(files.data_file(Key(1, 2), 0)) == 500
    assert (first.written_bytes, second.written_bytes) == (first.bytes, 500)
    assert second.files == (files.data_file(Key(1, 1), 0),)
    assert second.bytes == first.bytes
    assert verify(folder, Key(1, 2)) == []


def test_one_changed_byte_costs_one_chunk(folder: CheckpointStore, snapshot: Snapshot) -> None:
    first = saved(folder, snapshot, Key(1, 1), big=LARGE)
    changed = bytearray(LARGE)
    changed[-1] ^= 1
    part = saved(folder, snapshot, Key(1, 2), previous=first, big=bytes(changed))
    assert part.data_bytes == 5


def test_a_little_that_stays_does_not_keep_a_large_file(
    folder: CheckpointStore, snapshot: Snapshot
) -> None:
    """Else every checkpoint that is thinned out would leave most of its bytes behind."""
    first = saved(folder, snapshot, Key(1, 1), few=SMALL, moving=b"1" * 5000)
    second = saved(folder, snapshot, Key(1, 2), previous=first, few=SMALL, moving=b"2" * 5000)
    assert {chunk.file for chunk in second.chunks()} == {files.data_file(Key(1, 2), 0)}
    assert second.fresh == 0


def test_now_and_then_all_is_written_anew(folder: CheckpointStore, snapshot: Snapshot) -> None:
    """So that a file which goes bad does not take the whole history along."""
    previous: RankPart | None = None
    written = []
    for step in range(1, FRESH_EVERY + 3):
        previous = saved(folder, snapshot, Key(1, step), previous=previous, frozen=SMALL)
        written.append(previous.data_bytes > 0)
    assert written == [n % FRESH_EVERY == 0 for n in range(FRESH_EVERY + 2)]


def test_a_file_that_has_gone_is_not_referred_to(
    folder: CheckpointStore, snapshot: Snapshot
) -> None:
    first = saved(folder, snapshot, Key(1, 1), frozen=SMALL)
    folder.remove(files.data_file(Key(1, 1), 0))
    assert saved(folder, snapshot, Key(1, 2), previous=first, frozen=SMALL).data_bytes > 1000


def test_each_tier_gets_what_its_readers_cannot_find_elsewhere(
    tmp_path: Path, snapshot: Snapshot
) -> None:
    leaves = {
        "all": Held(b"a" * 10, own=False),
        "node": Held(b"n" * 10, own=False, save=ON_NODE),
        "cluster": Held(b"c" * 10, own=False, save=EVERYWHERE),
    }
    found = {}
    for tier in (Tier.LOCAL, Tier.SHARED):
        cells = snapshot.take(Key(1, 1), private=leaves)
        part = save_rank(open_store(str(tmp_path / tier.name)), cells, job="job", tier=tier)
        found[tier] = {x.name for x in part.parts["private"].leaves if x.chunks is not None}
    assert found == {Tier.LOCAL: {"all", "node"}, Tier.SHARED: {"all", "cluster"}}


# ── what is not saved ─────────────────────────────────────────────────────────────────────────


def test_a_flipped_bit_in_memory_is_not_saved(folder: CheckpointStore, snapshot: Snapshot) -> None:
    for part in (StatePart.SHARED, StatePart.PRIVATE):
        cells = snapshot.take(Key(1, 1), shared={"w": SMALL}, private={"x": SMALL})
        cells[part].payload[500] ^= 1
        with pytest.raises(Error, match="could not be saved") as caught:
            save_rank(folder, cells, job="job", tier=Tier.SHARED)
        assert caught.value.slug == "snapshot-changed"
        assert lacking(folder, Key(1, 1), [0]) == {0}
        assert folder.list("") == []


def test_a_flipped_bit_between_leaves_or_in_the_index_is_noticed(
    folder: CheckpointStore, snapshot: Snapshot
) -> None:
    for at in (1001, -1, -20):
        cells = snapshot.take(Key(1, 1), shared={"w": SMALL}, private={"x": SMALL})
        header = cells[StatePart.SHARED].header()
        assert header is not None
        cells[StatePart.SHARED].payload[at % header.payload_bytes] ^= 1
        with pytest.raises(Error, match="could not be saved"):
            save_rank(folder, cells, job="job", tier=Tier.SHARED)


def test_a_snapshot_that_is_replaced_meanwhile_is_not_saved(
    folder: CheckpointStore, snapshot: Snapshot
) -> None:
    cells = snapshot.take(Key(1, 1), private={"x": LARGE})
    calls = iter(range(1000))

    def overwritten() -> bool:
        if next(calls) == 1:  # between two chunks
            cells[StatePart.PRIVATE].payload[CHUNK_BYTES + 2] ^= 1
        return False

    with pytest.raises(Error, match="could not be saved"):
        save_rank(folder, cells, job="job", tier=Tier.SHARED, cancelled=overwritten)
    assert committed(folder) == []


def test_cells_of_different_steps_and_unsealed_ones_are_refused(
    folder: CheckpointStore, snapshot: Snapshot
) -> None:
    one = snapshot.take(Key(1, 1), private={"x": SMALL})
    other = snapshot.take(Key(1, 2), private={"x": SMALL})
    mixed = {StatePart.SHARED: one[StatePart.SHARED], StatePart.PRIVATE: other[StatePart.PRIVATE]}
    unsealed = snapshot.take(Key(1, 3), private={"x": SMALL}, sealed=False)
    for cells in (mixed, unsealed):
        with pytest.raises(Error) as caught:
            save_rank(folder, cells, job="job", tier=Tier.SHARED)
        assert caught.value.slug == "snapshot-changed"


def test_a_save_that_is_called_off_leaves_nothing(
    folder: CheckpointStore, snapshot: Snapshot
) -> None:
    for after in range(4):
        calls = iter([False] * after + [True] * 100)
        with pytest.raises(SaveCancelledError):
            saved(folder, snapshot, Key(1, 1), cancelled=calls.__next__, x=LARGE)
        assert folder.list("") == []


def test_the_same_save_again_is_done_already(folder: CheckpointStore, snapshot: Snapshot) -> None:
    first = saved(folder, snapshot, Key(1, 1), x=SMALL)
    assert saved(folder, snapshot, Key(1, 1), x=SMALL) == first
    made = commit(folder, Key(1, 1), ranks=[0], now=NOW)
    assert saved(folder, snapshot, Key(1, 1), x=SMALL) == first
    assert commit(folder, Key(1, 1), ranks=[0], now=NOW + 5) == made


def test_another_state_under_the_same_name_is_never_taken_for_it(
    folder: CheckpointStore, snapshot: Snapshot
) -> None:
    """A job that was begun anew in the place of an older one of its name."""
    saved(folder, snapshot, Key(1, 1), x=SMALL)
    saved(folder, snapshot, Key(1, 1), x=b"other" * 200)
    commit(folder, Key(1, 1), ranks=[0], now=NOW)
    assert verify(folder, Key(1, 1)) == []
    leaf = open_checkpoint(folder, Key(1, 1)).parts[0].parts["private"].leaves[0]
    assert b"".join(read_chunk(folder, c) for c in leaf.chunks or ()) == b"other" * 200
    with pytest.raises(Error, match="not a valid checkpoint location") as caught:
        saved(folder, snapshot, Key(1, 1), x=SMALL)
    assert "another run" in caught.value.why
    assert verify(folder, Key(1, 1)) == []


def test_the_first_save_of_an_attempt_refers_to_nothing_older(
    folder: CheckpointStore, snapshot: Snapshot
) -> None:
    before = saved(folder, snapshot, Key(1, 1), frozen=LARGE)
    after = saved(folder, snapshot, Key(2, 2), previous=before, frozen=LARGE)
    assert after.fresh == 0
    assert {chunk.file for chunk in after.chunks()} == {files.data_file(Key(2, 2), 0)}


# ── committing ────────────────────────────────────────────────────────────────────────────────


def test_nothing_counts_before_every_rank_is_there(folder: CheckpointStore) -> None:
    snapshots = [Snapshot(rank, 2) for rank in (0, 1)]
    saved(folder, snapshots[0], Key(1, 1), x=SMALL)
    assert lacking(folder, Key(1, 1), [0, 1]) == {1}
    with pytest.raises(Error, match="is incomplete"):
        commit(folder, Key(1, 1), ranks=[0, 1], now=NOW)
    assert committed(folder) == []
    saved(folder, snapshots[1], Key(1, 1), x=SMALL)
    assert commit(folder, Key(1, 1), ranks=[0, 1], now=NOW).whole
    for snapshot in snapshots:
        snapshot.close()


def test_on_the_disk_of_a_node_only_its_ranks_count(folder: CheckpointStore) -> None:
    snapshot = Snapshot(1, 4)
    saved(folder, snapshot, Key(1, 1), tier=Tier.LOCAL, x=SMALL)
    made = commit(folder, Key(1, 1), ranks=[1], now=NOW)
    assert (made.ranks, made.world_size, made.whole) == ((1,), 4, False)
    snapshot.close()


def test_what_every_rank_left_to_another_is_noticed(folder: CheckpointStore) -> None:
    nobody = Held(SMALL, own=False, save=0)
    snapshots = [Snapshot(rank, 2) for rank in (0, 1)]
    for one in snapshots:
        saved(folder, one, Key(1, 1), weight=nobody)
    with pytest.raises(Error, match="is incomplete") as caught:
        commit(folder, Key(1, 1), ranks=[0, 1], now=NOW)
    assert "weight" in caught.value.why
    saved(folder, snapshots[0], Key(1, 2), weight=Held(SMALL, own=False))
    saved(folder, snapshots[1], Key(1, 2), weight=nobody)
    assert commit(folder, Key(1, 2), ranks=[0, 1], now=NOW).whole
    for snapshot in snapshots:
        snapshot.close()


def test_a_data_file_that_is_cut_off_is_not_committed(tmp_path: Path, snapshot: Snapshot) -> None:
    store = open_store(str(tmp_path))
    saved(store, snapshot, Key(1, 1), x=SMALL)
    os.truncate(tmp_path / files.data_file(Key(1, 1), 0), 900)
    with pytest.raises(Error, match="is incomplete"):
        commit(store, Key(1, 1), ranks=[0], now=NOW)


# ── older attempts ────────────────────────────────────────────────────────────────────────────


def test_an_older_attempt_can_neither_save_nor_commit(
    folder: CheckpointStore, snapshot: Snapshot
) -> None:
    began(folder, 2)
    saved(folder, snapshot, Key(2, 500), x=SMALL)
    began(folder, 3, Key(2, 480))
    for act in (
        lambda: saved(folder, snapshot, Key(2, 510), x=SMALL),
        lambda: commit(folder, Key(2, 500), ranks=[0], now=NOW),
        lambda: began(folder, 2),
    ):
        with pytest.raises(Error) as caught:
            act()
        assert caught.value.slug == "checkpoint-fenced"
    assert committed(folder) == []


def test_an_attempt_that_is_replaced_while_it_saves_does_not_finish(
    folder: CheckpointStore, snapshot: Snapshot
) -> None:
    def replaced() -> bool:
        began(folder, 3, Key(2, 480))
        return False

    began(folder, 2)
    with pytest.raises(Error, match="must not save"):
        saved(folder, snapshot, Key(2, 500), cancelled=replaced, x=SMALL)
    assert lacking(folder, Key(2, 500), [0]) == {0}


def test_what_slips_through_the_fence_is_void(folder: CheckpointStore) -> None:
    """A node that was cut off between its last question and its last write."""
    committed_step(folder, Key(2, 480), x=SMALL)
    committed_step(folder, Key(2, 500), x=SMALL)
    began(folder, 3, Key(2, 480))
    committed_step(folder, Key(3, 490), x=SMALL)
    assert [one.key for one in committed(folder)] == [Key(3, 490), Key(2, 480)]


# ── limits ────────────────────────────────────────────────────────────────────────────────────


def test_saving_takes_no_more_than_its_bandwidth(
    folder: CheckpointStore, snapshot: Snapshot
) -> None:
    now = [0.0]

    def wait(seconds: float) -> None:
        now[0] += seconds

    limit = BandwidthLimit(1 << 20, clock=lambda: now[0], wait=wait)
    saved(folder, snapshot, Key(1, 1), limit=limit, x=LARGE)
    assert 15.9 <= now[0] <= 16.2


def test_a_wait_for_bandwidth_ends_when_the_save_is_called_off() -> None:
    waited: list[float] = []
    limit = BandwidthLimit(1.0, clock=lambda: 0.0, wait=waited.append)
    limit.take(10**9, lambda: len(waited) == 3)
    assert len(waited) == 3


FULL = """
import resource, sys
from holdfast.checkpoint.key import Key
from holdfast.checkpoint.open_store import open_store
from holdfast.checkpoint.catalog import committed, verify
from holdfast.errors import Error
from tests.checkpoint.making import committed_step
store = open_store(sys.argv[1])
committed_step(store, Key(1, 1), x=b"1" * 1000)
if sys.argv[2] == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
for step in (2, 3):
    try:
        committed_step(store, Key(1, step), x=b"2" * (4 << 20))
        print("saved")
    except Error as error:
        print(error.slug)
print([one.step for one in committed(store)], verify(store, Key(1, 1)), store.list("")[1:])
"""


def can_mount() -> bool:
    words = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    try:
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def test_a_full_disk_fails_the_save_and_spares_what_is_there(tmp_path: Path) -> None:
    """A file system of 2 MiB where one may be mounted, else the limit of a file's size."""
    place = tmp_path / "disk"
    place.mkdir()
    words = [sys.executable, "-c", FULL, str(place)]
    if can_mount():
        inner = 'mount -t tmpfs -o size=2m none "$1" && shift && exec "$@"'
        run = ["unshare", "-rm", "sh", "-c", inner, "-", str(place), *words, "disk"]
    else:
        run = [*words, "limit"]
    found = subprocess.run(run, capture_output=True, text=True, check=False)
    assert found.stdout.split("\n")[:3] == ["storage-full", "storage-full", "[1] [] []"], found
