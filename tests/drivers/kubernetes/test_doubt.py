"""A lease that cannot be renewed: standing still is the rule, going on needs witnesses."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from holdfast.drivers.kubernetes import doubt
from holdfast.drivers.kubernetes.doubt import FRESH_S, WITNESSES, Doubt, Witnesses
from holdfast.messages import ApiSeen, LookForApi
from tests.patience import PATIENCE_S


class Host:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.paused, self.aside, self.asked = "", False, [("", 0)][:0]
        self.answers: dict[str, bool] = {}
        self.doubt: Doubt | None = None

    def pause(self, why: str) -> None:
        self.paused = why

    async def stand_aside(self) -> None:
        self.aside = True

    async def come_back(self) -> None:
        self.aside = False

    def ask(self, question: LookForApi, nodes: Sequence[str]) -> None:
        assert isinstance(question, LookForApi) and self.doubt is not None
        self.asked.append((",".join(nodes), len(nodes)))
        for node in nodes:
            if node in self.answers and not self.aside:
                self.doubt.heard(node, ApiSeen(answers=self.answers[node]))


def told(
    test: Callable[[Doubt, Host], Awaitable[None]], monkeypatch: pytest.MonkeyPatch, **answers: bool
) -> None:
    """Play with nodes that answer so."""
    monkeypatch.setattr(doubt, "ASK_S", 0.01)
    monkeypatch.setattr(doubt, "STAND_ASIDE_S", 0.05)

    async def play() -> None:
        host = Host()
        host.answers = answers
        host.doubt = Doubt(host, lambda: sorted(answers))
        watching = asyncio.create_task(host.doubt.watch())
        async with asyncio.timeout(PATIENCE_S):
            await test(host.doubt, host)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(play())


async def until(true: Callable[[], object]) -> None:
    while not true():
        await asyncio.sleep(0.005)


def test_a_doubt_stands_still_at_once_and_its_end_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(it: Doubt, host: Host) -> None:
        it.begin()
        assert host.paused
        it.end()
        assert not host.paused

    told(story, monkeypatch)


def test_with_nobody_to_ask_nothing_is_decided_and_nobody_is_sent_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(it: Doubt, host: Host) -> None:
        it.begin()
        await until(lambda: len(host.asked) > 20)
        assert host.paused and not host.aside

    told(story, monkeypatch)


def test_where_the_api_answers_nobody_the_job_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(it: Doubt, host: Host) -> None:
        it.begin()
        await until(lambda: not host.paused)
        await until(lambda: len(host.asked) > 20)
        assert not host.paused and not host.aside
        host.answers["b"] = True  # it is back, for others first
        await until(lambda: host.paused)

    told(story, monkeypatch, a=False, b=False)


def test_where_it_answers_anybody_all_agents_are_let_go_until_the_lease_is_sure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(it: Doubt, host: Host) -> None:
        it.begin()
        await until(lambda: host.aside)
        assert host.paused
        it.end()
        await until(lambda: not host.aside)
        assert not host.paused

    told(story, monkeypatch, a=False, b=True, c=False)


def test_not_everybody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(it: Doubt, host: Host) -> None:
        it.begin()
        await until(lambda: host.asked)
        assert {count for _, count in host.asked} == {WITNESSES}

    told(story, monkeypatch, **{f"n{i}": False for i in range(3 * WITNESSES)})


def test_an_old_answer_says_nothing() -> None:
    witnesses = Witnesses()
    assert not witnesses.outage(0.0) and not witnesses.elsewhere(0.0)
    witnesses.heard("a", False, 0.0)
    assert witnesses.outage(FRESH_S) and not witnesses.outage(FRESH_S + 0.1)
    witnesses.heard("b", True, 1.0)
    assert witnesses.elsewhere(1.0) and not witnesses.outage(1.0)
    assert not witnesses.elsewhere(1.1 + FRESH_S)


def test_a_process_that_was_stopped_does_not_decide_before_it_has_heard_of_the_doubt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(it: Doubt, host: Host) -> None:
        assert not it.standing() and not host.paused
        it.is_sure = lambda: False
        assert it.standing() and not host.paused
        it.begin()
        await until(lambda: not it.standing())
        assert not host.paused, "nobody else can have the lease now"
        host.answers["a"] = True
        await until(it.standing)

    told(story, monkeypatch, a=False)
