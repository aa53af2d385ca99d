"""Durable checkpoints are written by storage processes alone, and survive what happens to these."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.storage import life_sign, protocol
from holdfast.agent.storage.tier_saver import TierSaver
from holdfast.checkpoint import catalog, presence, upkeep
from holdfast.checkpoint.arena import StatePart
from holdfast.checkpoint.folder import FolderStore
from holdfast.checkpoint.key import Key
from holdfast.checkpoint.storage_page import SaveStatus
from holdfast.checkpoint.tiers import SnapshotFlag, Tier
from tests.agent.controller_stub import until
from tests.agent.storage.site import ROUNDS, Site, ring, sites, snapshot
from tests.patience import PATIENCE_S

SIZE = 20 << 20


@contextmanager
def saving(folder: Path, count: int = 2, tier: Tier = Tier.SHARED, **place: object) -> Iterator[
    tuple[list[Site], FolderStore]
]:  # fmt: skip
    """Nodes with one durable tier in this folder."""
    said = {"tier": tier, "where": str(folder), "keep": 3, "max_bytes_per_s": None, **place}
    with sites(count, places=(protocol.DurablePlace(**said),)) as made:  # type: ignore[arg-type]
        yield made, FolderStore(str(folder))


def take(
    made: list[Site], key: Key, flags: int, keep: Key | None = None, size: int = SIZE,
    *, sealed: bool = False,
) -> None:  # fmt: skip
    """One snapshot of all ranks, as agreed."""
    for rank, site in enumerate(made):
        for part in (StatePart.SHARED, StatePart.PRIVATE):
            snapshot(
                site.arenas[0], key, rank, len(made), size, keep=keep, flags=flags, part=part,
                sealed=sealed,
            )  # fmt: skip


def saved(site: Site, tier: Tier = Tier.SHARED) -> SaveStatus:
    """What the worker sees."""
    return site.storage_pages[0].of_tier(tier)


def said(site: Site, kind: type[protocol.AnyNews]) -> protocol.AnyNews:
    """Wait until the storage process says something of this kind."""
    while not isinstance(news := site.news(), kind):
        pass
    return news


def test_a_snapshot_for_a_tier_is_committed_by_all_nodes_together(tmp_path: Path) -> None:
    with saving(tmp_path) as (made, store):
        ring(made)
        take(made, Key(1, 40), SnapshotFlag.SHARED)
        committed = said(made[0], protocol.Committed)
        assert isinstance(committed, protocol.Committed)
        assert (committed.attempt, committed.step) == (1, 40)
        assert committed.bytes > 3 * SIZE - 4096  # the shared part is written by each rank here
        for site in made:
            until(lambda s=site: saved(s).step == 40, "its storage page says so")  # type: ignore[misc]
            until(lambda s=site: s.storage_pages[0].released == Key(1, 40), "free again")  # type: ignore[misc]
            settled = said(site, protocol.Settled)
            assert settled == protocol.Settled(attempt=1, step=40)
        assert [one.key for one in catalog.committed(store)] == [Key(1, 40)]
        assert catalog.verify(store, Key(1, 40)) == []


def test_nothing_is_committed_while_a_rank_is_missing(tmp_path: Path) -> None:
    with saving(tmp_path) as (made, store):
        ring(made)
        take(made[:1], Key(1, 40), SnapshotFlag.SHARED)
        made[1].kill()
        snapshot(made[1].arenas[0], Key(1, 40), 1, 2, SIZE, flags=SnapshotFlag.SHARED)
        until(
            lambda: made[0].storage_pages[0].released == Key(1, 40), "rank 0 has written its part"
        )
        assert catalog.committed(store) == []


def test_the_disk_of_each_node_has_checkpoints_of_its_own(tmp_path: Path) -> None:
    place = protocol.DurablePlace(
        tier=Tier.LOCAL, where=str(tmp_path), keep=2, max_bytes_per_s=None
    )
    with sites(1, places=(place,)) as (site,):
        ring([site, site])  # the second call is that of rank 1 of 2
        snapshot(
            site.arenas[0], Key(1, 5), 1, 2, 4096, flags=SnapshotFlag.LOCAL, part=StatePart.SHARED
        )
        snapshot(site.arenas[0], Key(1, 5), 1, 2, 4096, flags=SnapshotFlag.LOCAL)
        until(lambda: saved(site, Tier.LOCAL).step == 5, "it is committed")
        (manifest,) = catalog.committed(FolderStore(str(tmp_path)))
        assert (manifest.ranks, manifest.world_size, manifest.whole) == ((1,), 2, False)


def test_what_did_not_change_is_not_written_again_also_by_the_next_process(tmp_path: Path) -> None:
    with saving(tmp_path, count=1) as ((site,), store):
        ring([site])
        take([site], Key(1, 1), SnapshotFlag.SHARED)
        until(lambda: saved(site).step == 1, "the first one")
        site.kill()
        for part in (StatePart.SHARED, StatePart.PRIVATE):
            cell = snapshot(
                site.arenas[0],
                Key(1, 2),
                0,
                1,
                SIZE,
                keep=Key(1, 1),
                flags=SnapshotFlag.SHARED,
                part=part,
            )
            cell.payload[:SIZE] = site.arenas[0].find(part, Key(1, 1)).payload[:SIZE]  # type: ignore[union-attr]
            cell.commit(cell.header())  # type: ignore[arg-type]
        site.start()
        until(lambda: saved(site).step == 2, "the second one")
        assert catalog.committed(store)[0].written_bytes < SIZE // 2


def test_the_history_is_thinned(tmp_path: Path) -> None:
    with saving(tmp_path, count=1, keep=2) as ((site,), store):
        ring([site])
        for step in range(1, 9):
            take([site], Key(1, step), SnapshotFlag.SHARED, Key(1, step - 1), 4096)
            until(lambda s=step: saved(site).step == s, "it is committed")  # type: ignore[misc]
        until(lambda: len(catalog.committed(store)) < 6, "older ones go")
        assert [one.step for one in catalog.committed(store)][:2] == [8, 7]


def test_a_past_attempt_is_fenced_and_says_so(tmp_path: Path) -> None:
    with saving(tmp_path, count=2) as (made, store):
        ring(made[:1], attempt=3)
        take(made[:1], Key(3, 10), SnapshotFlag.SHARED, size=4096)
        until(lambda: saved(made[0]).step == 10, "the new attempt saves")
        ring(made[1:], attempt=2)
        take(made[1:], Key(2, 11), SnapshotFlag.SHARED, size=4096)
        failed = said(made[1], protocol.SaveFailed)
        assert isinstance(failed, protocol.SaveFailed)
        assert "attempt 2 must not save" in failed.why
        assert "if these are two jobs, use a separate location" in failed.why
        assert [one.key for one in catalog.committed(store)] == [Key(3, 10)]
        until(lambda: made[1].storage_pages[0].released == Key(2, 11), "its cells are free again")


def test_of_two_jobs_that_begin_in_one_place_at_once_the_second_does_not_save(
    tmp_path: Path,
) -> None:
    where = tmp_path / "store"
    place = protocol.DurablePlace(tier=Tier.SHARED, where=str(where), keep=3, max_bytes_per_s=None)
    strange = tmp_path / "token"
    strange.write_text("of another user, whose job has the same name")
    with saving(where, count=1) as ((ours,), store):
        with sites(1, places=(place,), token_file=str(strange)) as (theirs,):
            ring([ours])
            ring([theirs])
            take([ours], Key(1, 10), SnapshotFlag.SHARED, size=4096)
            until(lambda: saved(ours).step == 10, "the first one saves")
            take([theirs], Key(1, 20), SnapshotFlag.SHARED, size=4096)
            failed = said(theirs, protocol.SaveFailed)
        assert isinstance(failed, protocol.SaveFailed)
        assert "another job with the same name" in failed.why
        assert "use a separate location, or another name" in failed.why
        assert [one.key for one in catalog.committed(store)] == [Key(1, 10)]


def test_the_node_of_rank_0_shows_that_the_job_lives_until_it_ends(tmp_path: Path) -> None:
    with saving(tmp_path) as (made, store):
        ring(made)
        until(lambda: presence.others(store, ""), "there is a sign of life")
        [(file, data)] = presence.others(store, "").items()
        until(lambda: store.read(file) != data, "and another one")
        made[0].kill()
        left = store.read(file)
        made[0].start()
        until(lambda: store.read(file) != left, "what was killed has left it, the next goes on")
        for site in made:
            assert site.sock is not None
            site.sock.close()
        until(lambda: presence.others(store, "") == {}, "the agents have gone in order")


def test_a_job_that_was_silent_and_finds_another_one_shows_itself_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(life_sign, "BEAT_S", 0.01)
    store, other = FolderStore(str(tmp_path)), presence.file_of("b" * 16)
    ours = life_sign.life_sign(str(tmp_path), "job", "n", "a" * 16, lambda: True)
    ours.start()
    until(lambda: presence.others(store, "b" * 16), "it lives")
    store.put(other, b"a job that came")
    [(file, data)] = presence.others(store, "b" * 16).items()
    until(lambda: store.read(file) != data, "it has not been silent, and goes on")
    monkeypatch.setattr(life_sign, "SILENT_S", 0.0)
    until(lambda: list(presence.others(store, "")) == [other], "it leaves the place to the other")
    ours.end()


def test_a_place_that_cannot_be_written_fails_loudly_and_is_tried_again(tmp_path: Path) -> None:
    place = tmp_path / "store"
    place.write_text("in the way")
    with saving(place, count=1) as ((site,), store):
        ring([site])
        take([site], Key(1, 1), SnapshotFlag.SHARED, size=4096)
        failed = said(site, protocol.SaveFailed)
        assert isinstance(failed, protocol.SaveFailed) and failed.failures == 1
        until(lambda: saved(site).failures >= 1, "the worker sees it")
        place.unlink()
        until(lambda: (saved(site).step, saved(site).failures) == (1, 0), "it is saved in the end")
        assert catalog.verify(store, Key(1, 1)) == []


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_at_any_moment_of_a_save_the_next_process_finishes_it(
    tmp_path: Path, victim: int
) -> None:
    chance = random.Random(victim)
    with saving(tmp_path) as (made, store):
        ring(made)
        for step in range(1, 1 + ROUNDS):
            take(made, Key(1, step), SnapshotFlag.SHARED, Key(1, step - 1))
            with pytest.raises(AssertionError, match="not within"):
                until(lambda: False, "a random moment", 0.15 * chance.random())
            made[victim].kill()
            sound = catalog.committed(store)
            assert [one.step for one in sound[:1]] in ([step], [step - 1] if step > 1 else [])
            assert all(catalog.verify(store, one.key) == [] for one in sound[:1])
            made[victim].start()
            for site in made:
                until(lambda s=site, n=step: saved(s).step == n, "it is committed")  # type: ignore[misc]


@pytest.mark.parametrize("restarted", [0, 1])
def test_what_a_restarted_process_leaves_out_is_not_waited_for(
    tmp_path: Path, restarted: int
) -> None:
    with saving(tmp_path) as (made, store):
        ring(made)
        made[restarted].kill()
        take(made, Key(1, 1), SnapshotFlag.SHARED, size=4096)
        page = made[1 - restarted].storage_pages[0]
        until(lambda: page.released == Key(1, 1), "the other one has written its part")
        take(made, Key(1, 2), SnapshotFlag.SHARED, Key(1, 1), size=4096)
        made[restarted].start()
        for site in made:
            until(lambda s=site: saved(s).step == 2, "the newer one is committed")  # type: ignore[misc]
        assert catalog.committed(store)[0].step == 2


def test_while_the_history_is_thinned_no_snapshot_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them may be that of the last step, and the one before may have a name."""
    go_on = threading.Event()
    thinned = upkeep.prune

    def slow(*words: Any, **named: Any) -> upkeep.Pruned:
        assert go_on.wait(PATIENCE_S)
        return thinned(*words, **named)

    monkeypatch.setattr(upkeep, "prune", slow)
    place = protocol.DurablePlace(
        tier=Tier.SHARED, where=str(tmp_path), keep=9, max_bytes_per_s=None
    )
    with sites(1) as [site]:
        ring([site])
        site.kill()
        saver = TierSaver(place, "job", site.storage_pages, lambda _news: None)
        infos = [site.storage_pages[0].info()]

        def look(settled: Key | None) -> bool:
            saver.look(site.arenas, infos)
            return saver.settled == settled and not saver.busy

        take([site], Key(1, 1), SnapshotFlag.SHARED, size=4096, sealed=True)
        saver.look(site.arenas, infos)
        until(lambda: saver.committed == Key(1, 1), "the first one is committed")
        take([site], Key(1, 2), SnapshotFlag.SHARED, Key(1, 1), size=4096, sealed=True)
        take([site], Key(1, 3), SnapshotFlag.SHARED, Key(1, 2), size=4096, sealed=True)
        saver.look(site.arenas, infos)
        go_on.set()
        until(lambda: look(Key(1, 3)), "all are saved")
    assert [one.step for one in catalog.committed(FolderStore(str(tmp_path)))] == [3, 2, 1]


def test_an_urgent_snapshot_is_reported_safe_where_it_survives(tmp_path: Path) -> None:
    with saving(tmp_path) as (made, _):
        ring(made)
        for site in made:
            assert site.sock is not None
            protocol.send(site.sock, protocol.Warn(within_s=20.0, job_ends=True))
        take(made, Key(1, 7), SnapshotFlag.SHARED | SnapshotFlag.URGENT)
        for site in made:
            assert said(site, protocol.UrgentSaved) == protocol.UrgentSaved(
                attempt=1, step=7, where="tier shared"
            )


def test_with_copies_on_other_nodes_nothing_has_to_be_written(tmp_path: Path) -> None:
    del tmp_path
    with sites(2) as made:
        ring(made)
        assert made[0].sock is not None
        protocol.send(made[0].sock, protocol.Warn(within_s=20.0))
        take(made, Key(1, 7), SnapshotFlag.COPY | SnapshotFlag.URGENT, size=1 << 20)
        safe = said(made[0], protocol.UrgentSaved)
        assert safe == protocol.UrgentSaved(attempt=1, step=7, where="the memory of other nodes")


def test_an_urgent_snapshot_does_not_wait_for_one_that_is_saved_slowly(tmp_path: Path) -> None:
    with saving(tmp_path, count=1, max_bytes_per_s=1 << 20) as ((site,), store):
        ring([site])
        take([site], Key(1, 1), SnapshotFlag.SHARED)
        until(lambda: any("step-" in name for name in store.list("")), "the slow one has begun")
        take([site], Key(1, 2), SnapshotFlag.SHARED | SnapshotFlag.URGENT, Key(1, 1))
        until(lambda: saved(site).step == 2, "the urgent one is saved")
        until(lambda: site.storage_pages[0].released == Key(1, 2), "its cells are free again")
