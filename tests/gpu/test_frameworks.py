"""Trainers and JAX on one GPU: after kills they go on where they were, and trainers bit for bit."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.local.jobs import RunningJob
from tests.gpu.test_jobs import Fresh, contexts
from tests.integrations.jobs import SCRIPTS, written
from tests.patience import PATIENCE_S
from tests.tidy.source import ROOT

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


def job(home: Path, **spec: Any) -> RunningJob:
    """One rank, a snapshot after each step; it has begun."""
    alone = {"nodes": 1, "workers_per_node": 1, "snapshots": {"every_steps": 1}}
    made = RunningJob(home, **{**alone, **spec})
    made.by = Fresh
    return made.start()


@pytest.mark.parametrize("half", [False, True], ids=["float32", "scaled"])
@pytest.mark.parametrize(
    ("script", "package", "kills"),
    [
        ("trainer.py", "transformers", "3,6,26"),
        ("fit.py", "lightning", "3,7,14"),
        ("accelerated.py", "accelerate", "4,6,13"),
    ],
)
def test_a_trainer_goes_on_bit_for_bit(
    home: Path, place: str, script: str, package: str, kills: str, half: bool
) -> None:
    pytest.importorskip(package)
    if place == "cpu" and (half or script == "fit.py"):
        pytest.skip("on the CPU it wants two ranks, and scales no gradients")
    env = {"KILLED": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"} | ({"HALF": "1"} if half else {})
    path = str(SCRIPTS / script)
    calm = job(
        home, name="plain", script=path, args=[str(home.parent / "plain")], env={**env, "KILL": ""}
    )
    calm.wait_end()
    kept = job(
        home, name="kept", script=path, args=[str(home.parent / "kept")], env={**env, "KILL": kills}
    )
    kept.wait_end()
    incidents = kept.incidents()
    told = [incident.traceback for incident in incidents]
    assert [incident.cause for incident in incidents] == ["worker-killed"] * 3, told
    # a GPU copies until the optimizer's next step, which takes two batches
    assert all((incident.steps_lost or 0) <= 4 for incident in incidents), incidents
    assert written(home, "kept") == written(home, "plain")


def test_jax_goes_on_from_its_snapshot(home: Path, place: str) -> None:
    pytest.importorskip("jax")
    one = job(
        home,
        framework="jax",
        script=str(ROOT / "examples" / "jax" / "train.py"),
        args=["--steps", "100000"],
        env={"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    )
    one.wait_step(30)
    assert place == "cpu" or one.worker(0) in contexts()
    os.kill(one.worker(0), signal.SIGKILL)
    one.wait_step(40, attempt=2)
    (incident,) = one.incidents()
    assert incident.cause == "worker-killed" and (incident.steps_lost or 0) <= 1
    assert place == "cpu" or one.worker(0) in contexts()
    assert one.process is not None
    one.process.send_signal(signal.SIGINT)
    one.process.wait(PATIENCE_S)
