"""What is to become of a snapshot: tiers, name, urgency; and what follows when it is given up."""

import logging
import os
import time
from collections.abc import Iterator

import pytest

from holdfast.checkpoint.settings import CheckpointSettings, TierRule
from holdfast.checkpoint.storage_page import StoragePage
from holdfast.checkpoint.tiers import SnapshotFlag, Tier
from holdfast.train.exchange import Agreed
from holdfast.train.loop import LoopPosition
from holdfast.train.save_requests import SaveRequests

ALL = CheckpointSettings(local=TierRule(), shared=TierRule(), archive=TierRule(every_steps=100))
NOTHING = Agreed()


@pytest.fixture
def page() -> Iterator[StoragePage]:
    fd = StoragePage.create()
    yield StoragePage(fd)
    os.close(fd)


def flags(requests: SaveRequests, agreed: Agreed = NOTHING, *, last: bool = False) -> SnapshotFlag:
    """Of a snapshot after step 7, which is taken."""
    found = requests.flags(agreed, 7, last=last)
    requests.taken(7, found)
    return found


def test_what_all_ranks_agreed_on_is_what_a_snapshot_is_for(page: StoragePage) -> None:
    requests = SaveRequests(ALL, page)
    assert flags(requests) == SnapshotFlag(0)
    assert flags(requests, Agreed(local=1)) == SnapshotFlag.LOCAL
    both = SnapshotFlag.SHARED | SnapshotFlag.ARCHIVE
    assert flags(requests, Agreed(shared=1, archive=1)) == both


def test_no_tier_is_asked_while_the_storage_of_some_node_still_reads(page: StoragePage) -> None:
    requests = SaveRequests(ALL, page)
    assert flags(requests, Agreed(shared=1, archive=1, milestone=1, saving=1)) == SnapshotFlag(0)
    assert requests.name is None
    assert flags(requests, Agreed(urgent=1, saving=1)) == SnapshotFlag.SHARED | SnapshotFlag.URGENT


def test_the_last_step_goes_where_it_survives_the_nodes(page: StoragePage) -> None:
    both = SnapshotFlag.SHARED | SnapshotFlag.ARCHIVE
    assert flags(SaveRequests(ALL, page), last=True) == both
    local = CheckpointSettings(local=TierRule())
    assert flags(SaveRequests(local, page), last=True) == SnapshotFlag.LOCAL


def test_a_named_checkpoint_goes_to_the_tier_that_survives_most(page: StoragePage) -> None:
    requests = SaveRequests(ALL, page)
    requests.ask("best")
    assert (requests.waiting, requests.name) == (True, "best")
    assert flags(requests) == SnapshotFlag.ARCHIVE
    assert (requests.waiting, requests.name) == (False, None)


def test_a_milestone_is_called_after_its_step(page: StoragePage) -> None:
    requests = SaveRequests(ALL, page)
    requests.flags(Agreed(archive=1, milestone=1), 100, last=False)
    assert requests.name == "step-100"


def test_a_name_that_was_not_used_is_told_when_another_takes_its_place(
    page: StoragePage, caplog: pytest.LogCaptureFixture
) -> None:
    requests = SaveRequests(ALL, page)
    with caplog.at_level(logging.WARNING):
        requests.ask("one")
        requests.ask("one")
        assert not caplog.text
        requests.ask("two")
    assert "one could not be taken yet" in caplog.text


def test_a_node_that_goes_asks_once_for_each_warning(page: StoragePage) -> None:
    requests = SaveRequests(ALL, page)
    assert not requests.urgent()
    page.warn(time.monotonic() + 1e6)
    assert requests.urgent()
    assert flags(requests, Agreed(urgent=1)) == SnapshotFlag.URGENT | SnapshotFlag.SHARED
    assert not requests.urgent(), "it was answered"
    page.warn(0.0)
    assert not requests.urgent()
    page.warn(time.monotonic() + 1e6)
    assert requests.urgent(), "this is another warning"


def test_what_a_spoiled_snapshot_was_for_the_next_one_is_for(page: StoragePage) -> None:
    requests = SaveRequests(ALL, page)
    requests.ask("best")
    taken = flags(requests, Agreed(local=1, urgent=1))
    requests.give_up()
    assert requests.waiting and requests.name == "best"
    assert flags(requests) == taken
    assert not requests.waiting


def test_only_a_rank_that_decides_asks_for_what_is_due(page: StoragePage) -> None:
    settings = CheckpointSettings(shared=TierRule(every_s=1e-9))
    requests = SaveRequests(settings, page)
    assert requests.due(1, 0.0) == set() and requests.intervals(0.0) == []
    requests.decide_from(0)
    assert requests.due(1, 0.0) == {Tier.SHARED}
    assert requests.intervals(0.0) == [0.0, 1e-9, 0.0]


def test_a_loop_ends_where_all_ranks_learn_of_it_and_another_one_is_asked_anew() -> None:
    loop = LoopPosition()
    loop.completed, loop.total = 7, 100
    loop.ask_end()
    assert (loop.asked_end, loop.ended) == (True, False)
    loop.learn(Agreed(end=1, urgent=1))
    assert (loop.ended, loop.stopping, loop.total) == (True, True, 7)
    loop.close()
    assert (loop.ended, loop.asked_end) == (False, False)
    assert loop.stopping, "the job stops all the same"
