"""Which snapshots must not be overwritten, and when there is room for another."""

import os
from collections.abc import Iterator

import pytest

from holdfast.checkpoint.arena import OWN, Arena, CellHeader, Key, StatePart
from holdfast.checkpoint.storage_page import StoragePage
from holdfast.checkpoint.tiers import SnapshotFlag
from holdfast.train import in_use
from holdfast.train.in_use import SnapshotsInUse

NONE = SnapshotFlag(0)


class Rank:
    """The memory of one rank, and what is in use of it."""

    def __init__(self, *, durable: bool = False, by_agents: bool = False) -> None:
        self.fds = [Arena.create(), StoragePage.create()]
        self.arena, self.page = Arena(self.fds[0]), StoragePage(self.fds[1])
        self.in_use = SnapshotsInUse(self.arena, self.page, durable=durable)
        self.in_use.by_agents = by_agents

    def take(self, step: int, flags: SnapshotFlag = NONE) -> Key:
        """Write a snapshot into cells that are free."""
        key = Key(1, step)
        for part in OWN:
            cell = self.arena.target(part, self.in_use.needed(), self.in_use.slots)
            assert cell is not None
            cell.reserve(8)
            cell.begin()
            cell.commit(CellHeader(1, step, 0, 1, 7, 8, 0, int(flags)), None)
        self.in_use.taken(key, flags)
        return key

    def close(self) -> None:
        """Give the memory back."""
        for fd in self.fds:
            os.close(fd)


@pytest.fixture
def made() -> Iterator[list[Rank]]:
    ranks: list[Rank] = []
    yield ranks
    for rank in ranks:
        rank.close()


def rank(made: list[Rank], *, durable: bool = False, by_agents: bool = False) -> Rank:
    made.append(Rank(durable=durable, by_agents=by_agents))
    return made[-1]


def test_the_newest_counts_on_all_ranks_once_they_have_met(made: list[Rank]) -> None:
    one = rank(made)
    first = one.take(1)
    assert (one.in_use.newest, one.in_use.kept) == (first, None)
    one.in_use.met(pending=False)
    assert one.in_use.kept == first
    one.take(2)
    assert one.in_use.needed() == [first], "some rank may not have the second one"


def test_what_durable_tiers_read_stays_until_it_is_released(made: list[Rank]) -> None:
    one = rank(made, durable=True)
    saved = one.take(1, SnapshotFlag.SHARED)
    for step in (2, 3):
        one.in_use.met(pending=False)
        assert one.in_use.has_room(pending=False)
        one.take(step)
    assert one.in_use.saving() == [saved]
    one.page.release(saved)
    assert one.in_use.saving() == []


def test_three_snapshots_that_are_needed_leave_no_room(made: list[Rank]) -> None:
    one = rank(made, durable=True)
    for step in (1, 2):
        one.take(step, SnapshotFlag.SHARED)
        one.in_use.met(pending=False)
    assert one.in_use.has_room(pending=False)
    one.take(3, SnapshotFlag.SHARED)
    assert not one.in_use.has_room(pending=False)


def test_with_copies_by_agents_a_snapshot_counts_when_its_copies_have_arrived(
    made: list[Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = rank(made, by_agents=True)
    assert [one.in_use.copies_next] == [True]
    copied = one.take(1, SnapshotFlag.COPY)
    assert (one.in_use.copy_pending(), one.in_use.copies_next) == (True, False)
    one.in_use.met(pending=True)
    assert [one.in_use.kept] == [None]
    one.page.copied(copied)
    assert not one.in_use.copy_pending()
    one.in_use.met(pending=False)
    assert (one.in_use.kept, one.in_use.copies_next) == (copied, True)
    one.take(2, SnapshotFlag.COPY)
    monkeypatch.setattr(in_use, "COPY_PATIENCE_S", 0.0)
    assert not one.in_use.copy_pending(), "not waited for any more"


def test_what_is_given_up_counts_as_not_taken_for_everybody(made: list[Rank]) -> None:
    one = rank(made, durable=True)
    good = one.take(1)
    one.in_use.met(pending=False)
    spoiled = one.take(2, SnapshotFlag.SHARED)
    one.in_use.give_up()
    assert (one.in_use.newest, one.in_use.step) == (good, 1)
    assert one.page.voided == spoiled, "nobody goes on saving it"
    assert one.in_use.saving() == []
    assert all(one.arena.find(part, spoiled) is None for part in OWN)
    assert one.arena.find(StatePart.PRIVATE, good) is not None
