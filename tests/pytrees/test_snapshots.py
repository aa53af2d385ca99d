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
from holdfast.checkpoint.settings import CheckpointSettings
from holdfast.checkpoint.storage_page import StoragePage, WorkerInfo
from holdfast.pytrees.channel import Channel
from holdfast.pytrees.snapshots import Rhythm, TreeSnapshots


class Rank:
    """One of two, which trains in a thread."""

    def __init__(self, rank: int, channel: Channel) -> None:
        self.fds = [Arena.create(), StoragePage.create()]
        self.page = StoragePage(self.fds[1])
        info = WorkerInfo(attempt=1, rank=rank, world_size=2, local_world_size=1, parent=None)
        self._snapshots = TreeSnapshots(
            *(Arena(self.fds[0]), self.page, channel, info),
            *(CheckpointSettings(), Rhythm("100", 0.01)),
        )
        self.began: list[float] = []
        self.thread = threading.Thread(target=self._train)

    def _train(self) -> None:
        for step in range(1, 5):
            self.began.append(time.monotonic())
            self._snapshots.after_step(step, 100, {"w": np.full(3, step)}, sound=True)


@pytest.fixture
def two() -> Iterator[tuple[Rank, Rank]]:
    ends = Pipe()
    ranks = [Rank(rank, Channel(rank, 2, (end,))) for rank, end in enumerate(ends)]
    yield ranks[0], ranks[1]
    for fd in [fd for rank in ranks for fd in rank.fds]:
        os.close(fd)
    for end in ends:
        end.close()


def test_no_step_follows_the_snapshot_that_an_attempt_ends_with(two: tuple[Rank, Rank]) -> None:
    deadline = time.monotonic() + 0.5
    two[0].page.warn(deadline, holds=True)
    for rank in two:
        rank.thread.start()
    for rank in two:
        rank.thread.join()
    for rank in two:
        assert rank.page.newest_met == Key(1, 1), "all have it whole"
        assert rank.began[1] >= deadline, "who is not ended in time trains on"
