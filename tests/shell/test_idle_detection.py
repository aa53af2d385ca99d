"""Ranks without steps are told while they are idle, and stopped only where that is certain."""

import pytest

from holdfast.controller import Limits
from holdfast.detection.idle import LOOK_S
from holdfast.events import (
    HangJudged,
    HangSuspected,
    Judgement,
    Milestone,
    Progress,
    in_rows,
)
from holdfast.messages import Report, Stacks, Stop, TakeStacks, WorkerReport
from holdfast.stacks import Activity, StackGroup, ThreadStack, Wait
from tests.shell.scene import Scene, Wire

LIMIT_S = 600.0
MARGIN_S = 10.0


class Plain(Scene):
    """Two nodes, each with a rank that tells nothing but for how long it has been idle."""

    def __init__(self, **limits: float) -> None:
        limits = {"node_count": 2, "hang_timeout_s": LIMIT_S, **limits}
        super().__init__(Limits(**limits))  # type: ignore[arg-type]
        self.wires = self.running("a", "b")
        self.idle_s, self.waits, self.place = 0.0, Wait.LOCK, "take (job.py:4)"
        self.tell()

    def tell(self) -> None:
        for rank, wire in enumerate(self.wires):
            page = WorkerReport(
                rank=rank, pid=1, progress=Progress(), milestones={Milestone.STARTED: 1.0},
                phase="starting", idle_s=self.idle_s, asleep_s=self.idle_s,
            )  # fmt: skip
            self.shell.report(Report(node=wire.node, attempt=self.state.attempt, workers=(page,)))
        self.settle()

    def idle(self, seconds: float) -> None:
        """Nobody does anything; whoever is asked answers."""
        end = self.now + seconds
        while self.now < end:
            self.wait(2.5, *self.wires)
            self.idle_s += 2.5
            self.tell()
            for wire in self.wires:
                self.answer(wire)

    def answer(self, wire: Wire) -> None:
        for asked in wire.told(TakeStacks):
            assert isinstance(asked, TakeStacks)
            frames = ("<module> (job.py:9)", self.place)
            thread = ThreadStack(name="MainThread", pid=1, frames=frames)
            group = StackGroup(
                ranks=in_rows([self.wires.index(wire)]), threads=(thread,), state="sleeping",
                activity=Activity.STILL, waits=(self.waits,),
            )  # fmt: skip
            self.shell.answered(wire.node, Stacks(number=asked.number, groups=(group,)))
        self.settle()

    @property
    def judgements(self) -> list[Judgement]:
        events = self.events(HangJudged)
        return [event.judgement for event in events if isinstance(event, HangJudged)]

    def was_stopped(self) -> bool:
        return any(wire.told(Stop) for wire in self.wires)


def test_a_deadlock_is_told_after_a_minute_and_stopped_after_the_limit() -> None:
    scene = Plain()
    scene.idle(LOOK_S + MARGIN_S)
    assert scene.judgements == [Judgement.SLOW] and not scene.was_stopped()
    assert scene.state.standstill.startswith("Idle for ")
    assert "rank 0 waits for itself in take (job.py:4)" in scene.state.standstill
    scene.idle(LIMIT_S - LOOK_S)
    assert scene.judgements[-1] is Judgement.HANG and scene.was_stopped()
    (incident,) = scene.state.incidents
    assert incident.cause == "hang" and "take (job.py:4)" in incident.summary
    assert incident.detected_at - incident.started_at == pytest.approx(LIMIT_S, abs=MARGIN_S)
    assert incident.hung_after == 0, "the next one that hangs has come no further"


@pytest.mark.parametrize("waits", [Wait.TIMER, Wait.OUTSIDE])
def test_a_script_that_sleeps_or_serves_is_told_and_never_stopped(waits: Wait) -> None:
    scene = Plain()
    scene.waits = waits
    scene.idle(4 * LIMIT_S)
    assert set(scene.judgements) == {Judgement.SLOW} and not scene.was_stopped()
    assert not scene.state.incidents and scene.state.standstill
    assert len(scene.events(HangSuspected)) < 14, "a few lines of the journal"


def test_a_deadlock_after_a_long_sleep_elsewhere_is_stopped_as_soon_as_ever() -> None:
    scene = Plain()
    scene.waits, scene.place = Wait.TIMER, "nap (job.py:3)"
    scene.idle(4 * LIMIT_S)
    scene.idle_s = 0.0
    scene.tell()
    scene.waits, scene.place = Wait.LOCK, "take (job.py:4)"
    scene.idle(LIMIT_S - MARGIN_S)
    assert not scene.was_stopped()
    scene.idle(2 * MARGIN_S)
    assert scene.judgements[-1] is Judgement.HANG and scene.was_stopped()


def test_what_was_told_is_forgotten_when_it_goes_on() -> None:
    scene = Plain()
    scene.waits = Wait.TIMER
    scene.idle(LOOK_S + MARGIN_S)
    assert scene.state.standstill
    scene.idle_s = 0.0
    scene.tell()
    scene.wait(1.0, *scene.wires)
    assert scene.judgements[-1] is Judgement.OVER and scene.state.standstill == ""


def test_where_the_job_file_limits_a_step_a_script_that_sleeps_for_longer_is_stopped() -> None:
    scene = Plain(step_timeout_s=200.0)
    scene.waits = Wait.TIMER
    scene.idle(200.0 - MARGIN_S)
    assert not scene.was_stopped()
    scene.idle(2 * MARGIN_S)
    assert scene.judgements[-1] is Judgement.HANG and scene.was_stopped()


def test_a_job_that_wants_no_watch_is_not_watched() -> None:
    scene = Plain(hang_timeout_s=0.0)
    scene.idle(2 * LIMIT_S)
    assert scene.events(HangSuspected) == []
