"""Exits that decide nothing are told together, late, and with nothing lost by it."""

import itertools
from functools import partial

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.actions import AnyAction, Diagnose, EndJob, Entry, StopAttempt
from holdfast.controller import Controller, Limits, Phase, State, workers
from holdfast.controller.invariants import check
from holdfast.events import (
    AnyEvent,
    AttemptStopped,
    DeadlinePassed,
    JobSubmitted,
    Milestone,
    MilestoneReached,
    NodeJoined,
    NodeLost,
    NodeLostReason,
    NodeReady,
    Progress,
    Progressed,
    StopRequested,
    Store,
    WorkerError,
    WorkerExited,
    WorkersExited,
    each_of,
    in_rows,
)
from holdfast.goodput import Bookkeeper
from holdfast.shell.bridge import Bridge
from holdfast.shell.exits import HOLD_S, MAX_KINDS, Exits
from tests.diagnosis.test_verdict import CASES
from tests.more import examples

NODES, WORKERS = 4, 4
BEGIN = 8.0


def joined(nodes: int) -> list[AnyEvent]:
    """What makes a job order its first attempt; rank `r` is then on node `n(r // WORKERS)`."""
    events: list[AnyEvent] = [JobSubmitted()]
    for number in range(nodes):
        node = f"n{number}"
        events.append(NodeJoined(node=node, name=node, address="h", workers=WORKERS))
        events.append(NodeReady(node=node, store=Store("h", number, True), instrumented=True))
    return events


def training(nodes: int = NODES) -> Controller:
    controller = Controller(Limits(node_count=nodes, restart_grace_s=4.0))
    for event in joined(nodes):
        controller.handle(event, BEGIN)
    return controller


def failed(rank: int, message: str = "bad", attempt: int = 1, ago_s: float = 0.0) -> WorkerExited:
    error = WorkerError(type="ValueError", message=message, file="train.py", line=7)
    return WorkerExited(
        node=f"n{rank // WORKERS}",
        attempt=attempt,
        rank=rank,
        exit_code=1,
        ago_s=ago_s,
        error=error,
    )


def left(rank: int, *, finished: bool = True, step: int = 9) -> WorkerExited:
    progress = Progress(step=step, finished=finished)
    node = f"n{rank // WORKERS}"
    return WorkerExited(node=node, attempt=1, rank=rank, exit_code=0, progress=progress)


class Ear:
    """A controller that hears facts through `Exits`, and what came of each."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.exits: Exits[tuple[str, int]] = Exits(controller.state)
        self.told: list[AnyEvent] = []

    def hear(self, event: AnyEvent | None, now: float, seq: int = 0) -> list[AnyAction]:
        receipt = (event.node, seq) if isinstance(event, WorkerExited) and seq else None
        orders: list[AnyAction] = []
        for told in self.exits.hear(event, receipt, now):
            self.told.append(told)
            orders += self.controller.handle(told, now)
            check(self.controller.state)
        return orders


# ── what waits, and how long ──────────────────────────────────────────────────────────────────


def test_the_first_failure_is_told_at_once_and_the_others_before_the_attempt_has_stopped() -> None:
    ear = Ear(training())
    assert any(isinstance(order, StopAttempt) for order in ear.hear(failed(5), 10.0))
    for rank in (3, 4, 6):
        assert ear.hear(failed(rank, ago_s=1.0), 10.25) == []
    assert ear.told == [failed(5)]
    (diagnose,) = ear.hear(AttemptStopped(attempt=1, store=None), 10.5)
    assert isinstance(diagnose, Diagnose)
    assert [type(event) for event in ear.told] == [WorkerExited, WorkersExited, AttemptStopped]
    assert {e.rank: e.ago_s for e in diagnose.exits} == {5: 0.5, 3: 1.25}
    assert diagnose.others == {3: ((4, 4), (6, 6))}


def test_an_exit_that_waits_alone_is_told_as_it_is_only_older() -> None:
    ear = Ear(training())
    ear.hear(failed(5), 10.0)
    progress = Progress(step=7, step_ago_s=3.0)
    ear.hear(msgspec.structs.replace(failed(6, ago_s=1.0), progress=progress), 10.0)
    ear.hear(None, 10.0 + HOLD_S)
    aged = msgspec.structs.replace(progress, step_ago_s=3.0 + HOLD_S)
    assert ear.told[1:] == [msgspec.structs.replace(failed(6, ago_s=2.0), progress=aged)]


def test_an_event_says_how_far_its_ranks_had_come_and_when_the_last_of_them_died() -> None:
    ear = Ear(training())
    ear.hear(failed(5), 10.0)
    pages = (
        (2.0, Progress(step=7, step_ago_s=5.0, data_wait_s=1.0, snapshot_s=4.0)),
        (0.5, Progress(step=9, step_ago_s=3.0, data_wait_s=2.0)),
        (1.0, Progress(step=8, step_ago_s=4.0)),
    )
    for rank, (ago_s, progress) in enumerate(pages):
        ear.hear(msgspec.structs.replace(failed(rank, ago_s=ago_s), progress=progress), 10.25)
    ear.hear(None, 12.25)
    (told,) = ear.told[1:]
    assert isinstance(told, WorkersExited)
    assert told.progress == Progress(step=9, step_ago_s=5.0, data_wait_s=2.0, snapshot_s=4.0)
    assert told.last_ago_s == 2.5
    (group,) = told.groups
    assert (group.first.rank, group.first.ago_s, group.others) == (0, 4.0, ((1, 2),))


def test_the_last_rank_that_finishes_ends_the_job_at_once() -> None:
    ear = Ear(training())
    for rank in range(NODES * WORKERS - 1):
        assert ear.hear(left(rank), 10.0) == []
    (end,) = ear.hear(left(NODES * WORKERS - 1), 10.0)
    assert isinstance(end, EndJob)
    assert (end.outcome, end.reason) == ("succeeded", "every worker finished")
    assert len(ear.told) == 2


def test_a_rank_that_is_heard_twice_does_not_end_the_job_for_another() -> None:
    ear = Ear(training(nodes=1))
    for rank in (0, 1, 2, 2, 1):
        assert ear.hear(left(rank), 10.0) == []
    ear.hear(None, 20.0)
    assert ear.hear(left(2), 20.0) == []
    assert ear.controller.state.finished == {0, 1, 2}
    assert len(ear.hear(left(3), 20.0)) == 1


def test_what_is_heard_again_by_a_new_controller_takes_no_more_lines() -> None:
    ear = Ear(training())
    for _ in range(2):
        for rank in range(NODES * WORKERS - 1):
            ear.hear(left(rank), 10.0)
        ear.hear(None, 20.0)
    assert [type(event) for event in ear.told] == [WorkersExited, WorkersExited]


def test_the_first_rank_that_leaves_early_is_told_at_once() -> None:
    ear = Ear(training())
    ear.hear(left(3), 10.0)
    ear.hear(left(4, finished=False), 10.0)
    assert ear.told == [left(3), left(4, finished=False)]
    assert ear.controller.next_deadline() == 40.0
    ear.hear(left(5, finished=False), 10.0)
    assert len(ear.told) == 2


def test_a_node_that_is_lost_after_all_its_workers_finished_stops_nothing() -> None:
    ear = Ear(training())
    for rank in range(WORKERS):
        ear.hear(left(rank), 10.0)
    ear.hear(NodeLost(node="n0", reason=NodeLostReason.PROCESS), 10.0)
    assert ear.controller.state.phase is Phase.STARTING


def test_what_waits_is_told_after_a_time_that_doubles() -> None:
    ear = Ear(training(nodes=256))
    now, lines = 10.0, []
    for rank in range(1000):
        now += 0.25
        before = len(ear.told)
        ear.hear(left(rank), now)
        lines += [now - 10.25] * (len(ear.told) - before)
    assert lines[0] == HOLD_S
    assert all(2 * a <= b for a, b in itertools.pairwise(lines))
    assert len(lines) == 8
    assert ear.exits.due is not None


def test_news_of_the_past_of_strangers_and_of_lost_nodes_is_not_told() -> None:
    ear = Ear(training())
    ear.hear(NodeLost(node="n1", reason=NodeLostReason.PROCESS), 10.0)
    stranger = msgspec.structs.replace(failed(0), node="n2")
    for exited in (failed(0, attempt=0), failed(4), stranger):
        assert ear.hear(exited, 10.0, seq=7) == []
    assert len(ear.told) == 1
    assert len(ear.exits.settled()) == 3  # and nobody need say it again


def test_an_event_is_no_larger_however_many_ranks_say_something_else() -> None:
    ear = Ear(training(nodes=256))
    ear.hear(failed(0), 10.0)
    for rank in range(1, 1000):
        error = WorkerError(type="ValueError", message="x", file="train.py", line=rank)
        ear.hear(msgspec.structs.replace(failed(rank), error=error), 10.0)
    (diagnose,) = ear.hear(AttemptStopped(attempt=1, store=None), 10.5)
    assert isinstance(diagnose, Diagnose)
    assert len(diagnose.exits) <= MAX_KINDS + 2
    ranks = {e.rank for e in diagnose.exits}.union(*map(each_of, diagnose.others.values()))
    assert ranks == set(range(1000))


# ── receipts ──────────────────────────────────────────────────────────────────────────────────


def test_no_fact_of_a_node_is_acknowledged_while_one_of_its_exits_waits() -> None:
    ear = Ear(training())
    ear.hear(failed(0), 10.0, seq=1)
    assert ear.exits.settled() == [("n0", 1)]
    ear.hear(failed(1), 10.0, seq=2)
    ear.hear(failed(5), 10.0, seq=1)
    ear.exits.hear(None, ("n0", 3), 10.0)  # of a later fact
    ear.exits.hear(None, ("n2", 8), 10.0)
    assert ear.exits.settled() == [("n2", 8)]
    assert ear.exits.settled() == []
    ear.hear(Progressed(attempt=1, progress=Progress(step=3)), 10.25)
    assert sorted(ear.exits.settled()) == [("n0", 3), ("n1", 1)]
    ear.exits.hear(None, ("n0", 4), 10.25)
    assert ear.exits.settled() == [("n0", 4)]


def test_a_controller_that_dies_hears_what_waited_again_and_counts_each_rank_once() -> None:
    ear = Ear(training())
    ear.hear(failed(5), 10.0, seq=1)
    for rank in (6, 9, 10):
        ear.hear(failed(rank), 10.0, seq=2)
    acknowledged = ear.exits.settled()
    again = training()
    for event in ear.told:
        again.handle(event, 10.0)
    new = Ear(again)
    assert ("n2", 2) not in acknowledged
    for rank in (5, 6, 9, 10, 9):
        new.hear(failed(rank, ago_s=2.0), 12.0, seq=1)
    (diagnose,) = new.hear(AttemptStopped(attempt=1, store=None), 12.5)
    assert isinstance(diagnose, Diagnose)
    assert [e.rank for e in diagnose.exits] == [5]
    assert diagnose.others == {5: ((6, 6), (9, 10))}


# ── told together as told one by one ──────────────────────────────────────────────────────────

HOWS = [*(one for _, one in CASES), left(0), left(0, finished=False)]
WAYS = st.integers(-2, len(HOWS) - 1).map(lambda n: HOWS[n])  # often with status 0
LATER = st.sampled_from([0.0, 0.0, 0.0, 1 / 8, 0.5, 2.0])
RANKS = st.integers(0, NODES * WORKERS - 1)
AGES = st.integers(0, 16).map(lambda n: n / 8)  # exact in milliseconds, and in binary
Facts = list[tuple[AnyEvent, float]]  # and how long after the one before


@st.composite
def lives(draw: st.DrawFn) -> Facts:
    """One to three attempts, in which many workers end in a few ways and now and then more happens.

    Some facts are about a past attempt or a node that is gone; no rank ends twice.
    """
    facts: Facts = []
    for attempt in range(1, draw(st.integers(2, 4))):
        reached = MilestoneReached(attempt=attempt, milestone=Milestone.CAUGHT_UP, step=8)
        ways = draw(st.lists(WAYS, min_size=1, max_size=3))
        events = st.integers(0, 15).flatmap(partial(_mostly, exits(ways, attempt), others(attempt)))
        facts.append((reached, 1.0))
        facts += draw(st.lists(st.tuples(events, LATER), min_size=6, max_size=24, unique_by=_who))
        stopped = AttemptStopped(attempt=attempt, store=Store("h", 90 + attempt, True))
        facts += [(stopped, 0.5), (DeadlinePassed(), 64.0)]
    return facts


def _who(fact: tuple[AnyEvent, float]) -> object:
    event = fact[0]
    return (event.attempt, event.rank) if isinstance(event, WorkerExited) else object()


def _exit(how: WorkerExited, attempt: int, rank: int, ago_s: float, step_ago_s: float) -> AnyEvent:
    progress = msgspec.structs.replace(how.progress, step_ago_s=step_ago_s)
    node = f"n{rank // WORKERS}"
    return msgspec.structs.replace(
        how, node=node, attempt=attempt, rank=rank, ago_s=ago_s, progress=progress
    )


def exits(ways: list[WorkerExited], attempt: int) -> st.SearchStrategy[AnyEvent]:
    way = st.integers(0, len(ways) - 1).map(ways.__getitem__)
    return st.builds(_exit, way, st.just(attempt), RANKS, AGES, AGES)


def _mostly(
    some: st.SearchStrategy[AnyEvent], rare: st.SearchStrategy[AnyEvent], number: int
) -> st.SearchStrategy[AnyEvent]:
    return some if number else rare


def others(attempt: int) -> st.SearchStrategy[AnyEvent]:
    return st.one_of(
        st.builds(
            NodeLost, node=st.sampled_from(["n1", "n3"]), reason=st.just(NodeLostReason.PROCESS)
        ),
        st.builds(Progressed, attempt=st.just(attempt), progress=st.builds(Progress, step=RANKS)),
        st.builds(_exit, WAYS, st.just(attempt - 1), RANKS, AGES, AGES),
        st.just(DeadlinePassed()),
        st.just(StopRequested(by="x")),
    )


LAST = Progressed(attempt=0, progress=Progress())  # says nothing, and nothing waits for long


class Life:
    """A job that hears facts one by one or together; orders with the number of the fact before."""

    def __init__(self, *, together: bool) -> None:
        self.controller = Controller(Limits(node_count=NODES, restart_grace_s=4.0))
        self.state = self.controller.state
        self.bridge = Bridge(self.state, 5.0, BEGIN)
        self.exits: Exits[tuple[str, int]] | None = Exits(self.state) if together else None
        self.books = Bookkeeper(BEGIN)
        self.orders: list[tuple[int, AnyAction]] = []
        self.verdicts: list[AnyEvent] = []
        self.entries: list[Entry] = []
        for event in joined(NODES):
            self.hear(0, event, BEGIN)

    def hear(self, number: int, fact: AnyEvent, now: float) -> None:
        if isinstance(fact, WorkerExited) and not workers.counts(self.state, fact):
            return  # and is not told, to the ledger neither
        for event in [fact] if self.exits is None else self.exits.hear(fact, None, now):
            actions = tuple(self.controller.handle(event, now))
            check(self.state)
            self.entries.append(Entry(len(self.entries) + 1, now, event, actions))
            self.books.add(self.entries[-1])
            for action in actions:
                self._obey(number, action, now)

    def _obey(self, number: int, action: AnyAction, now: float) -> None:
        if isinstance(action, Diagnose):
            (verdict,) = self.bridge.carry_out(action, now)[1]
            self.verdicts.append(verdict)
            self.hear(number, verdict, now)
        else:
            self.orders.append((number, action))


def but_deaths(state: State) -> State:
    """Deaths are kept by kind, or one by one."""
    return msgspec.structs.replace(state, deaths=[])


@settings(max_examples=examples(200), deadline=None)
@given(facts=lives())
def test_told_together_they_lead_to_the_same_orders_verdicts_and_accounts(
    facts: Facts,
) -> None:
    one_by_one, together = Life(together=False), Life(together=True)
    now = BEGIN
    for number, (fact, later_s) in enumerate([*facts, (LAST, 0.0)]):
        now += later_s
        one_by_one.hear(number, fact, now)
        together.hear(number, fact, now)
    assert together.orders == one_by_one.orders
    assert together.verdicts == one_by_one.verdicts
    assert but_deaths(together.state) == but_deaths(one_by_one.state)
    assert together.books.at(None) == one_by_one.books.at(None)
    again = Controller(together.state.limits)
    for entry in map(through_json, together.entries):
        assert tuple(again.handle(entry.event, entry.at)) == entry.actions
    assert again.state == together.state


def through_json(entry: Entry) -> Entry:
    return msgspec.json.decode(msgspec.json.encode(entry), type=Entry)


def test_a_journal_that_told_each_exit_leads_to_the_same_orders() -> None:
    """Up to the 64 exits of an attempt that were kept, and as it was written then."""
    life = Life(together=False)
    for rank in range(90):
        fact = msgspec.structs.replace(failed(rank % 16), rank=rank % 16, ago_s=rank / 64)
        life.hear(rank, fact, BEGIN + rank)
    life.hear(90, AttemptStopped(attempt=1, store=Store("h", 99, True)), BEGIN + 90)
    lines = [msgspec.json.encode(entry).replace(b',"others":{}', b"") for entry in life.entries]
    assert b"others" not in b"".join(lines)
    again = Controller(life.state.limits)
    for entry in (msgspec.json.decode(line, type=Entry) for line in lines):
        assert tuple(again.handle(entry.event, entry.at)) == entry.actions
    assert again.state == life.state


@given(st.sets(st.integers(0, 200)))
def test_ranks_in_rows_are_the_same_ranks(ranks: set[int]) -> None:
    rows = in_rows(ranks)
    assert list(each_of(rows)) == sorted(ranks)
    assert all(a[1] + 1 < b[0] for a, b in itertools.pairwise(rows))
