"""The loop over trees: what it tells the agent, what it refuses, and what it goes on from."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast import meeting, rank
from holdfast.checkpoint.arena import OWN, Arena, StatePart
from holdfast.checkpoint.key import Key
from holdfast.checkpoint.open_store import open_store
from holdfast.checkpoint.save import commit, save_rank
from holdfast.checkpoint.tiers import Tier
from holdfast.errors import Error
from holdfast.events import Milestone
from holdfast.page import Page
from holdfast.pytrees import cells, restore
from holdfast.pytrees.channel import Channel
from holdfast.pytrees.session import TreeRun, _channel, join

ALONE = Channel(0, 1, ())


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    """Of the only worker of an attempt, which has an arena."""
    page_fd, arena_fd = Page.create(), Arena.create()
    told = {"RANK": 0, "WORLD_SIZE": 1, "HOLDFAST_PAGE_FD": page_fd}
    for name in rank.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in (told | {"HOLDFAST_ARENA_FD": arena_fd, "HOLDFAST_ATTEMPT": 1}).items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("HOLDFAST_SNAPSHOT_EVERY", "1")
    monkeypatch.setattr(meeting, "kept", [])
    seen = Page(page_fd)
    yield seen
    seen.close()
    for fd in (page_fd, arena_fd):
        with suppress(OSError):
            os.close(fd)


def phase(page: Page) -> str:
    return page.report(0, 1, 0.0).phase


def test_a_loop_that_ends_has_finished(page: Page) -> None:
    state = join().track(w=np.zeros(2))
    for _ in state.steps(2):
        assert phase(page) == "step"
    assert phase(page) == "finished" and page.reached(Milestone.FINISHED)


def test_a_loop_that_is_left_is_not_within_a_step(page: Page) -> None:
    """What follows may take long, and is no hang."""
    state = join().track(w=np.zeros(2))
    for step in state.steps(5):
        if step == 1:
            break
    assert phase(page) == "finished" and state.completed == 1


def test_what_snapshots_cost_is_added_up(page: Page) -> None:
    state = join().track(w=np.zeros(2))
    assert page.report(0, 1, 0.0).snapshot_ago_s is None, "none yet"
    stalls = []
    for _ in state.steps(4):
        stalls.append(page.progress(0.0).snapshot_s)
    told = page.report(0, 1, time.monotonic())
    assert sorted({*stalls}) == stalls and told.progress.snapshot_s > stalls[-1]
    assert told.snapshot_step == 4 and 0 < (told.snapshot_took_s or 0) < stalls[-1] + 1
    assert told.snapshot_ago_s is not None and told.snapshot_ago_s < 60


def test_trees_that_change_their_form_are_refused_at_the_first_snapshot(page: Page) -> None:
    state = join().track(w=np.zeros(2), seen=b"")
    steps = state.steps(5)
    next(steps)
    state.seen = b"longer"
    next(steps)
    state.w = np.zeros(3)
    with pytest.raises(Error, match="has changed by step 2") as caught:
        next(steps)
    assert caught.value.slug == "not-tracked"
    again = TreeRun(page).track(w=np.ones(2), seen=b"")
    assert (again.completed, again.seen) == (1, b"longer") and (again.w == 0).all()


@pytest.mark.usefixtures("page")
def test_workers_that_cannot_meet_are_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv(meeting.KEY, raising=False)
    with pytest.raises(Error, match="cannot meet") as caught:
        _channel()
    assert caught.value.slug == "join-invalid" and "framework: jax" in caught.value.help


@pytest.mark.usefixtures("page")
def test_what_is_newer_than_a_restored_checkpoint_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it would be gone on from after the next fault: it belongs to a branch that was left."""
    arena = Arena(Arena.create())
    leaves = {"w": np.zeros(2)}
    cells.write(arena, leaves, cells.TreeStamp(Key(1, 9), 0, 1, 7, 0), set())
    place = restore._Place("somewhere", 1, 4, ours=True)
    found = restore.RestoredTrees(Key(1, 4), {}, Key(1, 4))
    monkeypatch.setenv("HOLDFAST_RESTORE_BELOW", "9")
    monkeypatch.setattr(restore, "_durable", lambda _unsound: restore._Durable(place, 1))
    monkeypatch.setattr(restore, "_from_tier", lambda *_: found)
    assert restore.find(arena, ALONE, 0, 7) is found
    assert arena.find(StatePart.PRIVATE, Key(1, 9)) is None


@pytest.mark.usefixtures("page")
def test_what_was_saved_with_bad_numbers_is_not_gone_on_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arena = Arena(Arena.create())
    for step in (8, 9):
        cells.write(arena, {"w": np.zeros(2)}, cells.TreeStamp(Key(1, step), 0, 1, 7, 0), set())
    monkeypatch.setenv("HOLDFAST_BAD_STEPS", "[[1,9]]")
    found = restore.find(arena, ALONE, 0, 7)
    assert found is not None and found.key == Key(1, 8)
    assert arena.find(StatePart.PRIVATE, Key(1, 9)) is None


# ── after bad numbers ──


def snapshot(arena: Arena, step: int, attempt: int = 1, **leaves: Any) -> Key:
    key = Key(attempt, step)
    cells.write(arena, leaves, cells.TreeStamp(key, 0, 1, 7, 0), set())
    return key


NAN = np.array([1.0, np.nan])


@pytest.mark.usefixtures("page")
@pytest.mark.parametrize("told", ["HOLDFAST_RESTORE_BELOW=9", "HOLDFAST_BAD_STEPS=[[1,9]]"])
def test_a_snapshot_with_nan_is_no_way_back_from_bad_numbers(
    monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    """A loss may turn NaN a step after the parameters did."""
    arena = Arena(Arena.create())
    snapshot(arena, 7, w=np.zeros(2), name="x", seen=3)
    snapshot(arena, 8, w=NAN, name="x", seen=3)
    monkeypatch.setenv(*told.split("="))
    found = restore.find(arena, ALONE, 0, 7, {"w": np.zeros(2)})
    assert found is not None and found.key == Key(1, 7)
    assert arena.find(StatePart.PRIVATE, Key(1, 8)) is None


@pytest.mark.usefixtures("page")
def test_nan_is_looked_for_only_then_and_is_no_sign_where_the_script_begins_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arena = Arena(Arena.create())
    newest = snapshot(arena, 8, w=np.zeros(2), best=NAN)
    given = {"w": np.zeros(2), "best": np.full(2, np.nan)}
    found = restore.find(arena, ALONE, 0, 7, dict.fromkeys(given, np.zeros(2)))
    assert found is not None and found.key == newest
    monkeypatch.setenv("HOLDFAST_RESTORE_BELOW", "9")
    found = restore.find(arena, ALONE, 0, 7, given)
    assert found is not None and found.key == newest


def committed(place: Path, step: int, **leaves: Any) -> None:
    arena, store = Arena(Arena.create()), open_store(str(place))
    key = snapshot(arena, step, **leaves)
    held = {part: cell for part in OWN if (cell := arena.find(part, key)) is not None}
    save_rank(store, held, job="job", tier=Tier.SHARED)
    commit(store, key, ranks=[0], now=1.7e9)


@pytest.mark.usefixtures("page")
def test_where_only_bad_checkpoints_are_left_a_job_does_not_begin_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_CHECKPOINT_SHARED", str(tmp_path))
    arena = Arena(Arena.create())
    assert restore.find(arena, ALONE, 0, 7) is None, "nothing is there: that is how a job begins"
    for step, w in ((3, NAN), (5, np.zeros(2)), (8, NAN)):
        committed(tmp_path, step, w=w)
    monkeypatch.setenv("HOLDFAST_RESTORE_BELOW", "9")
    found = restore.find(arena, ALONE, 0, 7)
    assert found is not None and found.key == Key(1, 5)
    monkeypatch.setenv("HOLDFAST_BAD_STEPS", "[[1,5]]")
    with pytest.raises(Error, match="none that training can resume from") as raised:
        restore.find(arena, ALONE, 0, 7)
    assert raised.value.slug == "checkpoint-unusable"
    assert raised.value.why.startswith("step 3 has NaN in w; the others led to the same failure")
    monkeypatch.setenv("HOLDFAST_BAD_STEPS", "[[1,2]]")
    with pytest.raises(Error) as raised:
        restore.find(arena, ALONE, 0, 7)
    assert raised.value.why.startswith("all of them led to the same failure")


def test_batches_that_nobody_could_leave_out_are_not_promised_to_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOLDFAST_SKIP_BATCHES", "3")
    with pytest.raises(Error, match="has no loader") as raised:
        TreeRun(None).track(w=np.zeros(2))
    assert raised.value.slug == "loader-missing"
    monkeypatch.setenv("HOLDFAST_SKIP_BATCHES", "0")
    assert list(TreeRun(None).track(w=np.zeros(2)).steps(2)) == [0, 1]
