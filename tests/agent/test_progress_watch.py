"""Reports are news: when something has changed, not too often, and now and then for who has missed
one. Signs of life are not their business."""

from types import SimpleNamespace
from typing import Any, cast

from holdfast.agent.controller_connection import ControllerConnection
from holdfast.agent.metrics_file import MetricsFile
from holdfast.agent.node_attempt import NodeAttempt
from holdfast.agent.processes import ProcessExit
from holdfast.agent.progress_watch import LOOK_LATER_S, LOOK_SOON_S, REPEAT_S, ProgressWatch
from holdfast.checkpoint.arena import HEADER_BYTES, Arena, StatePart
from holdfast.events import Milestone, Progress
from holdfast.messages import SAVES, Report, WorkerReport

REPORT_S = 0.2


class Scene:
    """One worker whose page the test writes, and what was reported of it."""

    def __init__(self) -> None:
        self.now, self.step, self.milestones = 100.0, 0, dict[Milestone, float]()
        self.arena = Arena.create()
        self.optimizer_steps = 0
        self.reports: list[Report] = []
        self.link: Any = SimpleNamespace(report_s=REPORT_S, welcomes=1, report=self.reports.append)
        page = SimpleNamespace(
            pace=(0, 0.0), report=self._page, milestone_words=lambda: len(self.milestones)
        )
        page.reached = lambda milestone: milestone in self.milestones
        self.worker: Any = SimpleNamespace(
            id=1, page=page, pid=1, milestones=0, assignment=SimpleNamespace(rank=3), local_rank=0,
            death=None,
        )  # fmt: skip
        self.attempt: Any = SimpleNamespace(
            workers={0: self.worker}, order=SimpleNamespace(attempt=1), trains=False, stop_at=None
        )
        self.watch = ProgressWatch(
            "n", cast(MetricsFile, None), cast(ControllerConnection, self.link), [self.arena]
        )

    def _page(self, rank: int, pid: int, now: float) -> WorkerReport:
        return WorkerReport(
            rank=rank, pid=pid, progress=Progress(step=self.step, step_ago_s=now),
            milestones=dict.fromkeys(self.milestones, now), optimizer_steps=self.optimizer_steps,
            optimizer_step_ago_s=now,
        )  # fmt: skip

    def look(self, seconds: float, *, idle: bool = False) -> int:
        """Look as often as an agent does for so long; how many reports there were."""
        before, end = len(self.reports), self.now + seconds
        while self.now < end:
            self.now += LOOK_LATER_S
            self.watch.look(None if idle else cast(NodeAttempt, self.attempt), self.now)
        return len(self.reports) - before


def test_where_nothing_changes_a_report_is_repeated_every_few_seconds_and_no_more() -> None:
    scene = Scene()
    assert scene.look(REPEAT_S, idle=True) == 1
    assert scene.look(10 * REPEAT_S, idle=True) in (9, 10)
    scene = Scene()
    assert scene.look(REPEAT_S) == 1, "ages that grow are no news"


def test_a_report_tells_how_much_memory_snapshots_take() -> None:
    """Of a sparse file: what it has, not how far it reaches."""
    scene = Scene()
    scene.look(REPORT_S)
    assert scene.reports[-1].workers[0].snapshot_bytes == 0
    cell = Arena(scene.arena).cells(StatePart.PRIVATE)[0]
    cell.reserve(1 << 20)
    scene.step = 1
    scene.look(2 * REPORT_S)
    kept = scene.reports[-1].workers[0].snapshot_bytes
    assert HEADER_BYTES + (1 << 20) <= kept < 2 << 20


def test_steps_are_reported_as_often_as_the_controller_wants_and_not_more() -> None:
    scene = Scene()
    for report_s in (REPORT_S, 1.0):
        scene.link.report_s = report_s
        count = 0
        for _ in range(200):  # looks, in 10 s
            scene.step += 1
            count += scene.look(LOOK_LATER_S / 2)
        assert 0.7 * 10 / report_s <= count <= 10 / report_s + 1


def test_a_milestone_is_reported_at_once_and_looked_for_more_often_until_training() -> None:
    scene = Scene()
    scene.link.report_s = 1_000.0
    scene.look(1.0)
    assert scene.watch.pause_s == LOOK_SOON_S
    scene.milestones[Milestone.ARRIVED] = 1.0
    assert scene.look(LOOK_LATER_S) == 1
    scene.milestones[Milestone.FIRST_STEP] = 1.0
    assert scene.look(LOOK_LATER_S) == 1
    assert scene.watch.pause_s == LOOK_LATER_S


def test_steps_that_are_seen_count_as_training_and_their_age_is_no_news() -> None:
    scene = Scene()
    scene.milestones[Milestone.STEPPED] = 1.0
    scene.optimizer_steps = 5
    scene.look(1.0)
    assert scene.attempt.trains and scene.watch.pause_s == LOOK_LATER_S
    assert scene.look(REPEAT_S / 2) == 0
    scene.optimizer_steps += 1
    assert scene.look(2 * REPORT_S) == 1


def test_a_controller_that_is_new_hears_at_once_what_the_old_one_knew() -> None:
    scene = Scene()
    scene.look(1.0)
    scene.link.welcomes += 1
    assert scene.look(REPORT_S + LOOK_LATER_S) == 1


def test_who_has_ended_well_saves_until_that_is_told_and_who_has_failed_does_not() -> None:
    scene = Scene()
    for code, phase in ((1, ""), (0, SAVES)):
        scene.worker.death = ProcessExit(1, code, None, 1.0)
        scene.watch.last_look(cast(NodeAttempt, scene.attempt))
        assert scene.reports[-1].workers[0].phase == phase


def test_what_a_worker_did_last_is_reported_before_its_death_is() -> None:
    scene = Scene()
    scene.look(1.0)
    before = len(scene.reports)
    scene.attempt.workers[0].assignment = None
    scene.watch.last_look(cast(NodeAttempt, scene.attempt))
    assert len(scene.reports) == before + 1
