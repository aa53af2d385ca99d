"""No fact is lost between two connections, and none is sent twice on one."""

import pytest

from holdfast.agent.fact_queue import FactQueue
from holdfast.events import NodeLeft, NodeReady, Progress, Store, WorkerExited
from holdfast.messages import AgentFact, Fact, WorkersStarted, WorkersStopped


def test_facts_are_numbered_and_stay_until_they_are_acknowledged() -> None:
    facts = FactQueue()
    for name in ("a", "b", "c"):
        facts.add(NodeLeft(node=name), 0.0)
    assert [fact.seq for fact in facts.unsent(0.0)] == [1, 2, 3]
    facts.sent = 3
    assert (facts.all_sent, facts.unsent(0.0)) == (True, [])
    facts.forget(1)
    facts.sent = 1  # a new connection, whose controller knows the first one
    assert [fact.event for fact in facts.unsent(0.0)] == [NodeLeft(node="b"), NodeLeft(node="c")]
    assert not facts.all_sent


def test_numbers_go_up_when_every_fact_is_known() -> None:
    facts = FactQueue()
    facts.add(NodeLeft(node="a"), 0.0)
    assert bool(facts)
    facts.forget(1)
    facts.sent = 1
    assert not bool(facts)
    facts.add(NodeLeft(node="b"), 0.0)
    assert [fact.seq for fact in facts.unsent(0.0)] == [2]


def exited(ago_s: float, step_ago_s: float, step: int | None = 7) -> WorkerExited:
    progress = Progress(step=step, step_ago_s=step_ago_s)
    return WorkerExited(
        node="n",
        attempt=1,
        rank=0,
        exit_code=None,
        signal=9,
        progress=progress,
        ago_s=ago_s,
    )


def stopped(ago_s: float, step_ago_s: float) -> WorkersStopped:
    progress = Progress(step=7, step_ago_s=step_ago_s)
    return WorkersStopped(node="n", attempt=1, store=None, progress=progress, ago_s=ago_s)


@pytest.mark.parametrize(
    ("event", "later"),
    [
        (exited(1.0, 2.0), exited(5.0, 6.0)),
        (exited(1.0, 0.0, step=None), exited(5.0, 0.0, step=None)),  # it has made no step
        (stopped(0.0, 2.0), stopped(4.0, 6.0)),
        (
            WorkersStarted(node="n", attempt=1, ago_s=1.0),
            WorkersStarted(node="n", attempt=1, ago_s=5.0),
        ),
        (NodeLeft(node="n"), NodeLeft(node="n")),
        (
            NodeReady(node="n", store=Store(host="h", port=1, hosted=True), instrumented=True),
            NodeReady(node="n", store=Store(host="h", port=1, hosted=True), instrumented=True),
        ),
    ],
)
def test_ages_are_those_of_the_moment_of_sending(event: AgentFact, later: AgentFact) -> None:
    facts = FactQueue()
    facts.add(event, 100.0)
    assert facts.unsent(100.0)[0].event == event
    assert facts.unsent(104.0)[0].event == later
    assert facts.unsent(104.0)[0].event == later, "and do not add up"


def test_workers_that_have_ended_are_told_to_a_controller_that_knows_less() -> None:
    """The one that had acknowledged it was cut off from all others and is lost, with its journal:
    seed 2000057 of a day and two nodes waited for a dead worker for seven hours."""
    facts = FactQueue()
    facts.add(WorkersStarted(node="n", attempt=1), 0.0)
    facts.add(exited(0.0, 0.5), 10.0)
    facts.sent = 2
    facts.forget(2)
    assert (bool(facts), facts.all_sent, facts.unsent(11.0)) == (False, True, [])
    facts.forget(0)
    facts.sent = 0  # another controller
    assert facts.unsent(14.0) == [Fact(seq=2, event=exited(4.0, 4.5))]
    facts.sent = 2
    facts.add(WorkersStopped(node="n", attempt=1, store=None), 15.0)
    assert [fact.seq for fact in facts.unsent(15.0)] == [3]
    facts.add(WorkersStarted(node="n", attempt=2), 16.0)
    facts.sent = 0
    assert [fact.seq for fact in facts.unsent(16.0)] == [3, 4], "that attempt is over"
