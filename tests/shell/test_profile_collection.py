"""A profile is one at a time, of ranks that exist, and whoever is lost holds up nobody."""

from collections.abc import Mapping

import msgspec
import pytest

from holdfast.controller import Limits
from holdfast.controller.phases import Phase
from holdfast.events import Milestone, Progress
from holdfast.messages import Report, ToClient, WorkerReport
from holdfast.profiles import (
    AUTOMATIC,
    AskProfile,
    ProfileReply,
    ProfileRequest,
    ProfileTaken,
    RankProfile,
    StepParts,
    StepsSlowed,
    TakeProfile,
    TakeTracePart,
    TracePart,
    TracePartRequest,
)
from holdfast.shell.profile_collection import AHEAD_S, LONGEST_S, PATIENCE, READ_S, STEPS_S
from holdfast.shell.trace_parts import PART_S
from tests.shell.scene import Scene, Wire

DONE = [m for m in Milestone if m not in (Milestone.FINISHED, Milestone.OUTPUT)]


class Site:
    """A running job of two nodes with a rank each, and what was replied."""

    def __init__(self, slowdown: float = 0.0) -> None:
        self.scene = Scene(Limits(node_count=2, profile_slowdown=slowdown))
        self.steps = 40
        self.a, self.b = self.scene.running("a", "b")
        self.replies: list[ToClient] = []
        self.report({"a": 0.0, "b": 0.0})
        assert self.scene.state.phase is Phase.RUNNING

    def ask(self, *ranks: int, slowest: bool = False, name: str = "one") -> None:
        wish = ProfileRequest(id=name, steps=5, ranks=ranks, slowest=slowest)
        self.scene.shell.client(AskProfile(wish=wish), self.replies.append)

    def answer(self, node: str, *ranks: int, name: str = "one") -> None:
        found = tuple(RankProfile(rank=rank, node=node, steps=5) for rank in ranks)
        self.scene.shell.answered(node, ProfileTaken(id=name, found=found))

    def report(self, steps: Mapping[str, float]) -> None:
        for rank, (node, step_s) in enumerate(steps.items()):
            worker = WorkerReport(
                rank=rank,
                pid=1,
                progress=Progress(step=self.steps),
                milestones=dict.fromkeys(DONE, 1.0),
                step_time_s=step_s or None,
            )
            self.scene.shell.report(Report(node=node, attempt=1, workers=(worker,)))
        self.scene.settle()

    def orders(self, wire: Wire) -> list[TakeProfile]:
        return [told for told in wire.sent if isinstance(told, TakeProfile)]

    @property
    def reply(self) -> ProfileReply:
        told = self.replies[-1]
        assert isinstance(told, ProfileReply)
        return told


@pytest.fixture
def site() -> Site:
    return Site()


def test_each_node_is_asked_for_its_own_ranks_and_the_answers_are_one(site: Site) -> None:
    site.ask(1, 0, 1)
    orders = [site.orders(wire) for wire in (site.a, site.b)]
    assert [[order.ranks for order in told] for told in orders] == [[(0,)], [(1,)]]
    site.answer("b", 1)
    assert site.replies == []
    site.answer("a", 0)
    assert [(one.rank, one.node) for one in site.reply.ranks] == [(0, "a"), (1, "b")]
    assert site.reply.world_size == 2


def test_all_ranks_begin_after_the_same_step_that_nobody_has_done(site: Site) -> None:
    site.report({"a": 0.1, "b": 0.1})
    site.ask(0, 1)
    orders = [site.orders(wire)[0] for wire in (site.a, site.b)]
    assert {order.after for order in orders} == {55}, "1.5 s from step 40 on"


def test_the_slowest_is_whose_steps_take_longest(site: Site) -> None:
    site.report({"a": 0.1, "b": 0.3})
    site.ask(slowest=True)
    assert site.orders(site.a) == [] and len(site.orders(site.b)) == 1
    site.answer("b", 1)
    assert site.reply.slowest == 1


def test_a_second_profile_is_refused_until_the_first_is_over(site: Site) -> None:
    site.ask(0)
    site.ask(1, name="two")
    assert "another profile" in site.reply.refused and site.orders(site.b) == []
    site.answer("a", 0, name="two")
    assert len(site.replies) == 1, "that is not the answer"
    site.answer("a", 0)
    site.ask(1, name="three")
    assert len(site.orders(site.b)) == 1


def test_a_rank_that_does_not_exist_and_a_job_that_does_not_train_are_refused(site: Site) -> None:
    site.ask(0, 2)
    assert site.reply.refused == "it has no rank 2, only 2 ranks"
    assert site.orders(site.a) == []
    waiting, replies = Scene(), list[ToClient]()
    waiting.shell.client(AskProfile(wish=ProfileRequest(id="x")), replies.append)
    [told] = replies
    assert isinstance(told, ProfileReply) and "the job is waiting" in told.refused


def test_who_leaves_or_never_answers_is_named_and_the_others_are_told_of(site: Site) -> None:
    site.ask(0, 1)
    site.answer("a", 0)
    site.scene.shell.closed("b", site.b)
    assert [bool(one.why) for one in site.reply.ranks] == [False, True]
    assert "connection" in site.reply.ranks[1].why
    silent = Site()
    silent.ask(0, 1)
    silent.answer("b", 1)
    silent.scene.wait(STEPS_S + READ_S, silent.a, silent.b)
    assert silent.replies == []
    silent.scene.wait(5.0, silent.a, silent.b)
    assert "did not answer in time" in silent.reply.ranks[0].why


def test_long_steps_are_profiled_as_long_as_somebody_waits(site: Site) -> None:
    site.report({"a": 100.0, "b": 100.0})
    site.ask(0, 1)
    [order] = site.orders(site.a)
    assert 800 * PATIENCE <= order.within_s <= LONGEST_S + AHEAD_S - READ_S
    site.answer("a", 0)
    site.answer("b", 1)
    site.report({"a": 300.0, "b": 300.0})
    site.ask(0, name="two")
    assert "take 2400 s at 300 s each" in site.reply.refused
    assert len(site.orders(site.a)) == 1


def test_ranks_of_one_node_have_the_time_to_be_read_one_by_one() -> None:
    site = Site()
    site.scene.state.workers_per_node = 2
    site.ask(0, 1)
    site.scene.wait(STEPS_S + 1.5 * READ_S, site.a, site.b)
    assert site.replies == []
    site.scene.wait(0.5 * READ_S + 5.0, site.a, site.b)
    assert all("did not answer in time" in one.why for one in site.reply.ranks)


def test_steps_that_are_profiled_do_not_count_as_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    site, seen = Site(), list[Report]()

    def observe(report: Report, _now: float) -> list[StepsSlowed]:
        seen.append(report)
        return []

    monkeypatch.setattr(site.scene.shell.profiles._watch, "observe", observe)
    site.ask(0)
    site.report({"a": 3.0})
    assert seen == []
    site.answer("a", 0)
    site.report({"a": 1.0})
    assert len(seen) == 1


def test_what_the_controller_wants_itself_comes_back_as_a_note() -> None:
    site = Site()
    slow = StepsSlowed(attempt=1, step=40, slower=0.3, step_s=1.3, usual_s=1.0)
    site.scene.shell.put(slow)
    site.scene.settle()
    [order] = site.orders(site.a)
    assert order.id == "attempt-1-step-40"
    parts = StepParts(compute=0.3, data=0.7)
    found = RankProfile(rank=0, node="a", steps=5, parts=parts, device="cpu")
    site.scene.shell.answered("a", ProfileTaken(id=order.id, found=(found,)))
    site.scene.settle()
    note = site.scene.state.notes[-1]
    assert "data 70%, idle 0%; try first: give the DataLoader more workers" in note.text
    site.scene.shell.put(msgspec.structs.replace(slow, step=90))
    site.scene.settle()
    assert len(site.orders(site.a)) == 1


def test_steps_are_slow_by_what_nodes_report_and_profiled_once() -> None:
    """A slow minute is none, nor are those in which somebody else has them profiled."""
    site = Site(slowdown=0.2)

    def train(step_s: float, minutes: int) -> int:
        for _ in range(60 * minutes):
            site.steps, site.scene.now = site.steps + 1, site.scene.now + 1.0
            site.report({"a": step_s, "b": step_s})
        return len(site.scene.state.notes)

    assert train(1.0, 3) == 0 and train(3.0, 1) == 0 and train(1.0, 3) == 0
    site.ask(0, name="mine")
    assert train(3.0, 2) == 0
    site.answer("a", 0, name="mine")
    assert train(1.0, 2) == 0 and len(site.orders(site.a)) == 1
    assert train(1.5, 3) == 1
    mine, order = site.orders(site.a)
    assert order.id.startswith(AUTOMATIC) and order.ranks == (0,)
    site.answer("a", 0, name=order.id)
    assert train(1.5, 5) == 2 and site.orders(site.a) == [mine, order]
    slower, profiled = (note.text for note in site.scene.state.notes)
    assert "50% slower than usual" in slower and profiled.startswith("a profile of rank 0 says")


def test_a_profile_of_the_controller_that_fails_says_why() -> None:
    site = Site()
    site.ask(0)
    site.scene.shell.put(StepsSlowed(attempt=1, step=4, slower=0.3, step_s=1.3, usual_s=1.0))
    site.scene.settle()
    assert "could not be profiled: another profile" in site.scene.state.notes[-1].text


def test_a_part_of_a_trace_comes_from_its_node_or_it_is_said_why_not(site: Site) -> None:
    parts, told = site.scene.shell.profiles.parts, list[TracePart]()
    named = {site.scene.state.nodes[node].name: node for node in ("a", "b")}

    def ask(name: str, offset: int = 0, *, connected: tuple[str, ...] = ("a", "b")) -> None:
        part = TakeTracePart(trace="profiles/a1/rank-0.json.gz", offset=offset)
        wish = TracePartRequest(id="x", node=name, part=part)
        parts.ask(wish, connected, site.scene.now, told.append)

    first, second = named
    ask(first, 7)
    [order] = [one for one in site.a.sent if isinstance(one, TakeTracePart)]
    good = TracePart(trace=order.trace, offset=7, size=9, data=b"xy")
    site.scene.shell.answered("b", good)
    site.scene.shell.answered("a", TracePart(trace=order.trace, offset=0))
    assert told == [], "neither another node nor another part is an answer"
    site.scene.shell.answered("a", good)
    site.scene.shell.answered("a", good)
    assert told == [good]
    ask("c")
    ask(second, connected=("a",))
    ask(first)
    parts.gone("a")
    ask(second)
    parts.look(site.scene.now + PART_S)
    assert [one.why.removeprefix("its node ") for one in told[1:]] == [
        "is gone, and its trace with it", "is not connected",
        "the connection to its node was lost", "did not answer in time",
    ]  # fmt: skip
