"""What cannot be loaded is storage that does not answer, a misfit, or damage, and a job that has
checkpoints never begins anew by itself."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from holdfast.agent.storage import life_sign
from holdfast.agent.storage.life_sign import LifeSign
from holdfast.checkpoint import catalog, folder, presence, save, upkeep
from holdfast.checkpoint import manifest as files
from holdfast.checkpoint.arena import OWN, Arena
from holdfast.checkpoint.key import Key
from holdfast.checkpoint.manifest import Lineage, ParentSnapshot
from holdfast.checkpoint.open_store import open_store
from holdfast.checkpoint.settings import VARIABLE, CheckpointSettings
from holdfast.checkpoint.stores import CheckpointStore
from holdfast.checkpoint.tiers import Tier
from holdfast.errors import Error
from holdfast.train import restore
from holdfast.train.cadence import Cadence
from holdfast.train.layout import Ranks
from holdfast.train.placement import Placement
from holdfast.train.restore import Restored, bring_in
from holdfast.train.snapshots import Snapshotter
from holdfast.train.tracked import Tracked
from tests.patience import until

SHARED, LOCAL, ARCHIVE = (f"HOLDFAST_CHECKPOINT_{tier}" for tier in ("SHARED", "LOCAL", "ARCHIVE"))
FROM, FRESH = "HOLDFAST_RESTORE_FROM", "HOLDFAST_RESTORE_FRESH"
ALONE = Ranks(0, 1, 1)


class Training:
    """One rank, the memory of its node, and a place."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._fd = Arena.create()
        self.arena = Arena(self._fd)

    def close(self) -> None:
        """Give the memory back."""
        os.close(self._fd)

    def tracked(self, hidden: int = 4) -> Tracked:
        """A small model and its optimizer."""
        model = nn.Sequential(nn.Linear(3, hidden), nn.Linear(hidden, 2))
        optimizer = torch.optim.Adam(model.parameters())
        objects = {"model": model, "optimizer": optimizer}
        return Tracked(objects, torch.device("cpu"), [], ALONE, None)

    def saved(self, attempt: int, *steps: int, parent: Key | None = None, fresh: str = "") -> None:
        """Checkpoints of these steps, by an attempt that went on from there."""
        store = open_store(str(self.place))
        origin = None if parent is None else ParentSnapshot(*parent)
        save.begin(store, Lineage(attempt=attempt, parent=origin, fresh=fresh))
        for step in steps:
            self.snapshot(attempt, step)
            found = {part: self.arena.find(part, Key(attempt, step)) for part in OWN}
            cells = {part: cell for part, cell in found.items() if cell is not None}
            for cell in cells.values():
                cell.seal()
            save.save_rank(store, cells, job="job", tier=Tier.SHARED)
            save.commit(store, Key(attempt, step), ranks=[0], now=1.0)

    def snapshot(self, attempt: int, step: int) -> None:
        """One in memory."""
        where = self.arena, None, None, Placement(0, 0, 1, 1, attempt, 0, True)
        snapshots = Snapshotter(*where, self.tracked(), Cadence(1, 1.0), CheckpointSettings())
        snapshots.take(step)
        snapshots.finish()

    def forget(self) -> None:
        """The memory of the node is lost."""
        self.close()
        self._fd = Arena.create()
        self.arena = Arena(self._fd)

    def restore(
        self, attempt: int, environ: dict[str, str] | None = None, *, hidden: int = 4
    ) -> Restored | None:
        """What an attempt goes on from."""
        environ = environ or {SHARED: str(self.place)}
        tracked = self.tracked(hidden)
        return bring_in(self.arena, None, ALONE, tracked, attempt, environ)

    def began_from(
        self, attempt: int, environ: dict[str, str] | None = None, *, hidden: int = 4
    ) -> Key | None:
        """The checkpoint."""
        found = self.restore(attempt, environ, hidden=hidden)
        return found and found.key

    def sound(self) -> list[int]:
        """The steps that are there and can be read, whichever attempt has left them."""
        store = open_store(str(self.place))
        seen = catalog.survey(store)
        keys = [one.key for one in (*seen.committed, *seen.void)]
        assert all(catalog.verify(store, key) == [] for key in keys)
        return sorted(key.step for key in keys)

    @property
    def store(self) -> CheckpointStore:
        """The place."""
        return open_store(str(self.place))


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    """Seven checkpoints of one attempt, whose memory is lost."""
    made = Training(tmp_path / "shared")
    made.saved(1, *range(100, 800, 100))
    made.forget()
    yield made
    made.close()


class Faults:
    """Which files of any folder cannot be opened now, and how long the test has waited."""

    def __init__(self) -> None:
        self.refuses: Callable[[str], bool] = lambda _: False
        self.waited_s: list[float] = []
        self.after: dict[int, Callable[[str], bool]] = {}

    def open(self, path: Any, *rest: Any) -> int:
        """As `os.open`."""
        if self.refuses(str(path)):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.open(path, *rest)

    def listdir(self, path: Any) -> list[str]:
        """As `os.listdir`."""
        if self.refuses(str(path)):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return os.listdir(path)

    def sleep(self, seconds: float) -> None:
        """Time passes at once; what is refused may change."""
        self.waited_s.append(seconds)
        self.refuses = self.after.get(len(self.waited_s), self.refuses)


def test_a_single_rank_can_tell_that_a_snapshot_waits(training: Training) -> None:
    assert not restore.snapshot_waits(training.arena, None, ALONE)
    training.snapshot(2, 800)
    assert restore.snapshot_waits(training.arena, None, ALONE)


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    """Storage that can be made to fail, and a clock that costs nothing."""
    made = Faults()

    class Os:
        open, listdir = staticmethod(made.open), staticmethod(made.listdir)

        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

    class Time:
        sleep, monotonic = staticmethod(made.sleep), staticmethod(lambda: 0.0)

    monkeypatch.setattr(folder, "os", Os())
    monkeypatch.setattr(restore, "time", Time)
    return made


def nothing(_: str) -> bool:
    return False


# ── storage ──


@pytest.mark.parametrize("what", ["shared", "manifest.json", ".data", "rank-00000.json"])
def test_storage_that_is_away_for_a_moment_costs_nothing(
    training: Training, faults: Faults, what: str
) -> None:
    """All seven were lost: each was called damaged and dropped, and the job began at step 0."""
    faults.refuses, faults.after = (lambda path: what in path), {2: nothing}
    assert training.began_from(2) == Key(1, 700)
    assert len(faults.waited_s) == 2


@pytest.mark.parametrize("what", ["shared", "manifest.json", ".data"])
def test_storage_that_stays_away_fails_the_attempt_and_nothing_else(
    training: Training, faults: Faults, what: str
) -> None:
    faults.refuses = lambda path: what in path
    with pytest.raises(Error, match="cannot determine whether there is") as told:
        training.restore(2)
    assert told.value.slug == "storage-unreachable"
    assert "Input/output error" in told.value.why or "Stale file handle" in told.value.why
    assert sum(faults.waited_s) == sum(restore.PAUSES_S)
    faults.refuses = nothing
    assert training.began_from(3) == Key(1, 700)


@pytest.mark.parametrize("name", ["manifest.json", "rank-00000.data"])
def test_one_file_that_stays_unreadable_does_not_block_six_others(
    training: Training, faults: Faults, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    newest = f"{files.folder_of(Key(1, 700))}/{name}"
    faults.refuses = lambda path: newest in path
    assert training.began_from(2) == Key(1, 600)
    assert sum(faults.waited_s) == sum(restore.PAUSES_S), "not before it has been waited for"
    assert "resuming from step 600 although some checkpoints cannot be read" in caplog.text
    assert newest in caplog.text


def test_an_older_file_that_cannot_be_read_is_not_waited_for(
    training: Training, faults: Faults
) -> None:
    older = files.manifest_file(Key(1, 500))
    faults.refuses = lambda path: older in path
    assert training.began_from(2) == Key(1, 700)
    assert faults.waited_s == []


def test_a_lineage_that_stays_unreadable_does_not_block(training: Training, faults: Faults) -> None:
    training.saved(2, 310, parent=Key(1, 300))
    training.forget()
    faults.refuses = lambda path: files.lineage_file(2) in path
    assert training.began_from(3) == Key(2, 310), "what it has saved says that it went back"
    assert faults.waited_s == []
    training.saved(3, parent=Key(1, 200))
    faults.refuses = lambda path: files.lineage_file(3) in path
    assert training.began_from(4) == Key(2, 310)
    assert sum(faults.waited_s) == sum(restore.PAUSES_S), "it may have gone back further"


def test_another_copy_of_the_same_checkpoint_is_as_good(
    training: Training, faults: Faults, tmp_path: Path
) -> None:
    upkeep.copy(training.store, Key(1, 700), open_store(str(tmp_path / "archive")), now=1.0)
    faults.refuses = lambda path: "shared" in path and "rank-00000.data" in path
    env = {SHARED: str(training.place), ARCHIVE: str(tmp_path / "archive")}
    found = training.restore(2, env)
    assert found is not None and (found.key, found.where.name) == (Key(1, 700), "ARCHIVE")
    assert faults.waited_s == []


@pytest.mark.parametrize("what", ["shared", ".data"])
def test_a_slower_tier_is_not_taken_for_a_quicker_one_that_is_away(
    training: Training, faults: Faults, tmp_path: Path, what: str
) -> None:
    """It is hours behind."""
    upkeep.copy(training.store, Key(1, 300), open_store(str(tmp_path / "archive")), now=1.0)
    faults.refuses = lambda path: "shared" in path and what in path
    env = {SHARED: str(training.place), ARCHIVE: str(tmp_path / "archive")}
    with pytest.raises(Error, match="newer than step 300"):
        training.restore(2, env)


def test_a_quicker_tier_does_without_a_slower_one_that_is_away(
    training: Training, faults: Faults, tmp_path: Path
) -> None:
    faults.refuses = lambda path: "archive" in path
    env = {SHARED: str(training.place), ARCHIVE: str(tmp_path / "archive")}
    assert training.began_from(2, env) == Key(1, 700)
    assert faults.waited_s == []


def test_a_broken_disk_of_a_node_is_like_a_lost_node(
    training: Training, faults: Faults, tmp_path: Path
) -> None:
    faults.refuses = lambda path: "nvme" in path
    env = {SHARED: str(training.place), LOCAL: str(tmp_path / "nvme")}
    assert training.began_from(2, env) == Key(1, 700)
    assert faults.waited_s, "it may be back in a moment"


# ── misfits ──


def test_a_checkpoint_of_another_model_stops_the_job_and_all_stay(training: Training) -> None:
    """All seven were removed within a minute: the job began anew, and its lineage had no parent."""
    with pytest.raises(Error) as told:
        training.restore(2, hidden=5)
    assert told.value.slug == "checkpoint-unusable"
    assert f"step 700 of attempt 1 in {training.place}" in told.value.what
    assert "model.0.weight is (4, 3) float32 there and (5, 3) float32 here" in told.value.why
    assert "--fresh" in told.value.help
    assert training.sound() == [*range(100, 800, 100)]


def test_memory_of_another_model_does_not_matter_where_a_checkpoint_fits(
    training: Training,
) -> None:
    training.snapshot(2, 710)
    assert training.began_from(3) == Key(2, 710)
    with pytest.raises(Error, match="step 710 of attempt 2 in memory") as told:
        training.restore(3, {SHARED: str(training.place) + "-empty"}, hidden=5)
    assert told.value.slug == "checkpoint-unusable"
    other = Training(training.place.parent / "other")
    other.tracked = lambda hidden=5: Training.tracked(other, hidden)  # type: ignore[method-assign]
    other.saved(1, 700)
    assert training.began_from(3, {SHARED: str(other.place)}, hidden=5) == Key(1, 700)
    other.close()


# ── damage ──


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["manifest.json", "rank-00000.json", "rank-00000.data"])
def test_where_all_are_damaged_the_job_stops_and_does_not_begin_anew(
    training: Training, name: str
) -> None:
    paths = sorted(training.place.glob(f"step-*/{name}"))
    for path in paths[1:]:
        flip(path)
    assert training.began_from(2) == Key(1, 100), "the one that is left is used"
    flip(paths[0])
    with pytest.raises(Error, match="all of them are damaged") as told:
        training.restore(2)
    assert told.value.slug == "checkpoint-unusable"
    assert "step-000000000700" in told.value.why and "4 more" in told.value.why


def test_damaged_memory_alone_is_as_if_it_were_lost(training: Training) -> None:
    training.snapshot(2, 710)
    for part in OWN:
        cell = training.arena.find(part, Key(2, 710))
        assert cell is not None
        cell.payload[0] ^= 1
    assert training.began_from(3, {SHARED: str(training.place) + "-empty"}) is None


def test_before_the_first_poisoned_step_there_has_to_be_something(training: Training) -> None:
    env = {SHARED: str(training.place), "HOLDFAST_RESTORE_BELOW": "100"}
    with pytest.raises(Error, match="no checkpoint of a step before 100") as told:
        training.restore(2, env)
    assert told.value.slug == "checkpoint-unusable"
    assert training.began_from(2, {**env, "HOLDFAST_RESTORE_BELOW": "101"}) == Key(1, 100)


def test_what_an_attempt_saved_with_bad_numbers_is_not_used(training: Training) -> None:
    """Wherever it lies, and whatever is known of later attempts: nothing else says so in memory."""
    env = {SHARED: str(training.place)}
    training.snapshot(2, 710)
    assert training.began_from(3, {**env, "HOLDFAST_BAD_STEPS": "[[1,400],[2,711]]"}) == Key(2, 710)
    assert training.began_from(3, {**env, "HOLDFAST_BAD_STEPS": "[[2,710]]"}) == Key(1, 700)
    assert training.began_from(3, {**env, "HOLDFAST_BAD_STEPS": "[[1,401],[2,1]]"}) == Key(1, 400)


def test_where_all_was_saved_with_bad_numbers_the_job_does_not_begin_anew(
    training: Training,
) -> None:
    env = {SHARED: str(training.place), "HOLDFAST_BAD_STEPS": "[[1,1]]"}
    for limit in ({}, {"HOLDFAST_RESTORE_BELOW": "401"}):
        with pytest.raises(Error, match="before the first bad step of its attempt") as told:
            training.restore(2, env | limit)
        assert told.value.slug == "checkpoint-unusable" and "step 100" in told.value.why


# ── beginning anew ──


def test_a_job_that_begins_anew_uses_what_it_has_saved_itself_and_removes_nothing(
    training: Training,
) -> None:
    """Also when its controller has forgotten everything, and when a lineage cannot be read."""
    env = {SHARED: str(training.place), FRESH: "second try"}
    first = {"HOLDFAST_ATTEMPT": "2", "TORCHELASTIC_RESTART_COUNT": "0"}
    assert training.began_from(2, {**env, **first}, hidden=5) is None
    assert training.began_from(2) == Key(1, 700), "without the word it goes on"
    training.saved(2, 10, fresh="second try")
    upkeep.prune(training.store, newest=3)
    assert set(training.sound()) >= {10, 500, 600, 700}
    again = {"HOLDFAST_ATTEMPT": "3", "TORCHELASTIC_RESTART_COUNT": "1"}
    forgotten = {**again, "TORCHELASTIC_RESTART_COUNT": "0"}
    training.forget()
    for told in (again, forgotten):
        assert training.began_from(3, {**env, **told}) == Key(2, 10)
    (training.place / files.lineage_file(2)).write_bytes(b"damaged")
    assert training.began_from(3, {**env, **again}) == Key(2, 10)


def test_one_that_was_left_can_be_gone_back_to_on_purpose(training: Training) -> None:
    training.saved(2, 310, parent=Key(1, 300))
    training.forget()
    left = training.place / files.folder_of(Key(1, 700))
    env = {SHARED: str(training.place), FRESH: "back to 700", FROM: str(left)}
    found = training.restore(3, env)
    assert found is not None
    assert (found.key, found.where.name, found.parent) == (Key(1, 700), "ELSEWHERE", None)


def test_one_unreadable_file_does_not_block_a_slower_tier_with_something_newer(
    training: Training, faults: Faults, tmp_path: Path
) -> None:
    upkeep.copy(training.store, Key(1, 700), open_store(str(tmp_path / "archive")), now=1.0)
    training.saved(1, 800)
    training.forget()
    training.store.remove(files.manifest_file(Key(1, 700)))
    faults.refuses = lambda path: files.folder_of(Key(1, 800)) in path
    env = {SHARED: str(training.place), ARCHIVE: str(tmp_path / "archive")}
    assert training.began_from(2, env) == Key(1, 700)
    assert faults.waited_s


def test_an_attempt_numbered_before_storage_answered_does_not_train_on_unsaved(
    training: Training,
) -> None:
    """Attempts 1 to 3 have been there; one that is called 2 or 3 could save nothing."""
    training.saved(3, 750, parent=Key(1, 700))
    training.forget()
    for late in (2, 3):
        with pytest.raises(Error, match="storage-ahead") as refused:
            training.restore(late)
        assert "attempt 3" in refused.value.what
    assert training.began_from(4) == Key(3, 750)


@pytest.fixture
def other_job(training: Training, monkeypatch: pytest.MonkeyPatch) -> Iterator[LifeSign]:
    """Another job of this name that lives, in a quicker time."""
    for module, name, seconds in (
        (presence, "LOOK_S", 0.01), (presence, "SILENT_S", 2.0), (presence, "PATIENCE_S", 4.0),
        (life_sign, "FIRST_S", 0.01), (life_sign, "BEAT_S", 0.02),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, seconds)
    made = life_sign.life_sign(str(training.place), "job", "n7", "b" * 16, lambda: True)
    made.start()
    assert until(lambda: presence.others(training.store, "a" * 16)), "it shows that it lives"
    yield made
    made.end()


def alone_in(place: Path, *, take_over: bool = False) -> dict[str, str]:
    """What a worker finds that may continue there only if no other job lives."""
    settings = CheckpointSettings(owner="a" * 16, take_over=take_over)
    return {SHARED: str(place), VARIABLE: msgspec.json.encode(settings).decode()}


def test_where_another_job_of_the_name_lives_nothing_is_continued_unless_that_is_wanted(
    training: Training, other_job: LifeSign
) -> None:
    environ = alone_in(training.place)
    with pytest.raises(Error, match="checkpoint-in-use") as refused:
        training.restore(2, environ)
    assert "node n7" in refused.value.why and "take_over" in refused.value.help
    assert training.began_from(2, alone_in(training.place, take_over=True)) == Key(1, 700)
    assert training.began_from(2) == Key(1, 700), "a job that does not know who it is, as before"
    other_job.end()
    assert training.began_from(2, environ) == Key(1, 700)


def test_another_job_s_checkpoints_may_be_begun_from_while_it_lives(
    training: Training, other_job: LifeSign, tmp_path: Path
) -> None:
    environ = {**alone_in(tmp_path / "own"), FROM: str(training.place)}
    assert training.began_from(1, environ) == Key(1, 700)
    other_job.end()


def test_a_job_that_was_killed_is_continued_after_its_silence(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "LOOK_S", 0.01)
    monkeypatch.setattr(presence, "SILENT_S", 0.05)
    training.store.put(presence.file_of("b" * 16), b"left behind")
    assert training.began_from(2, alone_in(training.place)) == Key(1, 700)
    assert presence.others(training.store, "a" * 16) == {}


def test_a_place_that_is_empty_where_this_job_has_saved_is_a_mount_that_is_missing(
    training: Training, tmp_path: Path
) -> None:
    other = Training(tmp_path / "other")
    other.saved(1, 7)
    other.close()
    training.place.rename(tmp_path / "away")
    environ = {SHARED: str(training.place)}
    saved = {**environ, "HOLDFAST_RESTORE_COMMITTED": "700"}
    for more in ({}, {FROM: str(other.place)}):
        with pytest.raises(Error, match="storage-missing") as refused:
            training.restore(2, {**saved, **more})
        assert str(training.place) in refused.value.what and "step 700" in refused.value.what
    assert training.restore(2, environ) is None  # a new job cannot know
    (tmp_path / "away").rename(training.place)
    assert training.began_from(2, saved) == Key(1, 700)
