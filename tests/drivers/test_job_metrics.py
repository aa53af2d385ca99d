"""What a controller serves: everything of the table, from the journal and from telemetry."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import journal
from holdfast.controller import Limits, State
from holdfast.controller.phases import Phase
from holdfast.controller.state import HealthRecord, IncidentRecord, Node, NodeState, TierRecord
from holdfast.detection.progress import ProgressReducer
from holdfast.drivers.job_books import JobBooks
from holdfast.drivers.job_metrics import JobMetrics, MetricsServer, Throughput
from holdfast.events import Progress, Severity
from holdfast.messages import Report, WorkerReport
from holdfast.monitoring.table import METRICS
from holdfast.scrape import Exposition
from holdfast.slow_ranks import SlowBy, Straggler
from holdfast.spec import job_from_dict
from tests.patience import PATIENCE_S

NOW = 2_000.0


def incident(number: int, ended_at: float | None, **more: Any) -> IncidentRecord:
    return IncidentRecord(
        id=number, cause="worker-killed", summary="", node="n0", rank=1, attempt=number, step=3,
        started_at=100.0, detected_at=100.5, ended_at=ended_at, steps_lost=2, **more,
    )  # fmt: skip


def a_state() -> State:
    """A job with two nodes and a spare, one slow rank, and an incident that is over."""
    nodes = {
        uid: Node(node=uid, name=f"n{rank}", address="", workers=1, state=kind, node_rank=rank)
        for uid, rank, kind in (("a", 0, NodeState.MEMBER), ("b", 1, NodeState.MEMBER))
    }
    nodes["c"] = Node(node="c", name="n2", address="", workers=1, state=NodeState.SPARE)
    hot = HealthRecord(
        condition="gpu-hot", device="0", severity=Severity.WARN, detail="", advice="", at=1.0
    )
    tier = TierRecord(step=9, at=NOW - 5, seconds=2.0, bytes=7, commits_count=4, failures_count=3)
    return State(
        limits=Limits(node_count=2, spare_count=1),
        phase=Phase.RUNNING,
        now=NOW,
        nodes=nodes,
        ranks={0: "a", 1: "b"},
        spares=["c"],
        workers_per_node=1,
        attempt=2,
        restarts_count=1,
        incidents=[incident(1, 103.0), incident(2, None)],
        stragglers=(Straggler(rank=1, share=0.2, cause=SlowBy.ITSELF, text=""),),
        health={"b": {"gpu-hot 0": hot}},
        tiers={"shared": tier},
    )


class Scene:
    """A controller's books over an empty journal, at a time that the test sets."""

    def __init__(self, folder: Path, state: State) -> None:
        job = job_from_dict(
            {"name": "j", "script": "t.py", "nodes": 2, "cost": {"gpu_hour": 2.0}}, where="test"
        )
        path = folder / "journal.jsonl"
        header = journal.Header(
            journal=journal.VERSION, holdfast="0", job=job.model_dump(mode="json"), created_at=0.0
        )
        journal.Journal.create(path, header).close()
        self.now, self.state = NOW, state
        self.progress = ProgressReducer()
        self.progress.begin(2, 2, NOW)
        books = JobBooks("j", path, state, lambda: self.now, self.progress.newest)
        self.wall_ahead_s = 0.0
        self.metrics = JobMetrics(
            job, state, books, self.progress, lambda: self.now, lambda: self.now + self.wall_ahead_s
        )

    def step(self, step: int, ago_s: float = 0.0) -> None:
        """Both ranks tell of it."""
        for rank, node in self.state.ranks.items():
            worker = WorkerReport(
                rank=rank, pid=1, progress=Progress(step=step, step_ago_s=ago_s), milestones={},
                loss=1.5, grad_norm=0.5, step_time_s=0.5, tokens=1000 * step, snapshot_step=step,
                steps_total=40,
                snapshot_every=1, snapshot_ago_s=2.0 + rank, snapshot_took_s=0.25,
                snapshot_bytes=1000, tier_every_s=(0.0, 60.0, 0.0),
            )  # fmt: skip
            self.progress.observe(Report(node=node, attempt=2, workers=(worker,)), self.now)

    def series(self) -> dict[str, float]:
        """All of a scrape."""
        return flat(self.metrics.exposition())


def flat(found: Exposition) -> dict[str, float]:
    return {
        sample.name + "".join(f" {value}" for value in sample.labels.values()): sample.value
        for family in found.collect()
        for sample in family.samples
    }


def test_a_controller_serves_every_metric_of_its_own_and_no_other(tmp_path: Path) -> None:
    scene = Scene(tmp_path, a_state())
    scene.step(4)
    scene.metrics.exposition()
    scene.now += 10
    scene.step(24)
    found = scene.metrics.exposition()
    named = {family.name for family in found.collect()}
    assert named == {row.name for row in METRICS.values() if row.server == "controller"}
    series = flat(found)
    assert series["holdfast_phase running"] == 1 and series["holdfast_phase waiting"] == 0
    assert series["holdfast_last_planned_step"] == 40
    assert series["holdfast_tokens_per_second"] == 2 * 1000 * 20 / 10
    assert series["holdfast_worker_tokens_per_second"] == 2000
    assert series["holdfast_cost_per_hour"] == 6.0, "two that train and a spare"
    assert series["holdfast_cost_per_step"] == pytest.approx(6.0 / 3600 * 0.5)
    assert series["holdfast_cost_per_billion_tokens"] == pytest.approx(6 / 3600 / 4000 * 1e9)
    assert series["holdfast_incidents_total worker-killed"] == 1, "an open one may change its cause"
    assert series["holdfast_incident_open"] == 1 and series["holdfast_steps_redone_total"] == 2
    assert series["holdfast_detect_seconds_sum"] == 0.5
    assert series["holdfast_recover_seconds_bucket 5.0"] == 1
    assert series["holdfast_node_condition n1 gpu-hot warn"] == 1
    assert series["holdfast_straggler_ratio n1 1"] == 0.2
    assert series["holdfast_snapshot_age_seconds"] == 3.0, "of the rank that was last"
    assert series["holdfast_snapshot_duration_seconds"] == 0.25
    assert series["holdfast_snapshot_bytes"] == 2000
    assert series["holdfast_checkpoint_age_seconds shared"] == 5.0
    assert series["holdfast_checkpoint_interval_seconds shared"] == 60.0


def test_the_last_step_stays_where_it_was_when_nobody_reports(tmp_path: Path) -> None:
    scene = Scene(tmp_path, a_state())
    name = "holdfast_last_step_timestamp_seconds"
    assert scene.series()[name] == scene.state.started_at, "nothing was done yet"
    scene.step(5, ago_s=1.0)
    scene.now += 900.0
    assert scene.series()[name] == NOW - 1.0
    scene.progress.begin(3, 2, scene.now)
    assert scene.series()[name] == NOW - 1.0, "an attempt is no progress"
    scene.wall_ahead_s = 28_800.0  # the machine was asleep, or its clock was set
    assert scene.series()[name] == NOW - 1.0 + 28_800.0, "as long ago as before"


def test_a_state_that_was_only_restored_is_no_step() -> None:
    progress = ProgressReducer()
    progress.begin(1, 1, 0.0)
    done = Progress(step=7, step_ago_s=1.0)
    worker = WorkerReport(rank=0, pid=1, progress=done, milestones={}, restored_step=7)
    progress.observe(Report(node="a", attempt=1, workers=(worker,)), 50.0)
    assert progress.stepped_at is None


def reports(tokens: int) -> list[WorkerReport]:
    return [WorkerReport(rank=0, pid=1, progress=Progress(), milestones={}, tokens=tokens)]


def test_throughput_is_of_the_last_minute_and_of_this_attempt() -> None:
    rate = Throughput()
    assert rate.observe(0.0, 1, reports(0)) is None
    for second in range(1, 200):
        found = rate.observe(float(second), 1, reports(10 * second))
    assert found == pytest.approx(10.0)
    for second in range(200, 261):
        found = rate.observe(float(second), 1, reports(1990))
    assert found == 0.0, "it stands still"
    assert rate.observe(261.0, 2, reports(5)) is None, "counts begin again"


def test_a_port_that_is_taken_is_said_and_nothing_else_happens() -> None:
    said: list[str] = []

    async def open_there() -> str | None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            server = MetricsServer("j", Exposition)
            await server.open("127.0.0.1", taken.getsockname()[1], said.append)
            server.close()
            return server.address

    assert asyncio.run(open_there()) is None
    assert len(said) == 1 and "Address already in use" in said[0] and "no metrics" in said[0]


def test_a_port_that_is_free_again_is_listened_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever had it may have ended long before this job does."""
    monkeypatch.setattr("holdfast.drivers.job_metrics.AGAIN_S", 0.001)
    said: list[str] = []

    async def story() -> None:
        server = MetricsServer("j", Exposition)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            await server.open("127.0.0.1", port, said.append)
            assert len(said) == 1
        while server.address is None:
            await asyncio.sleep(0.001)
        assert await get(server.address, "/metrics") == b"OK\n"
        assert said[1:] == [f"metrics: listening on port {port}"]
        server.close()

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))


async def get(address: str, path: str) -> bytes:
    host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer.partition(b"\r\n\r\n")[2]


def test_prometheus_finds_controller_and_agents() -> None:
    async def both() -> None:
        server = MetricsServer("j", Exposition)
        server.agents = lambda: ["127.0.0.1:9"]
        await server.open("127.0.0.1", 0, pytest.fail)
        where = server.address
        assert where is not None
        [group] = msgspec.json.decode(await get(where, "/targets"))
        assert group == {"targets": [where, "127.0.0.1:9"], "labels": {"holdfast_dev_job": "j"}}
        assert await get(where, "/nothing") == b"Not Found\n"
        server.close()

    asyncio.run(both())


def test_figures_that_cannot_be_told_are_an_error_of_the_scrape_alone() -> None:
    async def twice() -> list[bytes]:
        looks = iter([Exposition()])
        server = MetricsServer("j", lambda: next(looks))
        await server.open("127.0.0.1", 0, pytest.fail)
        assert server.address is not None
        found = [await get(server.address, "/metrics") for _ in range(3)]
        server.close()
        return found

    assert asyncio.run(twice()) == [b"OK\n", b"StopIteration: \n", b"StopIteration: \n"]
