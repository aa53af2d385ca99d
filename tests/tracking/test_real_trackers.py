"""The real packages, where they are installed: one run over two processes, each step once.

They are none of our requirements, so `make test` skips this; `make trackers` installs and runs it.
"""

import contextlib
import sqlite3
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.tracking import __main__ as process
from tests.tracking.test_tracking import append, line, track

STEPS = list(range(1, 10))
BLOCK, HEAD = 32_768, 7  # of W&B's file: a log of LevelDB's form, behind a head of its own
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def of_mlflow(mlflow: Any, _: Path) -> list[int]:
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("holdfast")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("gpt", "FINISHED")
    return [one.step for one in client.get_metric_history(run.info.run_id, "loss")]


def of_trackio(trackio: Any, folder: Path) -> list[int]:
    assert len(trackio.Api().runs("holdfast")) == 1
    with contextlib.closing(sqlite3.connect(folder / "holdfast.db")) as base:
        return [step for (step,) in base.execute("SELECT step FROM metrics ORDER BY id")]


def of_wandb(_: Any, folder: Path) -> list[int]:
    """Offline there is a file for each process; all of them have the id of the job."""
    kind = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    found = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(found) == 2 and {file.stem for file in found} == {"run-run1"}
    records = [kind.Record.FromString(one) for file in found for one in wandb_records(file)]
    return [one.history.step.num for one in records if one.HasField("history")]


def wandb_records(file: Path) -> Iterator[bytes]:
    """What was written there, whole."""
    data, at, begun = file.read_bytes(), HEAD, b""
    while at + HEAD <= len(data):
        room = BLOCK - at % BLOCK
        length, kind = struct.unpack_from("<HB", data, at + 4)
        if room < HEAD or kind == 0:
            at += room
            continue
        begun = (b"" if kind in (FULL, FIRST) else begun) + data[at + HEAD : at + HEAD + length]
        at += HEAD + length
        if kind in (FULL, LAST):
            yield begun


@pytest.mark.parametrize(
    ("name", "steps_of"), [("mlflow", of_mlflow), ("wandb", of_wandb), ("trackio", of_trackio)]
)
def test_a_service_has_one_run_of_the_job_and_each_step_once(
    name: str,
    steps_of: Callable[[Any, Path], list[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The second process is that of another node: what was noted of the first it does not see, if
    the service itself knows how far it came."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    module = pytest.importorskip(name, reason=f"{name} is not installed: make trackers")
    append(tmp_path, *(line(step) for step in range(1, 8)))
    track(tmp_path, name)
    append(tmp_path, *(line(step, attempt=2) for step in range(5, 10)))
    if name != "wandb":
        (tmp_path / process.PLACE).unlink()
    track(tmp_path, name)
    assert steps_of(module, tmp_path) == STEPS
    assert "tracking: " not in capfd.readouterr().err
