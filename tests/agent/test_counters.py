"""What a node's workers have done goes on over their restarts, and is counted once."""

from types import MappingProxyType
from typing import Any

import pytest

from holdfast.agent.counters import NodeCounters, WorkDone
from holdfast.agent.figures import SERIES, figures
from holdfast.agent.probes import Health
from holdfast.detection.health import Reading
from holdfast.events import Progress
from holdfast.messages import WorkerReport
from holdfast.monitoring.table import METRICS
from holdfast.page import StepRecord


def report(rank: int, step: int | None, *, restored: int = 0, **more: Any) -> WorkerReport:
    progress = Progress(step=step, data_wait_s=0.5 * (step or 0), snapshot_s=0.25 * (step or 0))
    return WorkerReport(
        rank=rank, pid=1, progress=progress, milestones={}, restored_step=restored, **more
    )


def test_work_is_added_up_over_attempts_and_looks() -> None:
    counters = NodeCounters()
    for _ in range(3):  # the same news again
        counters.looked(1, [report(2, 4, tokens=40), report(3, 4, tokens=40)])
    assert counters.total == WorkDone(4, 80, 4.0, 2.0)
    counters.looked(1, [report(2, 3, tokens=30)])  # an older look, heard late
    assert counters.total == WorkDone(4, 80, 4.0, 2.0)
    counters.looked(2, [report(2, 5, restored=4, tokens=10), report(3, 5, restored=4, tokens=10)])
    assert counters.total.steps == 5 and counters.total.tokens == 100
    counters.looked(3, [report(2, 4, restored=4), report(3, 4, restored=4)])
    assert counters.total.steps == 5, "a step that was restored was not done"


def test_steps_that_are_only_seen_count_too() -> None:
    counters = NodeCounters()
    counters.looked(1, [report(0, None, optimizer_steps=9)])
    counters.looked(2, [report(0, None, optimizer_steps=2)])
    assert counters.total.steps == 11


def record(step: int, at: float, **metrics: float) -> StepRecord:
    return StepRecord(step, at, None, None, 0, MappingProxyType(metrics))


def test_every_step_of_rank_0_is_timed_but_for_the_first_of_an_attempt() -> None:
    counters = NodeCounters()
    counters.stepped(1, [record(1, 10.0, samples=8), record(2, 10.5, samples=8, lr=0.1)])
    counters.stepped(1, [record(3, 11.0, samples=8, lr=0.2, mfu=0.4, own=7.0)])
    counters.stepped(1, [record(9, 99.0)])  # the ring was overwritten meanwhile
    counters.stepped(2, [record(3, 200.0), record(4, 203.0, lr=0.3)])
    assert counters.step_s.sum_s == pytest.approx(4.0)
    assert counters.step_s.buckets()[-1] == ("+Inf", 3.0)
    assert counters.samples == 24 and counters.logged == {"lr": 0.3}


def test_a_report_of_rank_0_has_what_it_logs_and_those_of_others_do_not() -> None:
    counters = NodeCounters()
    counters.stepped(1, [record(1, 1.0, learning_rate=0.1, mfu=0.4, own=7.0)])
    first, other = report(0, 1), report(1, 1)
    told = counters.with_logged(first)
    assert (told.lr, told.mfu, told.progress) == (0.1, 0.4, first.progress)
    assert counters.with_logged(other) is other
    counters.looked(2, [first])
    assert counters.with_logged(first) is first, "of this attempt nothing was logged yet"


def series(health: Health) -> dict[str, float]:
    found = figures(health, now=1000.0).collect()
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in found
        for sample in family.samples
    }


def test_a_node_serves_every_metric_of_an_agent_and_no_other() -> None:
    counters = NodeCounters()
    counters.looked(1, [report(0, 4, tokens=40)])
    counters.stepped(1, [record(1, 1.0), record(2, 2.0, lr=0.1, samples=4, mfu=0.5, own=3)])
    readings = [Reading(kind, 50.0, "it") for kind in SERIES]
    health = Health(
        name="n", registered=True, connected=True, attempt=1, workers=1, counters=counters,
        readings=readings, xids={("gpu-0", 79): 2}, step=4, step_ago_s=10.0,
    )  # fmt: skip
    named = {family.name for family in figures(health, 1000.0).collect()}
    assert named == {row.name for row in METRICS.values() if row.server == "agent"}
    found = series(health)
    assert found["holdfast_node_last_step_timestamp_seconds[('node', 'n')]"] == 990.0
    assert found["holdfast_script_metric[('name', 'own'), ('node', 'n')]"] == 3
    assert (
        found["holdfast_gpu_xid_errors_total[('gpu', 'gpu-0'), ('node', 'n'), ('xid', '79')]"] == 2
    )
    pressure = "holdfast_memory_pressure_ratio[('node', 'n'), ('of', 'it')]"
    assert found[pressure] == pytest.approx(0.5), "percent is no base unit"
