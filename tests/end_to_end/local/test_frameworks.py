"""JAX, TensorFlow, XGBoost and MPI, with the real packages: their examples, through a kill."""

import importlib.util
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.end_to_end.local.jobs import RunningJob, program
from tests.more import MORE, long
from tests.tidy.source import ROOT
from tests.warm import holdfast

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left", "own_temporary_folder")]

LAUNCHERS = {"OpenMPI": "mpirun.openmpi", "MPICH": "mpirun.mpich"}


def needs(package: str) -> None:
    """Skip where it is not installed; it is not imported here, where tests fork."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


def example(home: Path, framework: str, *args: str, **changes: Any) -> RunningJob:
    """The job of an example, with other arguments."""
    folder = ROOT / "examples" / framework
    spec = yaml.safe_load((folder / "job.yaml").read_text())
    spec |= {"script": str(folder / "train.py"), "args": list(args), "workdir": str(home.parent)}
    return RunningJob(home, **{**spec, **changes})


def restarted(job: RunningJob, rank: int, step: int) -> None:
    """Kill this rank once the job has come so far; it comes back, knows why, and goes on until it
    is stopped."""
    job.wait_step(step)
    os.kill(job.worker(rank), signal.SIGKILL)
    job.wait_step(step + 10, attempt=2)
    stop(job)  # before anything is looked at: these examples train as fast as they can
    told = holdfast("why", job.name, "--incident", "1").stdout
    assert f"Rank {rank} was killed by SIGKILL" in told, told
    assert len(job.losses()) > step, "a step that was redone had the same loss"


def stop(job: RunningJob) -> None:
    assert job.process is not None
    job.process.send_signal(signal.SIGTERM)
    job.wait_end(130)


def test_jax_goes_on_bit_for_bit(home: Path) -> None:
    needs("jax")
    tier = {"checkpoints": {"shared": {"path": str(home.parent / "kept")}}}
    quickly = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # compiled, on both sides of the kill
    job = example(home, "jax", "--steps", "100000", env=quickly, **tier).start()
    restarted(job, 1, 30)
    (incident,) = job.incidents()
    assert incident.steps_lost is not None and incident.step is not None
    log = (job.folder / "logs" / "attempt-2" / "rank-0.log").read_text()
    assert "2 processes, from step " in log and "from step 0" not in log
    to = home.parent / "orbax"
    made = holdfast("checkpoint", "export", job.name, "--form", "orbax", "--to", str(to))
    assert made.returncode == 0, made.stderr
    saved = json.loads((to / "_METADATA").read_text())["tree_metadata"]
    assert {"('params', 'in')", "('speed', 'out')", "('key',)"} <= saved.keys()


@long
def test_jax_finds_the_job_on_cold_workers_and_within_another_scheduler(home: Path) -> None:
    needs("jax")
    names = ("JOB_ID", "STEP_NODELIST", "NTASKS", "PROCID", "LOCALID", "STEP_NUM_NODES")
    slurm = {f"SLURM_{name}": "1" for name in names}
    job = example(home, "jax", "--steps", "20", warm={"mode": "off"}, env=slurm).start()
    job.wait_end()
    assert "2 processes, from step 0" in job.said()


@long
def test_xgboost_goes_on_with_the_booster_it_had(home: Path) -> None:
    needs("xgboost")
    job = example(home, "xgboost", "--rounds", "100000", "--rows", "200").start()
    restarted(job, 1, 20)
    log = (job.folder / "logs" / "attempt-2" / "rank-0.log").read_text()
    assert "2 workers, from round " in log and "from round 0" not in log


@long
def test_trees_outlive_their_job_in_a_durable_tier(home: Path) -> None:
    needs("xgboost")
    tier = {"checkpoints": {"shared": {"path": str(home.parent / "kept")}}}
    first = example(home, "xgboost", "--rounds", "10", "--rows", "200", **tier).start()
    first.wait_end()
    shown = holdfast("checkpoint", "verify", first.name)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    more = example(home, "xgboost", "--rounds", "15", "--rows", "200", **tier).start("--replace")
    more.wait_end()
    assert "2 workers, from round 10" in more.said()
    assert min(more.losses()) == 11


@long
@pytest.mark.parametrize("warm", ["auto", "off"])  # cold, each worker imports it
def test_tensorflow_has_one_world_per_attempt_and_goes_on_from_its_checkpoint(
    home: Path, warm: str
) -> None:
    needs("tensorflow")
    # SIGTERM has to do: nobody waits so long for SIGKILL.
    patient = {"stop_grace_s": 86_400, "restart_grace_s": 86_400}
    args = ("--steps", "100000", "--save-every", "10")
    job = example(home, "tensorflow", *args, warm={"mode": warm}, recovery=patient).start()
    job.wait_until(lambda s: (s.printed_step or 0) >= 20, "steps in the output")
    os.kill(job.worker(1), signal.SIGKILL)
    log = job.folder / "logs" / "attempt-2" / "rank-0.log"
    job.wait_until(lambda s: s.attempt == 2 and log.exists() and "loss" in log.read_text(), "2")
    stop(job)
    assert "Rank 1 was killed by SIGKILL" in holdfast("why", job.name, "--incident", "1").stdout
    assert "2 replicas, from step " in log.read_text() and "from step 0" not in log.read_text()


FIT = """
import json, os, sys
import tensorflow as tf
import tf_keras as keras

class Told(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        print("begins", epoch, "after", self.model.optimizer.iterations.numpy(), flush=True)

    def on_epoch_end(self, epoch, logs=None):
        print("epoch", epoch, logs["loss"].hex(), flush=True)

strategy = tf.distribute.MultiWorkerMirroredStrategy()
points = tf.random.stateless_uniform((512, 2), seed=(0, 1))
data = tf.data.Dataset.from_tensor_slices((points, points[:, 0] * points[:, 1])).batch(64)
with strategy.scope():
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(16, "relu", input_shape=(2,)), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("adam", "mse")
keeps = [keras.callbacks.BackupAndRestore(sys.argv[1]), Told()]
model.fit(data, epochs=40, steps_per_epoch=8, callbacks=keeps, verbose=0)
"""


def fitted(home: Path, name: str, *, killed: bool) -> list[str]:
    """What the first rank of the last attempt has said of its epochs."""
    how: dict[str, Any] = {"framework": "tensorflow", "nodes": 1, "workers_per_node": 2}
    job = program(home, FIT, name=name, args=[str(home.parent / name)], **how).start()
    logs = [job.folder / "logs" / f"attempt-{number}" / "rank-0.log" for number in (1, 2)]
    if killed:
        job.wait_until(lambda _: logs[0].exists() and "epoch 3 " in logs[0].read_text(), "epoch 3")
        os.kill(job.worker(1), signal.SIGKILL)
    job.wait_end()
    said = logs[killed].read_text().splitlines()
    return [line for line in said if line.startswith(("begins ", "epoch "))]


@long
def test_backup_and_restore_of_two_workers_goes_on_bit_for_bit(home: Path) -> None:
    needs("tf_keras")  # pip install --no-deps tf-keras==2.21.0: Keras 3 has no such strategy
    undisturbed = fitted(home, "undisturbed", killed=False)
    again = fitted(home, "killed", killed=True)
    assert again[0].startswith("begins ") and int(again[0].split()[1]) >= 3
    assert again == undisturbed[-len(again) :]


ROLES = """
import json, os, pathlib, time
told = json.loads(os.environ["TF_CONFIG"])
hosts = {name: len(hosts) for name, hosts in sorted(told["cluster"].items())}
print(told["task"], hosts, flush=True)
pathlib.Path("up-" + told["task"]["type"]).touch()
while told["task"]["type"] in ("worker", "ps"):  # as a server of TensorFlow does
    time.sleep(1)
while len(list(pathlib.Path().glob("up-*"))) < 4:  # servers end with the chief
    time.sleep(0.05)
"""


def test_parameter_servers_end_with_the_chief(home: Path) -> None:
    roles = {"chief": True, "ps": 1, "evaluator": True}
    job = program(
        home, ROLES, framework="tensorflow", nodes=2, workers_per_node=1, roles=roles
    ).start()  # fmt: skip
    job.wait_end()
    for number, kind in enumerate(("chief", "worker", "ps", "evaluator")):
        log = (job.folder / "logs" / "attempt-1" / f"rank-{number}.log").read_text()
        told = {"type": kind, "index": 0}
        assert log.strip() == f"{told} {{'chief': 1, 'ps': 1, 'worker': 1}}"


@pytest.mark.parametrize("kind", ["OpenMPI", pytest.param("MPICH", marks=long)])
def test_mpi_ranks_are_those_of_the_job(home: Path, kind: str) -> None:
    needs("mpi4py")
    if shutil.which(LAUNCHERS[kind]) is None:
        pytest.skip(f"{LAUNCHERS[kind]} is not installed: make test-tools")
    nodes = 2 if MORE else 1
    before = left_by_mpi()
    env = named_like_its_interface(home) if kind == "MPICH" else {}
    job = example(
        home, "mpi", "--steps", "1000000", "--points", "64",
        nodes=nodes, mpi={"implementation": kind}, env=env,
    ).start()  # fmt: skip
    restarted(job, 2 * nodes - 1, 50)
    for rank in range(2 * nodes):
        log = (job.folder / "logs" / "attempt-2" / f"rank-{rank}.log").read_text()
        assert f"rank {rank} of {2 * nodes}, from step " in log and "from step 0" not in log
    assert not left_by_mpi() - before


def left_by_mpi() -> set[str]:
    """Shared memory of OpenMPI; ours is looked at after each test."""
    return {name for name in os.listdir("/dev/shm") if "segment" in name}


def named_like_its_interface(home: Path) -> dict[str, str]:
    """mpi4py looks for libmpi.so.12, the name that MPICH and those compatible with it agreed on;
    Debian's has another one."""
    folder = home.parent / "lib"
    folder.mkdir()
    found = next(Path("/usr/lib").rglob("libmpich.so.12"), None)
    if found is not None:
        (folder / "libmpi.so.12").symlink_to(found)
    return {"LD_LIBRARY_PATH": str(folder)}


def test_a_missing_mpirun_is_said(home: Path) -> None:
    needs("mpi4py")
    job = example(home, "mpi", env={"PATH": "/nonexistent"}, recovery={"max_restarts": 0}).start()
    job.wait_end(1)
    assert "OpenMPI is not installed" in job.said()
