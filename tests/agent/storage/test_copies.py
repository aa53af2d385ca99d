"""Copies on other nodes survive the loss of a node, and of storage processes at any moment."""

import random

import pytest

from holdfast.checkpoint.arena import StatePart
from holdfast.checkpoint.key import Key
from holdfast.checkpoint.tiers import SnapshotFlag
from tests.agent.controller_stub import until
from tests.agent.storage.site import ROUNDS, Site, pattern, ring, sites, snapshot
from tests.more import sample

SIZE = 24 << 20


def copies_of(rank: int, site: Site) -> list[Key]:
    """Whole, undamaged copies of this rank on this node, each one with the contents of its step."""
    cells = [cell for cell in site.arenas[0].cells(StatePart.BUDDY) if cell.header()]
    found = []
    for cell in cells:
        header = cell.header()
        if header is None or header.rank != rank:
            continue
        assert cell.intact()
        assert bytes(cell.payload[: header.data_bytes]) == pattern(header.step, header.data_bytes)
        found.append(header.key)
    return sorted(found)


def copied(site: Site, key: Key) -> None:
    """Wait until all peers of this node's rank have the snapshot."""
    until(lambda: site.storage_pages[0].newest_copied == key, f"{key} is kept")


def test_each_rank_gets_a_copy_elsewhere_and_its_board_says_so() -> None:
    with sites(3) as made:
        ring(made, copies=2)
        for rank, site in enumerate(made):
            snapshot(site.arenas[0], Key(1, 1), rank, 3, 1 << 20)
        for site in made:
            copied(site, Key(1, 1))
        for rank in range(3):
            for ahead in (1, 2):
                assert copies_of(rank, made[(rank + ahead) % 3]) == [Key(1, 1)]


def test_large_parts_are_sealed_by_the_storage_process() -> None:
    with sites(1) as (site,):
        cell = snapshot(site.arenas[0], Key(1, 1), 0, 1, SIZE, flags=0, part=StatePart.SHARED)
        until(lambda: cell.sealed() is not None, "the seal")
        assert cell.intact()
        cell.payload[SIZE // 2] ^= 1
        assert not cell.intact()


def test_what_nobody_asked_to_be_copied_is_not() -> None:
    with sites(2) as made:
        ring(made)
        snapshot(made[0].arenas[0], Key(1, 1), 0, 2, 1 << 20, flags=SnapshotFlag.SHARED)
        snapshot(made[0].arenas[0], Key(1, 2), 0, 2, 1 << 20, keep=Key(1, 1))
        copied(made[0], Key(1, 2))
        assert copies_of(0, made[1]) == [Key(1, 2)]


def test_a_new_node_in_the_place_of_a_lost_one_gets_a_copy() -> None:
    with sites(3) as made:
        ring(made[:2])
        snapshot(made[0].arenas[0], Key(1, 1), 0, 2, 1 << 20)
        copied(made[0], Key(1, 1))
        made[1].kill()
        ring([made[0], made[2]], attempt=2)
        snapshot(made[0].arenas[0], Key(2, 2), 0, 2, 1 << 20, keep=Key(1, 1))
        until(lambda: copies_of(0, made[2]) == [Key(2, 2)], "the new node has it")


@pytest.mark.parametrize("victim", sample(["owner"], ["keeper"]))
def test_killed_at_any_moment_of_a_push_the_older_copy_is_whole(victim: str) -> None:
    """Training goes on: after each kill the next storage process brings the newest one across."""
    chance = random.Random(victim)
    with sites(2) as made:
        ring(made)
        killed = made[0 if victim == "owner" else 1]
        snapshot(made[0].arenas[0], Key(1, 1), 0, 2, SIZE)
        copied(made[0], Key(1, 1))
        for step in range(2, 2 + ROUNDS):
            snapshot(made[0].arenas[0], Key(1, step), 0, 2, SIZE, keep=Key(1, step - 1))
            moment = 0.04 * chance.random()
            with pytest.raises(AssertionError, match="not within"):
                until(lambda: False, "a random moment", moment)
            killed.kill()
            assert Key(1, step - 1) in copies_of(0, made[1])
            killed.start()
            copied(made[0], Key(1, step))
            assert copies_of(0, made[1]) == [Key(1, step - 1), Key(1, step)]


def test_the_copy_that_all_ranks_count_on_outlives_those_that_are_overtaken() -> None:
    """Its peer away, a rank goes on overwriting its newest: the one it keeps is kept there, too."""
    with sites(2) as made:
        ring(made)
        snapshot(made[0].arenas[0], Key(1, 1), 0, 2, 1 << 20)
        copied(made[0], Key(1, 1))
        for step in range(2, 6):
            snapshot(made[0].arenas[0], Key(1, step), 0, 2, 1 << 20, keep=Key(1, 1))
            copied(made[0], Key(1, step))
            assert copies_of(0, made[1]) == [Key(1, 1), Key(1, step)]
