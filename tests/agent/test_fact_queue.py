"""No fact is lost between two connections, and none is sent twice on one."""

import asyncio

from holdfast.agent.controller_connection import FactQueue
from holdfast.events import NodeLeft
from holdfast.messages import WorkersStarted


def test_facts_are_numbered_and_stay_until_they_are_acknowledged() -> None:
    facts = FactQueue()
    for name in ("a", "b", "c"):
        facts.add(NodeLeft(node=name))
    assert [fact.seq for fact in facts.unsent()] == [1, 2, 3]
    facts.sent = 3
    assert facts.all_sent and facts.unsent() == []
    facts.forget(1)
    facts.sent = 1  # a new connection, whose controller knows the first one
    assert [fact.event for fact in facts.unsent()] == [NodeLeft(node="b"), NodeLeft(node="c")]
    assert not facts.all_sent


def test_ages_are_those_of_the_moment_of_sending() -> None:
    facts = FactQueue()
    facts.add(WorkersStarted(node="n", attempt=1, ago_s=5.0))
    first, second = facts.unsent()[0].event, facts.unsent()[0].event
    assert isinstance(first, WorkersStarted) and isinstance(second, WorkersStarted)
    assert 5.0 <= first.ago_s <= second.ago_s


def test_whoever_waits_goes_on_when_the_controller_has_every_fact() -> None:
    async def waits() -> None:
        facts = FactQueue()
        await facts.until_known()
        facts.add(NodeLeft(node="n"))
        waiting = asyncio.ensure_future(facts.until_known())
        await asyncio.sleep(0)
        assert not waiting.done()
        facts.forget(1)
        await waiting

    asyncio.run(waits())
