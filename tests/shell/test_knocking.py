"""A node that has left its connection is lost soon where nothing of it answers, and only there."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from holdfast.controller import Limits, State
from holdfast.controller.state import Node
from holdfast.detection.answers import DARK
from holdfast.events import NodeLost, Store
from holdfast.shell.knocking import AWAY, LOOK, MOST, WITHIN, Answered, Knocking, store_of
from tests.shell.site import Agent, open_site, until

T = 10.0
EVERYBODY = tuple("abcdef")


class World:
    """Knocks at nodes, of which some answer; time passes in looks."""

    def __init__(self, *connected: str) -> None:
        self.now = 0.0
        self.connected = set(connected)
        self.answers = set(EVERYBODY)
        self.asked: list[list[str]] = []
        self.lost: list[tuple[str, float]] = []
        self.under_way: list[Callable[[], None]] = []
        self.answers_late = False
        state = State(limits=Limits())
        for port, node in enumerate(EVERYBODY, 1):
            store = Store(host="h", port=port, hosted=True)
            state.nodes[node] = Node(node=node, name=node, address="h", workers=1, store=store)
        self.state = state
        self.knocking = Knocking(state, T, lambda node, away_s, _: self.lost.append((node, away_s)))
        self.knocking.knock = self._knock

    def _knock(self, stores: Sequence[Store], within_s: float, answered: Answered) -> None:
        assert within_s == WITHIN * T
        nodes = [EVERYBODY[store.port - 1] for store in stores]
        self.asked.append(nodes)
        there = [node in self.answers for node in nodes]
        self.under_way.append(lambda: answered(there, self.now))

    def leaves(self, *nodes: str) -> None:
        for node in nodes:
            self.connected.discard(node)
            self.knocking.left(node, self.now)

    def passes(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.knocking.look(self.now, lambda: sorted(self.connected))
            if not self.answers_late:
                self.answer()
            self.now += LOOK * T

    def answer(self) -> None:
        while self.under_way:
            self.under_way.pop(0)()


SOON_S = (AWAY + DARK + 3 * LOOK) * T


def test_one_that_is_gone_is_lost_after_some_time_and_once() -> None:
    world = World("b")
    world.answers -= {"a"}
    world.leaves("a")
    world.passes((AWAY + DARK) * T)
    assert world.lost == [], "a link that is switched over may swallow so much"
    world.passes(2 * T)
    ((node, away_s),) = world.lost
    assert node == "a" and away_s <= SOON_S
    assert world.asked[0] == ["a", "b"]


def test_nobody_is_knocked_at_who_comes_back_at_once() -> None:
    world = World("b")
    world.leaves("a")
    world.passes(AWAY * T / 2)
    world.knocking.back("a")
    world.passes(2 * T)
    assert world.asked == [] and world.lost == []


def test_one_whose_machine_answers_is_waited_for() -> None:
    world = World("b")
    world.leaves("a")
    world.passes(5 * T)
    assert world.asked and world.lost == []


def test_an_answer_between_two_silences_begins_anew() -> None:
    world = World("b")
    world.leaves("a")
    for _ in range(10):
        world.answers -= {"a"}
        world.passes(DARK * T)
        world.answers |= {"a"}
        world.passes(2 * LOOK * T)
    assert world.lost == []


@pytest.mark.parametrize("others", [(), ("b",)])
def test_nothing_follows_where_nobody_else_is_known_to_answer(others: tuple[str, ...]) -> None:
    """Whoever is cut off, or behind a firewall, finds that nobody answers."""
    world = World(*others)
    world.answers = set()
    world.leaves("a")
    world.passes(5 * T)
    assert world.lost == []


def test_those_that_are_heard_are_no_fewer_than_those_that_are_away() -> None:
    world = World("d", "e")
    world.answers = {"d", "e"}
    world.leaves("a", "b", "c")
    world.passes(5 * T)
    assert world.lost == [] and world.asked == []
    world.connected.add("f")
    world.answers.add("f")
    world.passes(T)
    assert {node for node, _ in world.lost} == {"a", "b", "c"}


def test_a_node_on_our_own_machine_says_nothing_of_the_way_to_others() -> None:
    world = World("b", "c")
    world.knocking.near = lambda node: node == "b"
    world.answers = {"b"}
    world.leaves("a")
    world.passes(5 * T)
    assert world.lost == []
    world.answers.add("c")
    world.passes(T)
    assert [node for node, _ in world.lost] == ["a"]


def test_one_without_a_known_store_is_not_knocked_at() -> None:
    world = World("b")
    world.state.nodes["a"].store = None
    world.leaves("a")
    world.passes(5 * T)
    assert world.asked == []


def test_what_was_found_while_we_stood_still_does_not_count() -> None:
    world = World("b")
    world.answers -= {"a"}
    world.leaves("a")
    world.passes(SOON_S - DARK * T / 2)
    world.answers_late = True
    world.passes(2 * LOOK * T)
    assert world.under_way
    world.now += 100.0
    world.knocking.forgive(100.0)
    world.answer()
    world.answers_late = False
    world.passes(DARK * T)
    assert world.lost == []
    world.passes(T)
    ((_, away_s),) = world.lost
    assert away_s < 2 * T, "the pause is none of its time"


def test_many_have_their_turn() -> None:
    world = World()
    names = [f"n{n}" for n in range(4 * MOST)]
    for port, node in enumerate(names, 100):
        store = Store(host="h", port=port, hosted=True)
        world.state.nodes[node] = Node(node=node, name=node, address="h", workers=1, store=store)
    asked: list[int] = []

    def knock(stores: Sequence[Store], _within_s: float, answered: Answered) -> None:
        assert len(stores) <= 2 * MOST
        asked.extend(store.port for store in stores[:MOST])
        answered([True] * len(stores), world.now)

    world.knocking.knock = knock
    world.leaves(*names[: 2 * MOST])
    world.connected = set(names[2 * MOST :])
    world.passes(T)
    assert set(asked) == set(range(100, 100 + 2 * MOST))


def test_the_first_of_an_attempt_hosts_its_store() -> None:
    world = World()
    assert store_of(world.state, "nobody") is None
    assert store_of(world.state, "b") == Store(host="h", port=2, hosted=True)


def test_where_a_node_said_last_that_its_store_is_it_is_knocked_at() -> None:
    """The first of an attempt has closed its store, and the state does not know of the next yet."""
    world = World("b")
    world.answers = {"c"}
    world.knocking.told("b", Store(host="h", port=3, hosted=True))  # answers as c
    world.leaves("a")
    world.passes(SOON_S + T)
    assert [node for node, _ in world.lost] == ["a"]
    world.knocking.told("b", None)
    world.leaves("d")
    world.passes(5 * T)
    assert [node for node, _ in world.lost] == ["a"], "nobody answers beside"


# ── with sockets ──


@contextlib.asynccontextmanager
async def joined(port: int, node: str, *, hosted: bool = True) -> AsyncIterator[
    tuple[Agent, asyncio.Server]
]:  # fmt: skip
    """An agent, and what listens as its store."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    store = Store(host="127.0.0.1", port=server.sockets[0].getsockname()[1], hosted=hosted)
    agent = Agent(node, store)
    try:
        yield await agent.join(port), server
    finally:
        await agent.leave()
        server.close()


@pytest.mark.parametrize(
    ("silent", "hosted", "why"),
    [
        ("a", True, "no answer on the port of its rendezvous store"),
        ("", True, "no heartbeat"),  # its machine answers
        ("ab", True, "no heartbeat"),  # nobody does
        ("a", False, "no heartbeat"),  # its port is only reserved: refused is an answer
    ],
)
def test_an_agent_that_is_killed_is_lost_as_soon_as_that_is_known(
    silent: str, hosted: bool, why: str
) -> None:
    async def story() -> None:
        async with (
            open_site(Limits(node_count=2), timeout_s=2.0) as (site, port),
            joined(port, "a", hosted=hosted) as (a, store_of_a),
            joined(port, "b") as (_b, store_of_b),
        ):
            await until(lambda: all(store_of(site.shell.state, node) for node in "ab"))
            for node, store in (("a", store_of_a), ("b", store_of_b)):
                if node in silent:
                    store.close()
                    await store.wait_closed()
            await a.leave()
            (lost,) = await until(lambda: site.events(NodeLost))
            assert isinstance(lost, NodeLost) and lost.node == "a" and why in lost.detail

    asyncio.run(story())


def test_one_that_never_comes_to_a_new_controller_is_knocked_at() -> None:
    async def story() -> None:
        async with (
            open_site(Limits(node_count=2), timeout_s=2.0) as (site, port),
            joined(port, "a") as (a, store_of_a),
            joined(port, "b") as (_b, _store),
        ):
            await until(lambda: all(store_of(site.shell.state, node) for node in "ab"))
            site.shell.nodes.release("another controller may have begun")
            store_of_a.close()
            await store_of_a.wait_closed()
            await a.leave()
            site.shell.expect_again()
            again = await Agent("b").join(port)
            (lost,) = await until(lambda: site.events(NodeLost))
            assert isinstance(lost, NodeLost) and lost.node == "a"
            assert lost.detail.startswith("it does not connect, and no answer")
            await again.leave()

    asyncio.run(story())
