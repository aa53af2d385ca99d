"""Journals made for the tests of the ledger, and what must hold of every ledger."""

from typing import NamedTuple

from holdfast.actions import (
    AnyAction,
    AssignRank,
    EndJob,
    Entry,
    Outcome,
    StartAttempt,
    StopAttempt,
)
from holdfast.events import (
    AnyEvent,
    AttemptStopped,
    Milestone,
    MilestoneReached,
    Progress,
    Progressed,
    Store,
    WorkerExited,
)
from holdfast.goodput import Bucket, Ledger

STORE = Store(host="127.0.0.1", port=1, hosted=True)
START = 1_700_000_000.0


def assign(*nodes: str) -> tuple[AssignRank, ...]:
    return tuple(AssignRank(node=n, node_rank=i, reason="") for i, n in enumerate(nodes))


def start(attempt: int, node_count: int = 2) -> StartAttempt:
    return StartAttempt(
        attempt=attempt,
        node_count=node_count,
        workers_per_node=1,
        store=STORE,
        redo_until=0,
        restarts=attempt - 1,
        reason="",
    )


def stop(attempt: int) -> StopAttempt:
    return StopAttempt(attempt=attempt, grace_s=2, reason="")


def end(outcome: Outcome = Outcome.SUCCEEDED) -> EndJob:
    return EndJob(outcome=outcome, reason="")


def reached(attempt: int, milestone: Milestone, ago_s: float = 0.0) -> MilestoneReached:
    return MilestoneReached(attempt=attempt, milestone=milestone, ago_s=ago_s)


def progressed(attempt: int, step: int, ago_s: float, data: float, snap: float) -> Progressed:
    progress = Progress(step=step, step_ago_s=ago_s, data_wait_s=data, snapshot_s=snap)
    return Progressed(attempt=attempt, progress=progress)


def stopped(attempt: int, progress: Progress | None = None) -> AttemptStopped:
    return AttemptStopped(attempt=attempt, store=None, progress=progress or Progress())


def exited(
    rank: int,
    attempt: int,
    *,
    code: int | None = None,
    signal: int | None = None,
    ago_s: float = 0.0,
    progress: Progress | None = None,
) -> WorkerExited:
    return WorkerExited(
        node=f"n{rank}",
        attempt=attempt,
        rank=rank,
        exit_code=code,
        signal=signal,
        ago_s=ago_s,
        progress=progress or Progress(),
    )


class Line(NamedTuple):
    """What is heard and decided at `at` seconds since the start of the job."""

    at: float
    event: AnyEvent
    actions: tuple[AnyAction, ...] = ()


def heard(at: float, event: AnyEvent, *actions: AnyAction) -> Line:
    return Line(at, event, actions)


def journal(*lines: Line) -> list[Entry]:
    return [Entry(i, START + line.at, line.event, line.actions) for i, line in enumerate(lines, 1)]


def bring_up(attempt: int, first: float, *, caught_up: float) -> list[Line]:
    """Milestones 1 s apart: arrived, joined, restored, first step; caught up as given."""
    names = (Milestone.ARRIVED, Milestone.JOINED, Milestone.RESTORED, Milestone.FIRST_STEP)
    lines = [heard(first + i, reached(attempt, name)) for i, name in enumerate(names)]
    return [*lines, heard(caught_up, reached(attempt, Milestone.CAUGHT_UP))]


def nonzero(buckets: dict[Bucket, int]) -> dict[str, int]:
    return {str(k): v for k, v in buckets.items() if v}


def check(books: Ledger) -> None:
    """What must hold of every ledger."""
    assert sum(books.buckets.values()) == books.wall_ms
    assert min(books.buckets.values()) >= 0
    assert 0 <= books.ettr <= 1
    assert 0 <= books.ettr_1h <= 1
    _check_intervals(books)
    billed = sum(bill.lost_ms for bill in books.bills.values())
    assert billed <= books.wall_ms - books.buckets[Bucket.PRODUCTIVE]


def _check_intervals(books: Ledger) -> None:
    sums = dict.fromkeys(Bucket, 0)
    bills: dict[int, int] = {}
    at = books.start_ms
    for interval in books.intervals:
        assert interval.start_ms == at < interval.end_ms
        at = interval.end_ms
        length = interval.end_ms - interval.start_ms
        sums[interval.bucket] += length - sum(interval.stalls)
        sums[Bucket.DATA_WAIT] += interval.stalls.data_wait
        sums[Bucket.CHECKPOINT_STALL] += interval.stalls.checkpoint
        sums[Bucket.PAUSED] += interval.stalls.paused
        if interval.incident is not None:
            bills[interval.incident] = bills.get(interval.incident, 0) + length
    assert at == books.end_ms
    assert sums == books.buckets
    assert bills == {k: b.lost_ms for k, b in books.bills.items() if b.lost_ms}
    for first, second in zip(sorted(books.bills), sorted(books.bills)[1:], strict=False):
        assert books.bills[first].until_ms <= books.bills[second].fault_ms
