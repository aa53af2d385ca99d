"""Stacks are asked of all members, and whoever does not answer holds up nobody for long."""

import itertools

import pytest

from holdfast.events import in_rows
from holdfast.messages import AskStacks, Stacks, StacksReply, TakeStacks, ToClient
from holdfast.shell.stack_collection import NODE_S, WAVE, StackCollection, fitting
from holdfast.stacks import StackGroup, ThreadStack
from tests.shell.scene import Scene


def group(*ranks: int, at: str = "step", threads: int = 1) -> StackGroup:
    one = ThreadStack(name="MainThread", pid=1, frames=("main", at))
    return StackGroup(ranks=in_rows(ranks), threads=(one,) * threads)


class Site:
    """A collection, who was asked, and what was replied."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.replies: list[StacksReply] = []
        self.collection = StackCollection(self._send, itertools.count(1))

    def _send(self, node: str, ask: TakeStacks) -> None:
        self.asked.append((node, ask.number))

    def ask(self, *members: str, connected: set[str] | None = None, now: float = 0.0) -> None:
        there = set(members) if connected is None else connected
        self.collection.ask(members, there, now, self.replies.append)

    def answer(self, node: str, *groups: StackGroup, number: int = 1) -> None:
        self.collection.answered(node, Stacks(number=number, groups=groups), 0.0)


def test_what_all_members_say_is_one_answer() -> None:
    site = Site()
    site.ask("a", "b")
    site.answer("a", group(0), group(1, at="read"))
    assert site.replies == []
    site.answer("b", group(2, 3))
    [told] = site.replies
    assert [one.ranks for one in told.groups] == [((1, 1),), ((0, 0), (2, 3))]
    assert told.missing == ()


def test_who_asks_meanwhile_hears_the_same_and_nobody_is_asked_twice() -> None:
    site = Site()
    site.ask("a")
    site.ask("a")
    site.answer("a", group(0))
    assert len(site.replies) == 2 and site.asked == [("a", 1)]
    site.ask("a")
    assert site.asked[-1] == ("a", 2)


@pytest.mark.parametrize("how", ["silent", "gone", "not connected"])
def test_who_does_not_answer_is_named_and_the_others_are_told_of(how: str) -> None:
    site = Site()
    site.ask("a", "b", connected={"a"} if how == "not connected" else None)
    site.answer("a", group(0))
    if how == "gone":
        site.collection.gone("b", 1.0)
    site.collection.look(NODE_S - 0.1)
    assert bool(site.replies) == (how != "silent")
    site.collection.look(NODE_S)
    [told] = site.replies
    assert told.missing == ("b",) and [one.ranks for one in told.groups] == [((0, 0),)]


def test_an_answer_that_comes_late_or_twice_counts_for_nothing() -> None:
    site = Site()
    site.ask("a", "b")
    site.answer("a", group(0))
    site.answer("a", group(1))
    site.answer("b", group(2), number=7)
    site.collection.look(NODE_S)
    assert [one.ranks for one in site.replies[0].groups] == [((0, 0),)]
    site.ask("b", now=20.0)
    site.answer("b", group(2), number=1)
    assert len(site.replies) == 1


def test_of_many_nodes_only_some_are_asked_at_a_time_and_all_in_the_end() -> None:
    site = Site()
    nodes = [str(n) for n in range(3 * WAVE)]
    site.ask(*nodes)
    assert len(site.asked) == WAVE
    for number, node in enumerate(nodes):
        site.answer(node, group(number))
        assert len(site.asked) <= number + 1 + WAVE
    assert [node for node, _ in site.asked] == nodes
    assert [one.ranks for one in site.replies[0].groups] == [((0, 3 * WAVE - 1),)]


def test_a_job_without_workers_is_answered_at_once() -> None:
    site = Site()
    site.ask()
    assert site.replies == [StacksReply(groups=())]


def test_an_answer_that_would_be_too_large_loses_other_threads_first_then_large_groups() -> None:
    groups = tuple(group(n, at=str(n), threads=20) for n in range(100))
    assert fitting(groups) == groups
    main = fitting(groups, 20_000)
    assert {len(one.threads) for one in main} == {1} and len(main) == 100
    few = fitting(groups, 2_000)
    assert few == main[: len(few)] and 0 < len(few) < 50


def test_a_shell_asks_its_members_and_replies_to_whoever_asked() -> None:
    scene, replies = Scene(), list[ToClient]()
    a, b = scene.running("a", "b")
    scene.shell.client(AskStacks(), replies.append)
    for wire in (a, b):
        assert wire.told(TakeStacks) == [TakeStacks(number=2)]
    scene.shell.answered("a", Stacks(number=2, groups=(group(0),)))
    assert replies == []
    scene.wait(NODE_S + 1, a, b)
    [told] = replies
    assert isinstance(told, StacksReply) and told.missing == ("b",)
