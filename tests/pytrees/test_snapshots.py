"""What all ranks do when an attempt is about to end: one more snapshot, and no step after it."""

import os
import threading
import time
from collections.abc import Iterator
from multiprocessing import Pipe

import numpy as np
import pytest

from holdfast.checkpoint.arena import Arena
from holdfast.checkpoint.key import Key
from holdfast.checkpoint.settings import CheckpointSettings, TierRule
from holdfast.checkpoint.storage_page import StoragePage, WorkerInfo
from holdfast.pytrees.channel import Channel
from holdfast.pytrees.snapshots import Rhythm, TreeSnapshots


class Rank:
    """One of two, which trains in a thread."""

    def __init__(
        self, rank: int, channel: Channel, settings: CheckpointSettings, every: str
    ) -> None:
        self.fds = [Arena.create(), StoragePage.create()]
        self.page = StoragePage(self.fds[1])
        self.releases = 0
        """From this step on its storage has read at once whatever it is asked for."""
        info = WorkerInfo(attempt=1, rank=rank, world_size=2, local_world_size=1, parent=None)
        self._snapshots = TreeSnapshots(
            *(Arena(self.fds[0]), self.page, channel, info),
            *(settings, Rhythm(every, 0.01)),
        )
        self.began: list[float] = []
        self.newest: list[int] = []

    def train(self, steps: int, others: threading.Barrier) -> None:
        for step in range(1, steps + 1):
            others.wait()
            self.began.append(time.monotonic())
            self._snapshots.after_step(step, 100, {"w": np.full(3, step)}, sound=True)
            self.newest.append(self._snapshots.step)
            if step >= self.releases:
                self.page.release(Key(1, step))


def train(ranks: tuple[Rank, Rank], steps: int) -> None:
    both = threading.Barrier(2)
    threads = [threading.Thread(target=rank.train, args=(steps, both)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.fixture
def two(request: pytest.FixtureRequest) -> Iterator[tuple[Rank, Rank]]:
    """Without durable tiers and with few snapshots, or as given."""
    settings, every = getattr(request, "param", (CheckpointSettings(), "100"))
    ends = Pipe()
    ranks = [Rank(rank, Channel(rank, 2, (end,)), settings, every) for rank, end in enumerate(ends)]
    yield ranks[0], ranks[1]
    for fd in [fd for rank in ranks for fd in rank.fds]:
        os.close(fd)
    for end in ends:
        end.close()


def test_no_step_follows_the_snapshot_that_an_attempt_ends_with(two: tuple[Rank, Rank]) -> None:
    deadline = time.monotonic() + 0.5
    two[0].page.warn(deadline, holds=True)
    train(two, 4)
    for rank in two:
        assert rank.page.newest_met == Key(1, 1), "all have it whole"
        assert rank.began[1] >= deadline, "who is not ended in time trains on"


ALWAYS = CheckpointSettings(shared=TierRule(every_steps=1))


@pytest.mark.parametrize("two", [(ALWAYS, "1")], indirect=True)
@pytest.mark.parametrize("slow", [0, 1])
def test_storage_that_hangs_on_one_node_holds_up_no_snapshot(
    two: tuple[Rank, Rank], slow: int
) -> None:
    two[slow].releases = 30
    train(two, 40)
    for rank in two:
        late = [step - at for at, step in enumerate(rank.newest, 1)]
        assert min(late) >= -3, rank.newest  # a word, a report and a snapshot are a step each
