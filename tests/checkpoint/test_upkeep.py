"""Pruning never takes what is needed, copying gives something whole."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.checkpoint import manifest as files
from holdfast.checkpoint.catalog import committed, previous_part, survey, verify
from holdfast.checkpoint.key import Key
from holdfast.checkpoint.open_store import open_store
from holdfast.checkpoint.save import commit, save_rank
from holdfast.checkpoint.stores import CheckpointStore, unreachable
from holdfast.checkpoint.tiers import Tier
from holdfast.checkpoint.upkeep import copy, prune
from holdfast.errors import Error
from tests.checkpoint.making import NOW, Snapshot, began, committed_step, saved

FROZEN = b"f" * 5000


def train(store: CheckpointStore, attempt: int, steps: range) -> None:
    """Checkpoints with leaves that change never, once, and each time."""
    snapshot = Snapshot()
    for step in steps:
        previous = previous_part(store, 0)
        leaves = {"frozen": FROZEN, "once": bytes([step > 1]) * 3000, "moving": str(step).encode()}
        cells = snapshot.take(Key(attempt, step), private=leaves)
        save_rank(store, cells, job="job", tier=Tier.SHARED, previous=previous)
        commit(store, Key(attempt, step), ranks=[0], now=NOW)
    snapshot.close()


def test_pruning_leaves_whole_checkpoints_on_every_kind_of_place(store: CheckpointStore) -> None:
    train(store, 1, range(1, 9))
    pruned = prune(store, newest=2)
    left = committed(store)
    assert [one.step for one in left] == [8, 7, 5, 1]
    assert {one.key.step for one in pruned.checkpoints} == {2, 3, 4, 6}
    assert pruned.words == ["6, 4, 3, 2 (thinned out)"]
    assert all(verify(store, one.key) == [] for one in left)
    assert store.list(files.folder_of(Key(1, 2))) == ["rank-00000.data"]  # the others need it
    assert store.list(files.folder_of(Key(1, 3))) == []
    assert prune(store, newest=2).files == ()


def test_what_nobody_refers_to_any_more_goes(folder: CheckpointStore) -> None:
    train(folder, 1, range(1, 40))
    prune(folder, newest=2)
    folders = [name for name in folder.list("") if files.key_of(name)]
    needed = {name for one in committed(folder) for name in one.files}
    assert needed <= {f"{name}/rank-00000.data" for name in folders}
    assert len(folders) <= len(committed(folder)) + 3
    assert all(verify(folder, one.key) == [] for one in committed(folder))


def test_a_dry_run_removes_nothing(folder: CheckpointStore) -> None:
    train(folder, 1, range(1, 9))
    told = prune(folder, newest=2, dry_run=True)
    assert len(committed(folder)) == 8
    assert prune(folder, newest=2) == told
    assert len(committed(folder)) == 4


def test_named_ones_stay(folder: CheckpointStore) -> None:
    committed_step(folder, Key(1, 1), name="golden", x=b"1")
    train(folder, 1, range(2, 12))
    prune(folder, newest=1)
    assert {1, 10, 11} <= {one.step for one in committed(folder)}


def test_the_one_that_is_known_to_be_good_stays(folder: CheckpointStore) -> None:
    """Nobody has read those after it; the job has gone on from this one."""
    train(folder, 1, range(1, 4))
    for attempt, parent in ((2, Key(1, 2)), (3, Key(2, 21))):
        began(folder, attempt, parent)
        for step in range(parent.step + 1, parent.step + 20):
            train(folder, attempt, range(step, step + 1))
            prune(folder, newest=1)
            assert parent in {one.key for one in committed(folder)}


def test_leftovers_go_and_a_save_that_is_under_way_stays(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    snapshot = Snapshot()
    train(store, 1, range(1, 4))
    old = saved(store, Snapshot(1, 2), Key(1, 0), x=b"1")  # given up
    began(store, 2, Key(1, 3))
    previous = previous_part(store, 0)
    under_way = saved(store, snapshot, Key(2, 9), previous=previous, frozen=FROZEN, moving=b"9")
    (tmp_path / files.folder_of(Key(1, 3)) / "rank-00000.json.ab.part").write_bytes(b"half")
    prune(store, newest=1)
    assert store.list(files.folder_of(old.key)) == []
    assert "rank-00000.json.ab.part" not in store.list(files.folder_of(Key(1, 3)))
    commit(store, under_way.key, ranks=[0], now=NOW)
    assert verify(store, under_way.key) == []
    snapshot.close()


def test_a_branch_that_was_left_goes_step_by_step_and_at_once_only_if_asked_to(
    folder: CheckpointStore,
) -> None:
    began(folder, 1)
    train(folder, 1, range(1, 8))
    began(folder, 2, Key(1, 3))
    train(folder, 2, range(4, 6))
    left = {Key(1, step) for step in (4, 5, 6, 7)}
    assert {one.key for one in survey(folder).void} == left
    prune(folder, newest=5)
    assert {one.key for one in survey(folder).void} == left
    train(folder, 2, range(6, 8))
    words = prune(folder, newest=5).words
    assert "6, 5, 4 (superseded by attempt 2)" in words
    assert verify(folder, Key(1, 7)) == []
    assert [one.key for one in prune(folder, newest=5, void=True).checkpoints] == [Key(1, 7)]
    assert survey(folder).void == ()
    assert [one.step for one in committed(folder)] == [7, 6, 5, 4, 3, 1]
    assert all(verify(folder, one.key) == [] for one in committed(folder))


def test_a_lineage_from_nothing_takes_nothing_away_from_another(folder: CheckpointStore) -> None:
    """All seven went within a minute: restore had found nothing that it could use."""
    began(folder, 1)
    train(folder, 1, range(1, 8))
    began(folder, 2)
    train(folder, 2, range(1, 3))
    assert [one.key for one in committed(folder)] == [Key(2, 2), Key(2, 1)]
    prune(folder, newest=3)
    void = [one.key for one in survey(folder).void]
    assert [key.step for key in void] == [7, 6, 5, 4, 1]
    assert all(verify(folder, key) == [] for key in void)


class Refusing:
    """A store that cannot read some files."""

    def __init__(self, store: CheckpointStore, *names: str) -> None:
        self.__dict__.update(store=store, names=names, where=store.where)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def read(self, name: str, *rest: Any) -> bytes:
        """EIO."""
        if name in self.names:
            raise unreachable(self.where, name, "Input/output error")
        data: bytes = self.store.read(name, *rest)
        return data


def test_an_unreadable_file_hides_nothing_else_and_what_it_needs_stays(
    folder: CheckpointStore,
) -> None:
    began(folder, 1)
    train(folder, 1, range(1, 8))
    manifest = files.manifest_file(Key(1, 7))
    seen = survey(refusing := Refusing(folder, manifest))
    assert [one.step for one in seen.committed] == [6, 5, 4, 3, 2, 1]
    assert [(one.file, one.why) for one in seen.unreadable] == [(manifest, "Input/output error")]
    part = previous_part(refusing, 0)
    assert part is not None and part.step == 6
    assert previous_part(Refusing(folder, files.rank_file(Key(1, 7), 0)), 0) is None
    prune(refusing, newest=1)
    assert [one.step for one in committed(folder)] == [7, 6, 5, 3, 1]
    assert all(verify(folder, one.key) == [] for one in committed(folder))


def test_where_it_cannot_be_told_what_is_needed_nothing_is_removed(folder: CheckpointStore) -> None:
    began(folder, 1)
    train(folder, 1, range(1, 8))
    names = [files.manifest_file(Key(1, 7)), files.rank_file(Key(1, 7), 0)]
    with pytest.raises(Error, match="is unreachable"):
        prune(Refusing(folder, *names), newest=1)
    assert len(committed(folder)) == 7


def test_an_unreadable_lineage_neither_hides_checkpoints_nor_costs_one(
    folder: CheckpointStore,
) -> None:
    began(folder, 1)
    train(folder, 1, range(1, 8))
    began(folder, 2, Key(1, 2))
    train(folder, 2, range(3, 5))
    refusing = Refusing(folder, files.lineage_file(2))
    assert [one.key for one in committed(refusing)] == [Key(2, 4), Key(2, 3), Key(1, 2), Key(1, 1)]
    prune(refusing, newest=1)
    assert {Key(2, 4), Key(2, 3), Key(1, 7)} <= {
        one.key for one in (*survey(folder).committed, *survey(folder).void)
    }


def test_where_nothing_is_committed_nothing_is_removed(
    folder: CheckpointStore, snapshot: Snapshot
) -> None:
    saved(folder, snapshot, Key(1, 1), x=b"1")
    assert prune(folder, newest=1).files == ()


@settings(deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))
@given(plan=st.lists(st.sampled_from(("save", "prune", "restart", "half")), max_size=25))
def test_whatever_happens_what_counts_is_whole_and_the_last_good_one_is_there(
    tmp_path_factory: pytest.TempPathFactory, plan: list[str]
) -> None:
    store = open_store(str(tmp_path_factory.mktemp("shelf")))
    began(store, 1)
    attempt, step, last, newest = 1, 0, Key(1, 0), None
    for what in plan:
        step += 1
        match what:
            case "save":
                train(store, attempt, range(step, step + 1))
                newest = last = Key(attempt, step)
            case "half":
                half = Snapshot()
                saved(store, half, Key(attempt, step), previous=previous_part(store, 0), x=FROZEN)
                half.close()
            case "restart" if newest is not None:
                attempt, step = attempt + 1, last.step
                began(store, attempt, last)
            case _:
                prune(store, newest=1)
        found = committed(store)
        assert newest is None or found[0].key == newest
        assert all(verify(store, one.key) == [] for one in found)


def test_a_copy_is_whole_in_itself_and_keeps_its_name(folder: CheckpointStore, place: str) -> None:
    target = open_store(place)
    began(folder, 1)
    train(folder, 1, range(1, 4))
    made = copy(folder, Key(1, 3), target, now=NOW, name="golden")
    assert (made.files, made.name) == ((), "golden")
    for one in committed(folder):
        for name in folder.list(files.folder_of(one.key)):
            folder.remove(f"{files.folder_of(one.key)}/{name}")
    assert verify(target, Key(1, 3)) == []
    assert [one.key for one in committed(target)] == [Key(1, 3)]


def test_a_copy_of_something_damaged_does_not_count(tmp_path: Path) -> None:
    store, target = open_store(str(tmp_path / "a")), open_store(str(tmp_path / "b"))
    train(store, 1, range(1, 2))
    path = tmp_path / "a" / files.data_file(Key(1, 1), 0)
    path.write_bytes(b"x" + path.read_bytes()[1:])
    with pytest.raises(Error, match="is damaged"):
        copy(store, Key(1, 1), target, now=NOW)
    assert survey(target).committed == ()


def test_only_whole_checkpoints_are_copied_and_not_onto_those_of_others(tmp_path: Path) -> None:
    store, target = open_store(str(tmp_path / "a")), open_store(str(tmp_path / "b"))
    part = Snapshot(1, 2)
    saved(store, part, Key(1, 1), x=b"1")
    commit(store, Key(1, 1), ranks=[1], now=NOW)
    with pytest.raises(Error, match="is incomplete"):
        copy(store, Key(1, 1), target, now=NOW)
    train(store, 1, range(2, 3))
    copy(store, Key(1, 2), target, now=NOW)
    with pytest.raises(Error, match="not a valid checkpoint location"):
        copy(store, Key(1, 2), target, now=NOW)
    began(target, 5)
    train(store, 1, range(3, 4))
    with pytest.raises(Error, match="not a valid checkpoint location"):
        copy(store, Key(1, 3), target, now=NOW)
    part.close()
