"""Looks at ranks become columns, and where it is asked for, those at rank 0 a curve."""

import asyncio
import itertools
import json
import math
import os
import resource
import signal
import struct
from pathlib import Path

import msgspec
import pytest

from holdfast.controller import Limits, State
from holdfast.detection.progress import ProgressReducer
from holdfast.drivers.job_history import EVERY_S, JobHistory
from holdfast.drivers.job_metrics import MetricsServer
from holdfast.events import Progress
from holdfast.history import CURVE, RANKS, read_curve, read_ranks
from holdfast.messages import Report, WorkerReport
from holdfast.scrape import Exposition


class Scene:
    """Two ranks of one attempt, rank 1 late and waiting for its data."""

    def __init__(self, folder: Path, *, curve: bool = True) -> None:
        self.state = State(limits=Limits(node_count=2), workers_per_node=1, attempt=1)
        self.progress = ProgressReducer()
        self.progress.begin(1, 2, 0.0)
        late = {1: 0.25}
        self.now = 0.0
        self.history = JobHistory(
            folder, self.state, self.progress, lambda: late, lambda: self.now, curve=curve
        )

    def report(self, step: int, at: float) -> None:
        workers = [
            WorkerReport(
                rank=rank, pid=1, milestones={}, loss=3.0 / step, grad_norm=0.5, step_time_s=0.5,
                tokens=100 * step, mfu=0.25 * step, lr=0.5 / step,
                progress=Progress(step=step, data_wait_s=rank * at / 2),
            )
            for rank in (0, 1)
        ]  # fmt: skip
        self.progress.observe(Report(node="n", attempt=1, workers=tuple(workers)), at)


def column(folder: Path, quantity: str) -> list[float]:
    found = read_ranks(folder / RANKS, quantity)
    return list(struct.unpack(f"<{len(found.values) // 2}e", found.values))


def test_two_looks_are_a_column(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    for step, at in ((1, 1000.0), (2, 1000.0 + EVERY_S / 2), (3, 1000.0 + EVERY_S)):
        scene.report(step, at)
        scene.history.look(at)
    assert column(tmp_path, "step_s") == [0.5, 0.5]
    assert column(tmp_path, "wait") == [0.0, 0.5]
    late = column(tmp_path, "late")
    assert late[0] != late[0] and late[1] == 0.25
    curve = read_curve(tmp_path / CURVE)
    assert curve.step == [1, 2, 3] and curve.mean["loss"] == [3.0, 1.5, 1.0]
    assert curve.mean["tokens_per_s"] == [None, 200.0, 200.0]
    assert curve.mean["mfu"] == [0.25, 0.5, 0.75] and curve.mean["lr"][:2] == [0.5, 0.25]


def test_a_new_attempt_is_not_compared_with_the_one_before(tmp_path: Path) -> None:
    scene = Scene(tmp_path, curve=False)
    scene.report(1, 1000.0)
    scene.history.look(1000.0)
    scene.state.attempt = 2
    scene.history.look(1000.0 + EVERY_S)
    assert column(tmp_path, "wait") == [] and not (tmp_path / CURVE).exists()


def test_steps_that_the_output_tells_are_a_curve_wherever_the_job_runs(tmp_path: Path) -> None:
    scene = Scene(tmp_path, curve=False)

    def told(step: int, loss: float | None, at: float, attempt: int = 1) -> None:
        worker = WorkerReport(
            rank=0, pid=1, milestones={}, progress=Progress(), printed_step=step,
            printed_step_ago_s=0.25, printed_loss=loss,
        )  # fmt: skip
        scene.state.attempt = attempt
        scene.progress.observe(Report(node="n", attempt=1, workers=(worker,)), at)
        scene.history.look(at)

    told(10, None, 1000.25)
    told(10, 3.0, 1001.0)  # a line of its own, later
    told(12, 2.0, 1002.25)
    told(13, math.nan, 1003.25)
    found = read_curve(tmp_path / CURVE)
    assert found.step == [10, 12, 13] and found.at == [1000.0, 1002.0, 1003.0]
    assert found.mean["loss"] == [3.0, 2.0, None]
    assert found.mean["step_s"] == [None, 1.0, 1.0]
    told(12, 1.5, 1010.0, attempt=2)  # again, from a checkpoint
    found = read_curve(tmp_path / CURVE)
    assert (found.step, found.attempt) == ([10, 12], [1, 2])
    assert found.mean["loss"] == [3.0, 1.5] and found.mean["step_s"] == [None, None]


def test_what_a_script_prints_that_reports_its_steps_is_not_in_its_curve(tmp_path: Path) -> None:
    scene = Scene(tmp_path, curve=False)
    printed = WorkerReport(
        rank=0, pid=1, milestones={}, progress=Progress(), printed_step=3, printed_loss=2.0
    )  # its third epoch, after a restart
    scene.state.max_step = 5000
    scene.progress.observe(Report(node="n", attempt=1, workers=(printed,)), 1000.0)
    scene.history.look(1000.0)
    assert not (tmp_path / CURVE).exists(), "the agent writes it"
    scene.state.max_step = None
    scene.history.look(1000.5)
    assert read_curve(tmp_path / CURVE).step == [3]


def test_a_disk_that_takes_nothing_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path / "gone")
    monkeypatch.setattr("holdfast.drivers.job_history.CURVE_S", 0.001)
    scene.report(1, 1000.0)
    looked, looks, said = scene.history.look, list[float](), list[str]()

    def counted(now: float) -> None:
        looks.append(now)
        looked(now)

    monkeypatch.setattr(scene.history, "look", counted)

    async def story() -> None:
        running = asyncio.create_task(scene.history.run(said.append))
        while len(looks) < 3:
            await asyncio.sleep(0.002)
        assert not running.done()
        (tmp_path / "gone").mkdir()
        while not (tmp_path / "gone" / CURVE).exists():
            scene.report(2, 1001.0)
            await asyncio.sleep(0.002)
        running.cancel()

    asyncio.run(asyncio.wait_for(story(), 60))
    assert len(said) == 1 and "No such file" in said[0]


def test_ranks_are_kept_by_the_controllers_clock_whatever_the_machines_is_set_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, looks = Scene(tmp_path), list[float]()
    monkeypatch.setattr("holdfast.drivers.job_history.CURVE_S", 0.001)
    monkeypatch.setattr(scene.history, "look", looks.append)

    async def story() -> None:
        running = asyncio.create_task(scene.history.run(lambda _: None))
        while len(looks) < 2:
            await asyncio.sleep(0.002)
        running.cancel()

    scene.now = 1000.0
    asyncio.run(asyncio.wait_for(story(), 60))
    assert set(looks) == {1000.0}


def test_files_that_a_full_disk_refuses_are_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both exist, neither takes a byte more."""
    (tmp_path / CURVE).touch()
    (tmp_path / RANKS).touch()
    scene, clock, looks = Scene(tmp_path), itertools.count(1000.0, 2 * EVERY_S), list[int]()
    monkeypatch.setattr("holdfast.drivers.job_history.CURVE_S", 0.001)
    looked = scene.history.look

    def next_look(_now: float) -> None:
        at = next(clock)
        scene.report(int(at), at)
        looks.append(len(os.listdir("/proc/self/fd")))
        scene.history._draws = len(looks) % 2 == 0  # each of the files in its turn
        looked(at)

    monkeypatch.setattr(scene.history, "look", next_look)

    async def story() -> None:
        running = asyncio.create_task(scene.history.run(lambda _: None))
        while len(looks) < 20:
            await asyncio.sleep(0.002)
        assert not running.done()
        running.cancel()

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    asked = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        asyncio.run(asyncio.wait_for(story(), 60))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, asked)
    assert looks[-1] <= looks[2] and (tmp_path / CURVE).stat().st_size == 0


@pytest.mark.parametrize("loss", [3.5e38, -1e300])
def test_a_loss_beyond_all_bounds_is_a_point(tmp_path: Path, loss: float) -> None:
    scene = Scene(tmp_path)
    scene.report(1, 1000.0)
    worker = scene.progress.newest()[0]
    scene.history._draw(msgspec.structs.replace(worker, loss=loss), 1000.0)
    assert read_curve(tmp_path / CURVE).mean["loss"] == [math.copysign(3.402823e38, loss)]


def test_a_controller_in_a_cluster_hands_figures_out(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    for step in (1, 2):
        scene.report(step, 1000.0 + step * EVERY_S)
        scene.history.look(1000.0 + step * EVERY_S)

    async def story() -> bytes:
        server = MetricsServer("gpt", Exposition, tmp_path)
        await server.open("127.0.0.1", 0, print)
        host, port = (server.address or "").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /curve/0/end/100 HTTP/1.1\r\nHost: x\r\n\r\n")
        told = await reader.read()
        writer.close()
        server.close()
        return told

    head, _, body = asyncio.run(story()).partition(b"\r\n\r\n")
    assert b"200 OK" in head and json.loads(body)["step"] == [1, 2]
