"""From `metrics.jsonl` to trackers: real event files read by TensorBoard, and faults on the way."""

import asyncio
import importlib
import json
import logging
import os
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.agent import processes, tracker_handle
from holdfast.agent.metrics_file import MetricsFile
from holdfast.agent.node_attempt import NodeAttempt
from holdfast.agent.tracker_handle import TrackerHandle
from holdfast.page import StepRecord
from holdfast.spec import job_from_dict
from holdfast.tracking import __main__ as process
from holdfast.tracking import trackers
from holdfast.tracking.points import ReadPlace, TrackedStep, read
from holdfast.tracking.trackers import TrackedRun
from tests.patience import PATIENCE_S, until

READER = "tensorboard.backend.event_processing.event_accumulator"
NO_TENSORFLOW = "tensorboard.compat.notf"  # where that is, it reads files without TensorFlow


def line(step: int, attempt: int = 1, **given: Any) -> str:
    """One of `metrics.jsonl`; the loss tells the attempt."""
    said = {"attempt": attempt, "step": step, "at": 1000.0 + step, "loss": step + attempt / 10}
    return json.dumps({**said, "grad_norm": None, "tokens": 8, **given}) + "\n"


def append(folder: Path, *lines: str) -> None:
    with (folder / process.METRICS).open("a") as file:
        file.writelines(lines)


def track(folder: Path, *names: str, until_: Callable[[], object] = lambda: None) -> None:
    """One process's work, here."""
    process.main([str(folder), str(folder), "gpt", "run1", *names], until_)


def losses(folder: Path) -> dict[int, float]:
    """What TensorBoard shows; a step that it would show twice fails the test."""
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    sys.modules.setdefault(NO_TENSORFLOW, types.ModuleType(NO_TENSORFLOW))
    read_events = importlib.import_module(READER).EventAccumulator
    found = read_events(str(folder / "tensorboard" / "gpt"))
    found.Reload()
    scalars = found.Scalars("loss")
    assert len({one.step for one in scalars}) == len(scalars)
    return {one.step: round(one.value, 3) for one in scalars}


class Memory:
    """A tracker in memory, which may be made to fail."""

    def __init__(self, newest: int = -1) -> None:
        self.newest, self.sent, self.failures, self.closed = newest, list[TrackedStep](), 0, 0

    def send(self, points: Sequence[TrackedStep]) -> None:
        """Or raise."""
        if self.failures:
            self.failures -= 1
            raise ConnectionError("no route to host")
        self.sent += [point for point in points if point.step > self.newest]
        self.newest = max(self.newest, points[-1].step)

    def close(self) -> None:
        """Count."""
        self.closed += 1


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    made = Memory()
    monkeypatch.setitem(trackers.OPENED, "memory", lambda _: made)
    monkeypatch.setattr(process, "FIRST_PAUSE_S", 0.01)
    return made


# ── the file ──────────────────────────────────────────────────────────────────────────────────


def test_what_was_sent_to_tensorboard_is_in_its_file_whatever_happens_next(tmp_path: Path) -> None:
    """How far a tracker has come is noted after that: what is on the way then would be lost."""
    board = trackers.opened("tensorboard", TrackedRun("gpt", "run1", tmp_path, -1))
    steps = range(1, 41)
    board.send([TrackedStep(step, 1000.0 + step, {"loss": float(step)}) for step in steps])
    assert losses(tmp_path) == {step: float(step) for step in steps}
    board.close()


def test_lines_are_read_once_they_are_whole(tmp_path: Path) -> None:
    append(tmp_path, line(1), line(2)[:20])
    points, place = read(tmp_path / process.METRICS, ReadPlace())
    assert [point.step for point in points] == [1] and place.offset == len(line(1))
    append(tmp_path, line(2)[20:])
    points, place = read(tmp_path / process.METRICS, place)
    assert [point.step for point in points] == [2]
    assert read(tmp_path / process.METRICS, place) == ([], place)


def test_what_is_no_number_is_left_out_and_garbage_harms_nobody(tmp_path: Path) -> None:
    named = {"lr": 0.1, "bad": None}
    append(tmp_path, line(1, metrics=named, loss=None), "{broken\n", "[]\n", "\0\n", line(2))
    points, _ = read(tmp_path / process.METRICS, ReadPlace())
    assert points[0].values == {"lr": 0.1, "tokens": 8.0, "attempt": 1.0}
    assert [point.step for point in points] == [1, 2]


def test_a_file_that_was_replaced_is_read_from_its_start(tmp_path: Path) -> None:
    append(tmp_path, line(1))
    points, _ = read(tmp_path / process.METRICS, ReadPlace(10_000))
    assert [point.step for point in points] == [1]
    assert read(tmp_path / "none", ReadPlace(5)) == ([], ReadPlace(5))


@pytest.mark.parametrize("reads_every", [1, 2, 3, 7])
def test_a_file_that_goes_on_as_a_new_one_is_read_on_without_a_gap(
    tmp_path: Path, reads_every: int
) -> None:
    """A file of three lines, so two parts have the newest four to six steps: whoever looks that
    often misses nothing, and whoever comes late gets what there is."""
    path, place, found = tmp_path / process.METRICS, ReadPlace(), list[int]()
    file = MetricsFile(path, draws=False, limit_bytes=3 * 120)
    for step in range(100, 128):
        file.append(1, [StepRecord(step, 1.0, 0.5, None, 8)])
        if step % reads_every == 0:
            while (after := read(path, place))[1] != place:
                found += [point.step for point in after[0]]
                place = after[1]
    assert found == sorted(set(found)), "in order, none twice"
    assert reads_every > 4 or found == list(range(found[0], found[-1] + 1))
    assert found[-4:] == list(range(found[-1] - 3, found[-1] + 1))
    assert sum(one.stat().st_size for one in tmp_path.iterdir()) <= 2 * 3 * 120


def test_a_place_that_was_noted_without_its_file_is_one_in_the_newest(tmp_path: Path) -> None:
    """As the version before this one did."""
    append(tmp_path, line(1), line(2))
    (tmp_path / f"{process.METRICS}.1").write_text(line(0))
    points, _ = read(tmp_path / process.METRICS, ReadPlace(len(line(1))))
    assert [point.step for point in points] == [2]


# ── TensorBoard ───────────────────────────────────────────────────────────────────────────────


def test_steps_that_are_redone_are_shown_as_they_were_done_last(tmp_path: Path) -> None:
    append(tmp_path, *(line(step) for step in range(1, 8)))
    append(tmp_path, *(line(step, attempt=2) for step in range(5, 10)))
    track(tmp_path, "tensorboard")
    first = {step: step + 0.1 for step in range(1, 5)}
    assert losses(tmp_path) == first | {step: step + 0.2 for step in range(5, 10)}


def test_the_next_process_goes_on_with_the_same_run(tmp_path: Path) -> None:
    for attempt, steps in ((1, range(1, 5)), (2, range(3, 7)), (3, range(7, 9))):
        append(tmp_path, *(line(step, attempt) for step in steps))
        track(tmp_path, "tensorboard")
    assert list(losses(tmp_path)) == list(range(1, 9))


def test_what_was_written_and_not_noted_is_written_once(tmp_path: Path) -> None:
    append(tmp_path, *(line(step) for step in range(1, 6)))
    track(tmp_path, "tensorboard")
    (tmp_path / process.PLACE).unlink()  # as if it had been killed before it could note it
    track(tmp_path, "tensorboard")
    assert list(losses(tmp_path)) == list(range(1, 6))


# ── the process ───────────────────────────────────────────────────────────────────────────────


def test_new_lines_are_sent_while_the_agent_lives_and_the_rest_after(
    tmp_path: Path, memory: Memory
) -> None:
    agent_gone = threading.Event()
    running = threading.Thread(target=track, args=(tmp_path, "memory"),
                               kwargs={"until_": agent_gone.wait})  # fmt: skip
    append(tmp_path, line(1))
    running.start()
    assert until(lambda: len(memory.sent) == 1)
    append(tmp_path, line(2), line(3))
    agent_gone.set()
    running.join()
    assert [point.step for point in memory.sent] == [1, 2, 3] and memory.closed == 1


def test_a_service_that_is_away_loses_nothing(
    tmp_path: Path, memory: Memory, capfd: pytest.CaptureFixture[str]
) -> None:
    memory.failures = 3
    append(tmp_path, *(line(step) for step in range(1, 4)))
    track(tmp_path, "memory", "tensorboard")
    assert [point.step for point in memory.sent] == [1, 2, 3]
    assert list(losses(tmp_path)) == [1, 2, 3], "others do not wait for it"
    said = [line for line in capfd.readouterr().err.splitlines() if "memory" in line]
    assert said == ["tracking: memory: ConnectionError: no route to host; retrying"]


def test_one_that_stays_away_ends_with_the_job_and_is_told_the_next_time(
    tmp_path: Path, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LAST_S", 0.05)
    memory.failures = 1_000_000
    append(tmp_path, line(1), line(2))
    track(tmp_path, "memory")
    assert memory.sent == []
    memory.failures = 0
    track(tmp_path, "memory")
    assert [point.step for point in memory.sent] == [1, 2]


STUCK = """
import threading
from holdfast.tracking import __main__ as process, trackers
class Stuck:
    newest = -1
    def send(self, points): print("sent", flush=True)
    def close(self): threading.Event().wait()
trackers.OPENED["stuck"] = lambda _: Stuck()
process.LAST_S = process.CLOSE_S = 0.1
process.main([FOLDER, FOLDER, "gpt", "run1", "stuck"], process.agent_is_gone)
"""


def test_a_package_that_never_returns_does_not_keep_the_process(tmp_path: Path) -> None:
    """Its agent may be dead, so nobody else would end it."""
    append(tmp_path, line(1))
    script = STUCK.replace("FOLDER", repr(str(tmp_path)))
    done = subprocess.run(
        [sys.executable, "-c", script],
        stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, b"sent\n")
    assert done.stderr.startswith(b"tracking: stuck: no answer; ")


def test_whoever_kills_what_a_lost_node_left_does_not_kill_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It still sends what it has, and ends by itself."""
    monkeypatch.setattr(tracker_handle, "FINISH_S", PATIENCE_S)
    (tmp_path / "token").write_text("secret")
    job = job_from_dict({"name": "gpt", "script": "t.py", "track": ["tensorboard"]}, where="test")
    environment = {**os.environ, "HOLDFAST_NODE": "lost-1"}
    handle = TrackerHandle(job, tmp_path, (), environment)
    order = types.SimpleNamespace(node_rank=0)
    handle.look(cast(NodeAttempt, types.SimpleNamespace(order=order)), 1)
    (pid,) = handle.pids
    assert pid not in processes.carrying("HOLDFAST_NODE", "lost-1")
    append(tmp_path, line(1))
    assert until((tmp_path / process.PLACE).exists)  # it has imported what it needs
    assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text(), "and nothing else"
    append(tmp_path, line(2))
    asyncio.run(handle.finish())
    assert not handle.pids and losses(tmp_path) == {1: 1.1, 2: 2.1}


def test_a_damaged_note_of_how_far_it_came_sends_nothing_twice(
    tmp_path: Path, memory: Memory
) -> None:
    append(tmp_path, line(1), line(2))
    track(tmp_path, "memory")
    (tmp_path / process.PLACE).write_text("{")
    track(tmp_path, "memory")
    assert [point.step for point in memory.sent] == [1, 2], "the service knows them"


def test_a_package_or_key_that_is_missing_is_said_once_with_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.setitem(sys.modules, "wandb", types.ModuleType("wandb"))
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    append(tmp_path, line(1))
    track(tmp_path, "mlflow", "wandb")
    said = sorted(capfd.readouterr().err.splitlines())
    assert said == [
        "tracking: mlflow: cannot be used: no module mlflow   (pip install mlflow-skinny)",
        "tracking: wandb: cannot be used: WANDB_API_KEY is not set   "
        "(WANDB_MODE=offline needs none)",
    ]


def test_a_folder_that_cannot_be_written_to_is_said(
    tmp_path: Path, memory: Memory, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(process, "LAST_S", 0.05)
    (tmp_path / "tensorboard").write_text("in the way")
    append(tmp_path, line(1))
    track(tmp_path, "tensorboard", "memory")
    assert "tracking: tensorboard: " in capfd.readouterr().err and len(memory.sent) == 1


def test_every_tracker_of_the_job_file_can_be_opened() -> None:
    from typing import get_args

    from holdfast.spec import Job

    named = get_args(get_args(Job.model_fields["track"].annotation)[0])
    assert set(named) == set(trackers.OPENED)


def test_the_same_functions_serve_wandb_and_trackio() -> None:
    logged: list[tuple[dict[str, float], int]] = []

    class Module:
        """Takes what `wandb.init` takes."""

        @staticmethod
        def init(**options: Any) -> Any:
            assert options["resume"] == "allow" and options["name"] == "gpt"
            return types.SimpleNamespace(
                step=4, log=lambda values, step: logged.append((values, step)), finish=lambda: None
            )

    it = trackers.WandbLike(Module, TrackedRun("gpt", "r", Path(), told=2))
    assert it.newest == 3, "the service knows more than was noted"
    trackio = types.SimpleNamespace(init=lambda **_: types.SimpleNamespace(_next_step=15))
    assert trackers.WandbLike(trackio, TrackedRun("gpt", "r", Path(), told=-1)).newest == 14
    it.send([TrackedStep(step, 0.0, {"loss": 1.0}) for step in (2, 3, 4, 5)])
    assert [step for _, step in logged] == [4, 5]


def test_mlflow_is_told_once_of_a_step_that_is_redone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its functions as they are called; that a real MLflow takes them was tried by hand."""
    logged: list[int] = []
    tags: dict[str, str] = {}
    run = types.SimpleNamespace(info=types.SimpleNamespace(run_id="a"))
    client = types.SimpleNamespace(
        get_experiment_by_name=lambda _: None,
        create_experiment=lambda _: "0",
        search_runs=lambda *_: [],
        create_run=lambda *_, **__: run,
        log_batch=lambda _, metrics: logged.extend(metric[3] for metric in metrics),
        set_tag=lambda _, key, value: tags.update({key: value}),
    )
    modules = {
        "mlflow": types.SimpleNamespace(MlflowClient=lambda: client),
        "mlflow.entities": types.SimpleNamespace(Metric=lambda *given: given),
    }
    monkeypatch.setattr(trackers, "_module", modules.__getitem__)
    it = trackers.opened("mlflow", TrackedRun("gpt", "r", Path(), told=-1))
    it.send([TrackedStep(step, 0.0, {"loss": 1.0}) for step in (1, 2, 3, 2, 3, 4)])
    it.send([TrackedStep(step, 0.0, {"loss": 1.0}) for step in (4, 5)])
    assert logged == [1, 2, 3, 4, 5] and tags == {"holdfast.step": "5"}
