"""Jobs on a real Ray cluster, each of its machines a raylet here: lost, replaced, given back."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.local.jobs import SCRIPTS, RunningJob, program
from tests.end_to_end.local.ray_machines import RayMachines
from tests.end_to_end.local.test_frameworks import needs, stop
from tests.more import long
from tests.patience import PATIENCE_S
from tests.warm import holdfast

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

EMPTY: dict[str, list[str]] = {"actors": [], "groups": []}
TRAINS = """
from pathlib import Path

import ray
from ray.train import RunConfig, ScalingConfig, get_context, report
from ray.train.torch import TorchTrainer

def train():
    import torch.distributed as dist
    ranks = f"{get_context().get_world_rank()} of {dist.get_world_size()}"
    Path(STORAGE, "ranks").write_text(ranks)
    report({"loss": 0.5})

ray.init(address="auto")
trainer = TorchTrainer(
    train, scaling_config=ScalingConfig(num_workers=1, resources_per_worker={"CPU": 0.5}),
    run_config=RunConfig(storage_path=STORAGE, name="trained"),
)
print("trained:", trainer.fit().error)
"""


@pytest.fixture(scope="module")
def loopback() -> Iterator[None]:
    """Ray replaces 127.0.0.1 by the address of the machine, but where it thinks of firewalls that
    ask before anything listens there. All its processes have to agree."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        yield


@pytest.fixture(scope="module")
def machine(loopback: None) -> Iterator[RayMachines]:  # noqa: ARG001
    """A cluster of one machine for one node."""
    needs("ray")
    cluster = RayMachines(1)
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def machines(loopback: None) -> Iterator[RayMachines]:  # noqa: ARG001
    """One of two machines, each for one node."""
    needs("ray")
    cluster = RayMachines(2)
    yield cluster
    cluster.close()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_killed_actor_is_replaced_and_what_a_dead_controller_leaves_is_ended_by_stop(
    home: Path, machine: RayMachines
) -> None:
    assert machine.address.startswith("127.0.0.1:")
    job = program(
        home, "import time; print('up', flush=True); time.sleep(600)",
        nodes=1, ray={"address": machine.address, "strategy": "PACK"},
        recovery={"node_wait_s": PATIENCE_S},
    ).start("--on", "ray")  # fmt: skip
    before = job.wait_until(lambda s: s.phase == "running", "it runs")
    actor = parent(job.agent(before.nodes[0].name))
    assert parent(actor) == machine.raylets[0]
    os.kill(actor, signal.SIGKILL)
    job.wait_until(lambda s: s.phase == "running" and s.attempt == 2, "it runs again")
    assert job.process is not None
    job.process.kill()
    job.process.wait()
    assert machine.ask("left")["groups"] == ["CREATED"]
    told = holdfast("stop", job.name)
    assert "left behind" in told.stdout, told.stdout + told.stderr
    assert machine.ask("left") == EMPTY


@long
def test_a_job_whose_ray_cluster_is_gone_is_ended_by_force_and_may_be_replaced(
    home: Path,
    loopback: None,  # noqa: ARG001
) -> None:
    """Its controller ends with the cluster, or is killed."""
    needs("ray")
    cluster = RayMachines(1)
    try:
        job = program(
            home, "import time; print('up', flush=True); time.sleep(600)",
            nodes=1, ray={"address": cluster.address, "strategy": "PACK"},
        ).start("--on", "ray")  # fmt: skip
        job.wait_until(lambda s: s.phase == "running", "it runs")
    finally:
        cluster.close()
    assert job.process is not None
    job.process.kill()
    job.process.wait()
    refused = holdfast("stop", job.name)
    assert refused.stderr.startswith("error[ray-unreachable]"), refused.stderr
    assert f"holdfast stop --force {job.name}" in refused.stderr
    told = holdfast("stop", "--force", job.name)
    assert f"{job.name} is recorded as stopped" in told.stdout, told.stdout + told.stderr
    status = job.status()
    assert status.outcome == "stopped"
    assert "whether its nodes still run is not known" in (status.why or "")
    again = holdfast("run", "--replace", "--name", job.name, "--no-python", "true")
    assert again.returncode == 0, again.stderr


@long
def test_a_lost_machine_of_ray_is_replaced_and_all_is_given_back(
    home: Path, machines: RayMachines
) -> None:
    job = RunningJob(
        home, script=str(SCRIPTS / "small.py"), args=["--out", str(home), "--steps", "100000"],
        nodes=2, workers_per_node=1, ray={"address": machines.address},
    ).start("--on", "ray")  # fmt: skip
    before = job.wait_step(20)
    agents = {name: job.agent(name) for name in (node.name for node in before.nodes)}
    raylets = {name: parent(parent(pid)) for name, pid in agents.items()}
    assert sorted(raylets.values()) == sorted(machines.raylets), "one node on each machine"
    lost = next(name for name, raylet in raylets.items() if raylet != machines.raylets[0])

    os.kill(raylets[lost], signal.SIGKILL)
    waiting = job.wait_until(lambda s: "Ray" in (s.waiting_for or ""), "it waits for Ray")
    assert "{CPU: 1}, STRICT_SPREAD" in (waiting.waiting_for or "")
    job.wait_until(
        lambda s: "free: {CPU: 0 of 1} on 1 machine" in (s.waiting_for or ""), "and what it has"
    )
    assert "  waits  for Ray, to place 1 of its nodes" in holdfast("why", job.name).stdout
    machines.ask("add")
    after = job.wait_step((before.step or 0) + 10, attempt=2)
    assert lost not in {node.name for node in after.nodes}
    assert f"{lost} was lost: Ray: " in holdfast("why", job.name).stdout

    assert job.process is not None
    job.process.kill()
    job.process.wait()
    job.resume().wait_step((after.step or 0) + 10)
    assert job.status().attempt == 2, "the workers trained on"
    stop(job)
    assert machines.ask("left") == EMPTY


@long
def test_ray_train_runs_unchanged_below_an_agent(home: Path, machines: RayMachines) -> None:
    (home / "trained").mkdir()
    script = TRAINS.replace("STORAGE", repr(str(home / "trained")))
    job = program(
        home, script, nodes=1, workers_per_node=1, resources={"cpu": "500m"},
        ray={"address": machines.address},
    ).start("--on", "ray")  # fmt: skip
    job.wait_end()
    assert "trained: None" in job.said()
    assert (home / "trained" / "ranks").read_text() == "0 of 1"
    assert machines.ask("left")["groups"] == []


def test_a_cluster_that_does_not_answer_is_told_before_anything_starts(home: Path) -> None:
    needs("ray")
    job = program(home, "print('ran')", ray={"address": "127.0.0.1:1"}).start("--on", "ray")
    assert job.process is not None
    assert job.process.wait() == 3
    assert "error[ray-unreachable]: there is no Ray cluster at 127.0.0.1:1" in job.said()
    assert not job.folder.exists()
