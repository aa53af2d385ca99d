"""Stacks are asked of all members, and whoever does not answer holds up nobody for long."""

import itertools
import tracemalloc

import msgspec
import pytest

from holdfast import collectives
from holdfast.collectives import Collective, GroupLog, joined_logs, unread
from holdfast.events import in_rows
from holdfast.messages import AskStacks, Stacks, StacksReply, TakeStacks, ToClient
from holdfast.shell.stack_collection import AT_ONCE, NODE_S, WAVE, StackCollection, fitting
from holdfast.stacks import NATIVE_S, StackGroup, ThreadStack
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
    assert len(site.asked) == AT_ONCE
    for number, node in enumerate(nodes, 1):
        site.answer(node, group(number - 1))
        assert len(site.asked) <= min(AT_ONCE + 2 * number, WAVE + number)
    assert [node for node, _ in site.asked] == nodes
    assert [one.ranks for one in site.replies[0].groups] == [((0, 3 * WAVE - 1),)]


def entered(rank: int, last: int = 32, members: int = 1_000) -> GroupLog:
    """By one rank, in a group of all."""
    recent = tuple(Collective(n, 0, n == last, f"all_reduce float[{n}]") for n in range(last))
    return GroupLog(name="dp", members=((0, members, 1),), ranks=((rank, rank),), recent=recent)


def test_what_thousands_of_nodes_have_entered_alike_is_held_once() -> None:
    """One of them has entered less."""
    site, count = Site(), 1_000
    site.ask(*(str(number) for number in range(count)))
    said = [entered(number, last=32 - (number == 7)) for number in range(count)]
    answers = [
        msgspec.msgpack.encode(Stacks(number=1, groups=(group(n),), collectives=(unread(one),)))
        for n, one in enumerate(said)
    ]
    decoder = msgspec.msgpack.Decoder(Stacks)
    tracemalloc.start()
    try:
        for number, answer in enumerate(answers[:-1]):
            site.collection.answered(str(number), decoder.decode(answer), 0.0)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    site.collection.answered(str(count - 1), decoder.decode(answers[-1]), 0.0)
    [told] = site.replies
    assert told.collectives == joined_logs(said)
    assert [one.ranks for one in told.collectives] == [((0, 6), (8, count - 1)), ((7, 7),)]
    alone = sum(map(len, answers))
    assert held < alone / 4, f"{held:,} bytes are held of messages of {alone:,}"


def test_an_answer_that_is_no_log_spoils_nobody_elses() -> None:
    site = Site()
    site.ask("a", "b")
    odd = msgspec.structs.replace(unread(entered(0)), recent=msgspec.Raw(b"\xc3"))
    for node, said in (("a", odd), ("b", unread(entered(1)))):
        site.collection.answered(node, Stacks(number=1, groups=(), collectives=(said,)), 0.0)
    assert [one.ranks for one in site.replies[0].collectives] == [((1, 1),)]


def test_of_more_kinds_than_a_job_can_have_the_first_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collectives, "LOGS_MAX", 5)
    logs = [entered(n, last=4, members=n + 1) for n in range(9)]
    assert joined_logs(logs) == tuple(logs[:5])
    more = joined_logs([*logs, msgspec.structs.replace(logs[0], ranks=((7, 7),))])
    assert more[0].ranks == ((0, 0), (7, 7)), "what is known of goes on to be joined"


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


def test_frames_of_c_are_waited_for_longer_and_are_an_answer_of_their_own() -> None:
    scene, replies, others = Scene(), list[ToClient](), list[ToClient]()
    a, b = scene.running("a", "b")
    scene.shell.client(AskStacks(native=True), replies.append)
    scene.shell.client(AskStacks(), others.append)
    for wire in (a, b):
        assert wire.told(TakeStacks) == [TakeStacks(number=4, native=True), TakeStacks(number=2)]
    for node in "ab":
        scene.shell.answered(node, Stacks(number=2, groups=(group(0),)))
    assert len(others) == 1 and replies == []
    scene.shell.answered("a", Stacks(number=4, groups=(group(0, at="ncclRecv (libnccl.so)"),)))
    scene.wait(NODE_S + 1, a, b)
    assert replies == []
    scene.wait(NATIVE_S, a, b)
    [told] = replies
    assert isinstance(told, StacksReply) and told.missing == ("b",)
    assert told.groups[0].frames[-1] == "ncclRecv (libnccl.so)"


def test_for_frames_of_c_of_one_rank_nobody_else_is_paused() -> None:
    """Whoever asks for another rank meanwhile, or for all, is not told of that one."""
    scene, first, second, every = Scene(), list[ToClient](), list[ToClient](), list[ToClient]()
    a, b = scene.running("a", "b")
    for rank, replies in ((1, first), (0, second), (None, every)):
        scene.shell.client(AskStacks(native=True, rank=rank), replies.append)
    whole = TakeStacks(number=12, native=True)
    assert b.told(TakeStacks) == [TakeStacks(number=4, native=True, rank=1), whole]
    assert a.told(TakeStacks) == [TakeStacks(number=8, native=True, rank=0), whole]
    scene.shell.answered("b", Stacks(number=4, groups=(group(1),)))
    assert first == [StacksReply(groups=(group(1),))] and second == every == []
    scene.shell.client(AskStacks(native=True, rank=1), first.append)
    assert b.told(TakeStacks)[-1] == TakeStacks(number=16, native=True, rank=1), "a new look"


def test_of_a_rank_that_no_node_has_there_are_no_frames_of_c() -> None:
    scene, replies = Scene(), list[ToClient]()
    a, b = scene.running("a", "b")
    scene.shell.client(AskStacks(native=True, rank=7), replies.append)
    assert replies == [StacksReply(groups=())]
    assert a.told(TakeStacks) == b.told(TakeStacks) == []
