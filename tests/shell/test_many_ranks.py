"""A restart and an end are a couple of dozen journal lines, however many ranks fail or finish."""

import random
from collections.abc import Callable, Iterable

import pytest

from holdfast.actions import AnyAction, EndJob, StartAttempt
from holdfast.controller import Controller, Limits, Phase
from holdfast.events import (
    AnyEvent,
    JobSubmitted,
    Milestone,
    NodeReady,
    Progress,
    Store,
    WorkerError,
    WorkerExited,
)
from holdfast.messages import AgentFact, Hello, Report, WorkerReport, WorkersStopped
from holdfast.shell.bridge import Bridge
from holdfast.shell.exits import Exits
from tests.more import MORE, sample

WORKERS = 8
LINES_MAX = 24
Order = Callable[[list[int]], Iterable[tuple[int, float]]]  # ranks, and seconds between them


class Job:
    """Bridge, `Exits` and controller between nodes that say what they are told to say."""

    def __init__(self, nodes: int) -> None:
        self.now = 100.0
        self.nodes = [f"n{number}" for number in range(nodes)]
        self.controller = Controller(Limits(node_count=nodes))
        self.state = self.controller.state
        self.bridge = Bridge(self.state, 1000.0, self.now)
        self.exits: Exits[tuple[str, int]] = Exits(self.state)
        self.events: list[AnyEvent] = []  # a line of the journal each
        self.orders: list[AnyAction] = []
        self._put(JobSubmitted())
        for number, node in enumerate(self.nodes):
            hello = Hello(
                protocol=1, node=node, name=node, address="h", workers=WORKERS, pid=1,
                attempt=0, running=False,
            )  # fmt: skip
            self._put(*(self.bridge.hello(hello, self.now) or ()))
            self.say(NodeReady(node=node, store=Store("h", number, True), instrumented=True))

    def _put(self, *facts: AnyEvent | None) -> None:
        waiting = list(facts)
        while waiting:
            for event in self.exits.hear(waiting.pop(0), None, self.now):
                self.events.append(event)
                for order in self.controller.handle(event, self.now):
                    self.orders.append(order)
                    waiting += self.bridge.carry_out(order, self.now)[1]

    def say(self, fact: AgentFact, later_s: float = 0.0) -> None:
        """A node has news."""
        due = self.exits.due
        self.now += later_s
        if due is not None and due <= self.now:
            self._put(None)
        self._put(*self.bridge.fact(fact.node, fact, self.now))

    def report(self, number: int, step: int, waited_s: float = 0.0) -> None:
        """The pages of a node."""
        progress = Progress(step=step, data_wait_s=waited_s)
        not_yet = (Milestone.OUTPUT, Milestone.STEPPED, Milestone.FINISHED)
        reached: dict[Milestone, float] = {m: 0.0 for m in Milestone if m not in not_yet}
        workers = tuple(
            WorkerReport(rank=rank, pid=1, progress=progress, milestones=reached)
            for rank in range(number * WORKERS, (number + 1) * WORKERS)
        )
        report = Report(node=self.nodes[number], attempt=self.state.attempt, workers=workers)
        self._put(*self.bridge.report(report, self.now))

    def trains(self, step: int) -> None:
        """Every rank has done this step."""
        for number in range(len(self.nodes)):
            self.report(number, step)

    def stops(self) -> None:
        """Every node obeys."""
        for number, node in enumerate(self.nodes):
            store = Store("h", 50_000 + number, True)
            self.say(WorkersStopped(node=node, attempt=self.state.attempt, store=store))


def ended(rank: int, error: WorkerError | None = None, ago_s: float = 0.0) -> WorkerExited:
    progress = Progress(step=7, finished=error is None)
    return WorkerExited(
        node=f"n{rank // WORKERS}",
        attempt=1,
        rank=rank,
        exit_code=0 if error is None else 1,
        ago_s=ago_s,
        progress=progress,
        error=error,
    )


def lost(rank: int) -> WorkerError:
    """What a rank says whose peer is gone; each has another peer."""
    message = f"[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:{rank}"
    return WorkerError(type="RuntimeError", message=message, file="train.py", line=71)


BUG = WorkerError(type="ValueError", message="bad batch", file="data.py", line=7)


def at_once(ranks: list[int]) -> Iterable[tuple[int, float]]:
    return [(rank, 0.0) for rank in ranks]


def one_at_a_time(ranks: list[int]) -> Iterable[tuple[int, float]]:
    return [(rank, 20.0 / len(ranks)) for rank in ranks]


def in_bursts(ranks: list[int]) -> Iterable[tuple[int, float]]:
    return [(rank, 1.5 if place % 512 == 511 else 0.0) for place, rank in enumerate(ranks)]


@pytest.mark.parametrize("order", sample([in_bursts], [at_once, one_at_a_time]))
@pytest.mark.parametrize("same", [True, False], ids=["the same bug", "a root cause"])
@pytest.mark.parametrize("nodes", [2, 1000 if MORE else 300])
def test_a_restart_takes_no_more_lines_however_many_ranks_raise(
    nodes: int, same: bool, order: Order
) -> None:
    """Reports go on to come between the exits, and each of them says something new."""
    job = Job(nodes)
    job.trains(7)
    ranks = list(range(nodes * WORKERS))
    random.Random(nodes).shuffle(ranks)
    before, root = len(job.events), ranks[0]
    for place, (rank, later_s) in enumerate(order(ranks)):
        error = BUG if same or rank == root else lost(rank)
        job.say(ended(rank, error, ago_s=0.5 if rank == root else 0.25), later_s)
        job.report(place % nodes, 7, waited_s=place / 100)
        if place == 0:
            assert job.state.phase is Phase.RECOVERING
    job.stops()
    assert isinstance(job.orders[-1], StartAttempt)
    job.now += 1.0
    job.trains(8)
    assert len(job.events) - before <= LINES_MAX, job.events[before:]
    (incident,) = job.state.incidents
    assert (incident.cause, incident.rank, incident.error) == ("worker-exception", root, BUG)
    assert incident.also_failed == len(ranks) - 1
    assert incident.summary == f"Rank {root} failed with ValueError: bad batch (data.py:7)"
    assert incident.ended_at is not None


@pytest.mark.parametrize("order", sample([one_at_a_time], [at_once]))
@pytest.mark.parametrize("nodes", [12_500 if MORE else 2_500])
def test_the_end_of_many_thousand_ranks_takes_no_more_lines_than_that_of_a_few(
    nodes: int, order: Order
) -> None:
    job = Job(nodes)
    before, ranks = len(job.events), list(range(nodes * WORKERS))
    random.Random(1).shuffle(ranks)
    for rank, later_s in order(ranks):
        assert not job.state.ended
        job.say(ended(rank), later_s)
    assert len(job.events) - before <= LINES_MAX
    (end,) = (action for action in job.orders if isinstance(action, EndJob))
    assert (end.outcome, end.reason) == ("succeeded", "every worker finished")
