"""Members are asked now and then when their workers entered collectives; the answers tell."""

from collections.abc import Sequence

import pytest

from holdfast.collectives import Collective, CollectivePace, GroupLog, RankTimes
from holdfast.controller import Limits
from holdfast.controller.phases import Phase
from holdfast.dimensions import PLAIN, Layout
from holdfast.events import (
    CollectivesShifted,
    HealthChanged,
    Milestone,
    MilestoneReached,
    Severity,
    StragglersFound,
    in_rows,
)
from holdfast.messages import EntryTimes, TakeEntryTimes
from holdfast.profiles import AskProfile, ProfileTaken, ProfileWish, RankProfile
from holdfast.shell.straggler_sampling import EVERY_S, FIRST_S
from tests.shell.scene import Scene, Wire

AHEAD_US = {0: 5_000_000_000, 1: -7_000_000_000}  # of the clocks of the nodes
STEP_S = 0.1


class Watched(Scene):
    """Two nodes with a rank each; rank 1 enters each collective so much later."""

    def __init__(self, stragglers: str = "tell", layout: Layout = PLAIN) -> None:
        super().__init__(Limits(node_count=2, stragglers=stragglers, layout=layout))
        self.wires = self.running("a", "b")
        self.shell.put(MilestoneReached(attempt=1, milestone=Milestone.FIRST_STEP, ago_s=0.0))
        self.settle()
        assert self.state.phase is Phase.RUNNING
        self.late_s = 0.02
        self.travel_s, self.turn_s = 0.001, 0.01
        self.begun, self.done = self.now, 0
        self.skips_after = 0  # this step, on rank 1; 0: never
        self.ahead_us = dict(AHEAD_US)

    def questions(self, wire: Wire) -> list[TakeEntryTimes]:
        return [told for told in wire.told(TakeEntryTimes) if isinstance(told, TakeEntryTimes)]

    def ask(self) -> None:
        """Wait for the next question."""
        before = len(self.questions(self.wires[0]))
        end = self.now + EVERY_S + FIRST_S
        while len(self.questions(self.wires[0])) == before and self.now < end:
            self.wait(self.turn_s, *self.wires)

    def answer(self, wires: Sequence[Wire] | None = None) -> None:
        """What has been entered until now."""
        self.done = int((self.now - self.begun) / STEP_S)
        self.now += 2 * self.travel_s
        for wire in wires if wires is not None else self.wires:
            self.shell.answered(wire.node, self._times(self.wires.index(wire), wire))
        self.settle()

    def _times(self, rank: int, wire: Wire) -> EntryTimes:
        ahead_us = self.ahead_us[rank]
        heard_us = int((self.now - self.travel_s) * 1e6) + ahead_us
        entered = (
            Collective(n, int((self.begun + n * STEP_S + self.late_s * rank) * 1e6) + ahead_us)
            for n in range(max(1, self.done - 119), self.done + 1)
        )
        log = GroupLog(name="0", members=((0, 2, 1),), ranks=in_rows([rank]), recent=tuple(entered))
        ends = tuple(
            (n, self._ended_us(n, rank) + ahead_us) for n in range(self.done - 7, self.done)
        )
        paces = (CollectivePace("0", ((0, 2, 1),), self._course(rank)),) if self.skips_after else ()
        times = RankTimes(
            rank=rank, groups=(log,), processor_s=self.done * 0.1, paces=paces, steps=ends
        )
        number = self.questions(wire)[-1].number
        return EntryTimes(number=number, ranks=(times,), asked_us=heard_us, told_us=heard_us)

    def _course(self, rank: int) -> tuple[tuple[int, int], ...]:
        left = self.skips_after
        return (1, 1), (left, left), (left + 1, left + 1 - rank), (self.done, self.done - rank)

    def _ended_us(self, step: int, rank: int) -> int:
        """Who has left a collective out is a step ahead."""
        ahead = rank * bool(self.skips_after)
        return int((self.begun + (step - ahead) * STEP_S) * 1e6)

    def goes_on(self, seconds: float) -> list[float]:
        """Every question is answered; how long each was waited for."""
        waited, end = [], self.now + seconds
        while self.now < end and not self.found():
            before = self.now
            self.ask()
            self.answer()
            waited.append(self.now - before)
        return waited

    def found(self) -> list[StragglersFound]:
        return [e for e in self.events(StragglersFound) if isinstance(e, StragglersFound)]


def test_a_rank_that_always_comes_last_is_asked_for_sooner_and_found_within_30_s() -> None:
    scene = Watched()
    waited = scene.goes_on(30.0)
    (found,) = scene.found()
    (slow,) = found.stragglers
    assert slow.rank == 1 and abs(slow.share - 0.2) < 0.02
    assert scene.state.stragglers == (slow,)
    assert max(waited[:2]) > 0.9 * FIRST_S and max(waited[2:]) < 0.3 * EVERY_S


def test_of_two_stages_of_a_pipeline_the_one_that_always_comes_last_is_no_slow_rank() -> None:
    scene = Watched(layout=Layout(pp=2, dp_shard=1))
    scene.goes_on(60.0)
    assert scene.found() == []


def test_clocks_that_differ_by_hours_and_ranks_that_come_together_blame_nobody() -> None:
    scene = Watched()
    scene.late_s = 0.0
    waited = scene.goes_on(60.0)
    assert scene.found() == [] and min(waited[1:]) > 0.9 * EVERY_S


def test_a_delay_within_what_the_journey_of_the_answers_may_hide_blames_nobody() -> None:
    scene = Watched()
    scene.travel_s = 0.05
    scene.goes_on(60.0)
    assert scene.found() == []


def test_a_clock_that_differs_is_a_condition_of_its_node_until_it_is_set() -> None:
    scene = Watched()
    scene.late_s, scene.ahead_us = 0.0, {0: 0, 1: 5_000_000}
    scene.goes_on(30.0)
    [told] = scene.events(HealthChanged)
    assert isinstance(told, HealthChanged)
    assert (told.node, told.condition, told.severity) == ("b", "clock-skew", Severity.WARN)
    assert "5.0 s" in told.detail and "ahead" in told.detail and "chronyc" in told.advice
    assert "b" in scene.state.health

    scene.ahead_us[1] = 0
    scene.goes_on(15.0)
    assert scene.state.health == {}
    assert len(scene.events(HealthChanged)) == 2 and scene.state.phase is Phase.RUNNING


@pytest.mark.parametrize("by_us", [20_000, -20_000])
def test_a_clock_that_is_set_while_ranks_come_together_makes_nobody_slow(by_us: int) -> None:
    """By less than a step takes: who is late by more does not keep the others waiting."""
    scene = Watched()
    scene.late_s, scene.travel_s, scene.turn_s = 0.0, 0.0001, 0.25
    scene.ask()
    scene.answer()  # the best comparison for long, and of the clock as it was
    scene.travel_s = 0.001
    scene.ahead_us[1] += by_us
    scene.goes_on(120.0)
    assert scene.found() == []

    scene.late_s = 0.02
    scene.goes_on(60.0)
    (found,) = scene.found()
    assert [one.rank for one in found.stragglers] == [1], "and who is slow is still found"


def test_where_nobody_is_asked_nothing_is_known_of_clocks() -> None:
    scene = Watched(stragglers="off")
    scene.wait(30.0, *scene.wires)
    assert scene.questions(scene.wires[0]) == [] and scene.events(HealthChanged) == []


def test_who_does_not_answer_is_left_out_and_asked_again() -> None:
    scene = Watched()
    scene.ask()
    scene.answer(scene.wires[:1])
    scene.ask()
    assert len(scene.questions(scene.wires[1])) == 2
    scene.goes_on(40.0)
    assert len(scene.found()) == 1


def test_a_node_whose_connection_is_gone_is_not_waited_for() -> None:
    scene = Watched()
    scene.ask()
    scene.shell.stragglers.gone("b", scene.now)
    scene.answer(scene.wires[:1])
    assert scene.found() == []


def test_a_collective_that_was_left_out_is_asked_for_again_soon_and_stops_the_attempt() -> None:
    scene = Watched()
    scene.late_s, scene.skips_after = 0.0, 10
    scene.ask()
    scene.answer()
    assert scene.events(CollectivesShifted) == []
    before = scene.now
    scene.ask()
    assert scene.now - before < 0.5 * EVERY_S
    scene.answer()
    (event,) = scene.events(CollectivesShifted)
    assert isinstance(event, CollectivesShifted)
    assert (event.ranks, event.by, event.agreed) == (((1, 1),), -1, 10)
    assert scene.state.phase is Phase.RECOVERING


def test_while_ranks_are_profiled_nobody_is_asked_and_nobody_found() -> None:
    scene = Watched()
    scene.ask()
    scene.answer()
    replies: list[object] = []
    scene.shell.client(AskProfile(wish=ProfileWish(id="p")), replies.append)
    before = len(scene.questions(scene.wires[0]))
    scene.wait(3 * EVERY_S, *scene.wires)
    assert len(scene.questions(scene.wires[0])) == before and not replies
    found = (RankProfile(rank=0, node="a"),)
    scene.shell.answered("a", ProfileTaken(id="p", found=found))
    assert len(replies) == 1
    scene.ask()
    scene.answer()
    assert scene.found() == [], "the first answer is what the next ones are compared with"
    scene.goes_on(40.0)
    assert len(scene.found()) == 1


def test_nobody_is_asked_where_the_job_does_not_want_it() -> None:
    scene = Watched("off")
    scene.wait(FIRST_S + EVERY_S, *scene.wires)
    assert not scene.questions(scene.wires[0])
