"""The live view: progress, courses of numbers, and jobs side by side."""

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from holdfast.cli import trend
from holdfast.cli.cluster import Reach, Session
from holdfast.cli.live import NODES_SHOWN, LiveView
from holdfast.cli.source import LocalSource, RemoteSource
from holdfast.cli.top import Shown, page
from holdfast.cli.trend import BARS, CURVE_POINTS, POINTS, KeptCourse, Trend, bars, filled
from holdfast.history import CURVE, CurveFile, StepPoint
from holdfast.status import JobStatus, NodeCondition, NodeStatus
from tests.patience import until

if TYPE_CHECKING:
    from holdfast.drivers.kubernetes.api import Api


def status(**given: object) -> JobStatus:
    plain = {
        "job": "a", "phase": "running", "attempt": 1, "step": 30, "ettr": 0.9, "nodes": (),
        "incidents_count": 0, "restarts_count": 0, "waiting_for": None, "started_at": 5.0,
        "wall_s": 60.0, "loss": 2.0, "step_time_s": 0.5, "steps_total": 120,
    }  # fmt: skip
    return JobStatus(**{**plain, **given})  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("live", "top"):
        monkeypatch.setattr(f"holdfast.cli.{module}.can_draw", lambda: True)


def test_progress_says_how_far_and_how_long() -> None:
    text = LiveView("").page(status(), [])
    assert f"{filled(0.25, 30)} 25.0 %, 45.0 s left at 500 ms a step" in text
    assert "step 30 of 120" in text


def test_a_script_that_does_not_say_its_end_has_no_bar() -> None:
    text = LiveView("").page(status(steps_total=None), [])
    assert "progress" not in text and "step 30," in text


def test_loss_and_speed_are_drawn_as_they_came() -> None:
    view = LiveView("")
    for loss in (4.0, 3.0, 2.0, 1.0):
        text = view.page(status(loss=loss), [])
    assert "█▆▃▁ 1" in text
    assert "▅▅▅▅ 2 steps/s" in text


def test_the_course_begins_with_the_job_where_its_curve_is_kept(tmp_path: Path) -> None:
    steps = CurveFile(tmp_path / CURVE)
    values = ((4.0 if step < 500 else 1.0, 0, 0.25, 0, 0, 0) for step in range(1000))
    steps.put([StepPoint(step, step, 1, some) for step, some in enumerate(values)])
    kept = LocalSource(tmp_path).course()
    lines = LiveView("").page(status(phase="waiting", loss=None), [], kept).splitlines()
    loss, speed = (next(line for line in lines if line.startswith(of)) for of in ("loss", "speed"))
    bars_of_loss = loss.split()[1]
    assert bars_of_loss.startswith("█" * 10) and bars_of_loss.endswith("▁" * 10)
    assert POINTS / 8 < len(bars_of_loss) <= POINTS and set(bars_of_loss) <= set(BARS)
    assert loss.endswith(" 1") and speed.endswith("▅ 4 steps/s")
    text = LiveView("").page(status(loss=0.5), [], kept)
    assert f"{bars_of_loss} 0.5" in text, "the number is the newest that is known"


class _SlowCluster:
    """Answers the question for the curve once it may."""

    namespace = "ns"

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.asked = 0

    async def read(self, path: str, limit: int) -> bytes:
        assert path.endswith(f"/gpt-controller:metrics/proxy/curve/0/end/{CURVE_POINTS}"), limit
        self.asked += 1
        await self.may.wait()
        mean = {"loss": [4.0, 2.0], "step_s": [None, 0.5]}
        columns = {"step": [1, 2], "at": [1.0, 2.0], "attempt": [1, 1], "low": {}, "high": {}}
        return json.dumps({"first": 1, "last": 2, "width": 1, "mean": mean, **columns}).encode()


def test_a_controller_that_does_not_answer_keeps_no_page_waiting() -> None:
    cluster = _SlowCluster()
    with asyncio.Runner() as runner:
        source = RemoteSource(Session(runner, cast("Api", cluster), Reach(None, None)), "gpt")
        assert source.course() == source.course() == KeptCourse()
        assert cluster.asked <= 1, "the first question has not been waited for and given up"
        cluster.may.set()  # meanwhile the cluster is asked for other things

        def come() -> bool:
            runner.run(asyncio.sleep(0))
            return source.course() == KeptCourse([4.0, 2.0], [2.0])

        assert until(come)


def test_a_job_without_a_curve_has_no_course(tmp_path: Path) -> None:
    assert LocalSource(tmp_path).course() == KeptCourse([], [])


def test_while_nothing_trains_no_point_is_added() -> None:
    view = LiveView("")
    view.page(status(loss=4.0), [])
    view.page(status(loss=2.0), [])
    assert view.page(status(phase="waiting", loss=9.0), []).count("█▁ 2") == 1


def test_of_many_nodes_those_in_trouble_are_shown() -> None:
    ill = NodeCondition(
        condition="xid", severity="fatal", device="GPU 0", detail="fell off the bus", advice="",
        since=0.0, fault=True,
    )  # fmt: skip
    nodes = [NodeStatus(name=f"n{i}", state="member", rank=i, node=str(i)) for i in range(100)]
    nodes[77] = NodeStatus(name="n77", state="member", rank=77, node="77", conditions=(ill,))
    text = LiveView("").page(status(nodes=tuple(nodes)), [])
    assert "n77" in text and "fell off the bus" in text
    assert f"and {100 - NODES_SHOWN} more: holdfast status a" in text


def test_a_trend_spans_all_that_was_seen_in_bounded_memory() -> None:
    seen, some = Trend(), random.Random(1)
    for number in range(10_000):
        seen.add(10_000 - number + some.random())
    drawn = seen.drawn()
    assert POINTS // 2 <= len(drawn) < POINTS
    assert drawn[0] == BARS[-1] and drawn[-1] == BARS[0]
    assert list(drawn) == sorted(drawn, reverse=True)


def test_what_is_no_number_is_no_part_of_a_trend() -> None:
    seen = Trend()
    for value in (1.0, None, float("nan"), float("inf"), 2.0):
        seen.add(value)
    assert seen.drawn() == "▁█" and seen.newest == 2.0


def test_a_bar_never_leaves_its_width() -> None:
    assert {len(filled(share, 7)) for share in (-1.0, 0.0, 0.3, 1.0, 9.0)} == {7}
    assert bars([1.0, 1.0]) == "▅▅"


def test_where_the_characters_cannot_be_shown_there_are_numbers_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Ascii:
        encoding = "ascii"

    monkeypatch.setattr(sys, "stdout", Ascii())
    assert not trend.can_draw()


def test_jobs_that_wait_for_something_come_first() -> None:
    jobs = [
        Shown(None, status(job="new", started_at=9.0)),
        Shown(None, status(job="stuck", waiting_for="1 node")),
        Shown(None, status(job="old", started_at=1.0)),
    ]
    assert [line.split()[0] for line in page(jobs).splitlines()[1:]] == ["stuck", "new", "old"]


def test_namespaces_are_told_where_there_are_several() -> None:
    one, two = Shown("team-a", status(job="x")), Shown("team-b", status(job="y"))
    assert "NAMESPACE" not in page([one])
    assert "team-a" in page([one, two]) and "team-b" in page([one, two])


def test_without_a_job_it_says_where_all_are() -> None:
    assert "holdfast list" in page([])
