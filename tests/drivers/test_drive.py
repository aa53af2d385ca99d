"""The loop between facts and orders: what is acknowledged is on the disk."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from holdfast.drivers.base import Clock, Queue, Receipt, drive

from holdfast import journal
from holdfast.actions import AnyAction, EndJob
from holdfast.controller import Controller, Limits
from holdfast.events import (
    AttemptStopped,
    JobSubmitted,
    NodeJoined,
    NodeReady,
    StopRequested,
    Store,
    WorkerExited,
    WorkersExited,
    each_of,
)
from holdfast.journal import VERSION, Header, Journal

RANKS = 40


class Recorder:
    """Remembers what was acknowledged, and which ranks the journal had then."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.acknowledged: dict[int, set[int]] = {}  # rank → ranks on the disk by then
        self.all_settled = asyncio.Event()

    async def perform(self, action: AnyAction) -> None:
        """Obeyed by nobody."""

    async def settled(self, receipts: Sequence[Receipt]) -> None:
        """Each rank is on a node of its own."""
        for receipt in receipts:
            self.acknowledged[int(receipt.node)] = durable(self._path)
        if len(self.acknowledged) == RANKS:
            self.all_settled.set()

    def disk_full(self, full: bool) -> None:
        """It is not."""


def durable(path: Path) -> set[int]:
    ranks: set[int] = set()
    for entry in journal.entries(path):
        if isinstance(entry.event, WorkerExited):
            ranks.add(entry.event.rank)
        elif isinstance(entry.event, WorkersExited):
            for group in entry.event.groups:
                ranks |= {group.first.rank, *each_of(group.others)}
    return ranks


def put_a_failure(queue: Queue) -> None:
    """All nodes join, train and fail."""
    queue.put_nowait((JobSubmitted(), None))
    for rank in range(RANKS):
        node = str(rank)
        queue.put_nowait((NodeJoined(node=node, name=node, address="h", workers=1), None))
        queue.put_nowait((NodeReady(node=node, store=Store("h", rank, True)), None))
    for rank in range(RANKS):
        exited = WorkerExited(node=str(rank), attempt=1, rank=rank, exit_code=1)
        queue.put_nowait((exited, None))
        queue.put_nowait((None, Receipt(str(rank), 1)))


def test_exits_that_wait_are_acknowledged_once_they_are_in_the_journal(tmp_path: Path) -> None:
    """With nothing else to hear, their time is up by itself; no deadline has passed then."""

    async def lived() -> Recorder:
        path = tmp_path / "journal.jsonl"
        book = Journal.create(path, Header(journal=VERSION, holdfast="", job={}, created_at=0.0))
        recorder, queue = Recorder(path), Queue()
        put_a_failure(queue)
        controller = Controller(Limits(node_count=RANKS))
        driving = asyncio.create_task(
            drive(controller, book, recorder, queue, Clock(), lambda *_: None)
        )
        await asyncio.wait_for(recorder.all_settled.wait(), 60.0)
        queue.put_nowait((StopRequested(by="the test"), None))
        queue.put_nowait((AttemptStopped(attempt=1, store=None), None))
        await driving
        book.close()
        return recorder

    recorder = asyncio.run(lived())
    for rank, known in recorder.acknowledged.items():
        assert rank in known
    kinds = [type(entry.event).__name__ for entry in journal.entries(tmp_path / "journal.jsonl")]
    assert kinds[-4:] == ["WorkerExited", "WorkersExited", "StopRequested", "AttemptStopped"]
    *_, last = journal.entries(tmp_path / "journal.jsonl")
    assert [type(action) for action in last.actions] == [EndJob]
