"""Whatever the journal says, the ledger adds up."""

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.actions import AnyAction, AssignRank, EndJob, Entry, Fence, Outcome
from holdfast.events import (
    AnyEvent,
    AttemptStopped,
    Broken,
    ControllerResumed,
    DeadlinePassed,
    Milestone,
    MilestoneReached,
    NodeLost,
    NodeLostReason,
    NodeReady,
    NumbersBroke,
    Progress,
    Progressed,
    Quantity,
    StopRequested,
    WorkerExited,
)
from holdfast.goodput import Bookkeeper, Bucket, ledger
from tests.goodput.journals import STORE, check, start, stop
from tests.more import examples

NODES = st.sampled_from(["n0", "n1", "n2"])
ATTEMPTS = st.integers(0, 4)
AGES = st.one_of(st.just(0.0), st.floats(0, 20))
SUMS = st.floats(0, 50)
PROGRESS = st.builds(
    Progress,
    step=st.none() | st.integers(0, 9),
    step_ago_s=AGES,
    data_wait_s=SUMS,
    snapshot_s=SUMS,
    finished=st.booleans(),
)
EVENTS: st.SearchStrategy[AnyEvent] = st.one_of(
    st.builds(MilestoneReached, attempt=ATTEMPTS, milestone=st.sampled_from(Milestone), ago_s=AGES),
    st.builds(Progressed, attempt=ATTEMPTS, progress=PROGRESS),
    st.builds(
        WorkerExited,
        node=NODES,
        attempt=ATTEMPTS,
        rank=st.integers(0, 2),
        exit_code=st.sampled_from([None, 0, 1]),
        ago_s=AGES,
        progress=PROGRESS,
    ),
    st.builds(
        NumbersBroke,
        attempt=ATTEMPTS,
        rank=st.just(0),
        broke=st.builds(
            Broken,
            step=st.integers(1, 9),
            what=st.just(Quantity.LOSS),
            value=st.just("nan"),
            ago_s=AGES,
        ),
    ),
    st.builds(AttemptStopped, attempt=ATTEMPTS, store=st.none(), progress=PROGRESS),
    st.builds(NodeLost, node=NODES, reason=st.sampled_from(NodeLostReason), ago_s=AGES),
    st.builds(NodeReady, node=NODES, store=st.just(STORE), instrumented=st.booleans()),
    st.builds(StopRequested, by=st.just("user")),
    st.just(ControllerResumed(existing=())),
    st.just(DeadlinePassed()),
)
ACTIONS: st.SearchStrategy[AnyAction] = st.one_of(
    st.builds(AssignRank, node=NODES, node_rank=st.integers(0, 1), reason=st.just("")),
    st.builds(start, ATTEMPTS),
    st.builds(stop, ATTEMPTS),
    st.builds(Fence, node=NODES, reason=st.just("")),
)
END = EndJob(outcome=Outcome.FAILED, reason="")


@st.composite
def any_journals(draw: st.DrawFn) -> list[Entry]:
    """Any facts and orders in any order, mostly without sense; time does not run backwards."""
    at = 1000.0
    entries: list[Entry] = []
    for seq in range(draw(st.integers(0, 25))):
        at += draw(st.floats(0, 10))
        actions = draw(st.lists(ACTIONS, max_size=3))
        entries.append(Entry(seq + 1, at, draw(EVENTS), tuple(actions)))
    ends: bool = draw(st.booleans())
    if entries and ends:
        entries[-1] = Entry(len(entries), at, entries[-1].event, (*entries[-1].actions, END))
    return entries


@given(any_journals(), st.none() | st.floats(990, 6000))
@settings(max_examples=examples(400), deadline=None)
def test_any_journal_adds_up(entries: list[Entry], now: float | None) -> None:
    check(ledger(1000.0, entries, now))


@given(any_journals())
@settings(max_examples=examples(100), deadline=None)
def test_bills_and_buckets_of_the_past_never_shrink_once_posted(entries: list[Entry]) -> None:
    """Looking in between changes nothing, and the wall time only grows."""
    bookkeeper, wall = Bookkeeper(1000.0), 0
    for entry in entries:
        bookkeeper.add(entry)
        seen = bookkeeper.at(None)
        check(seen)
        assert seen.wall_ms >= wall
        wall = seen.wall_ms
    assert bookkeeper.at(None) == ledger(1000.0, entries, None)


LIFE = st.tuples(
    st.lists(st.floats(0.001, 5), min_size=6, max_size=6),  # gaps between milestones
    st.integers(0, 6),  # milestones it gets to
    st.floats(0, 3),  # age of the fault
    st.floats(0, 3),  # time to stop
)


@given(st.lists(LIFE, min_size=1, max_size=6))
@settings(max_examples=examples(150), deadline=None)
def test_in_a_legal_job_every_fault_has_its_bill_and_nothing_else_is_billed(
    lives: list[tuple[list[float], int, float, float]],
) -> None:
    entries = _legal(lives)
    books = ledger(1000.0, entries, None)
    check(books)
    assert sorted(books.bills) == list(range(1, len(lives) + 1))
    for name in (Bucket.DETECT, Bucket.TEARDOWN):
        billed = sum(bill.buckets.get(name, 0) for bill in books.bills.values())
        assert billed == books.buckets[name]
    assert books.end_ms == round(entries[-1].at * 1000)


def _legal(lives: list[tuple[list[float], int, float, float]]) -> list[Entry]:
    at = 1000.0
    entries: list[Entry] = []

    def say(event: AnyEvent, *actions: AnyAction) -> None:
        entries.append(Entry(len(entries) + 1, at, event, actions))

    rank = AssignRank(node="n0", node_rank=0, reason="")
    say(NodeReady(node="n0", store=STORE, instrumented=True), rank, start(1, 1))
    for attempt, (gaps, count, ago_s, stop_s) in enumerate(lives, start=1):
        for gap, milestone in zip(gaps, list(Milestone)[:count], strict=False):
            at += gap
            say(MilestoneReached(attempt=attempt, milestone=milestone))
        at += ago_s
        exit_ = WorkerExited(
            node="n0", attempt=attempt, rank=0, exit_code=None, signal=9, ago_s=ago_s
        )
        say(exit_, stop(attempt))
        at += stop_s
        last = attempt == len(lives)
        follow = END if last else start(attempt + 1, 1)
        say(AttemptStopped(attempt=attempt, store=None), follow)
    return entries
