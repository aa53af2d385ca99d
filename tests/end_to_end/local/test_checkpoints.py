"""Nothing is lost with nodes, at a stop, or by a poisoned checkpoint: real jobs, real signals."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.checkpoint import shelf
from holdfast.checkpoint.folder import FolderStore
from tests.end_to_end.local.jobs import SCRIPTS, RunningJob

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


def large(home: Path, *, nodes: int, spares: int, args: list[str], **spec: Any) -> RunningJob:
    """A job that runs `scripts/large.py`."""
    out = home.parent / "out"
    return RunningJob(
        home,
        script=str(SCRIPTS / "large.py"),
        args=["--out", str(out), *args],
        nodes={"count": nodes, "spares": spares},
        **spec,
    )


def restored(job: RunningJob, attempt: int) -> int:
    """The step after which an attempt has gone on: its first one that was logged, less one."""
    return min(int(line["step"]) for line in job.metrics() if line["attempt"] == attempt) - 1


def test_a_lost_node_with_much_of_its_own_goes_on_from_its_copy(home: Path) -> None:
    job = large(home, nodes=2, spares=1, args=["--steps", "60"]).start()
    job.wait_step(20)
    before = job.status().step or 0
    job.kill_node(job.member(1))
    job.wait_step(before, attempt=2)
    assert restored(job, 2) > 5
    job.wait_end()
    assert [i.cause for i in job.incidents()] == ["node-lost"]


def test_with_two_copies_two_nodes_may_be_lost_at_once(home: Path) -> None:
    spec: dict[str, Any] = {"snapshots": {"copies": 2}}
    job = large(home, nodes=3, spares=2, args=["--steps", "80", "--mib", "2"], **spec).start()
    job.wait_step(20)
    before = job.status().step or 0
    found = job.status().copies
    assert found is not None and found.survives == 2
    for name in (job.member(1), job.member(2)):
        job.kill_node(name)
    job.wait_step(before, attempt=2)
    assert min(restored(job, n) for n in {line["attempt"] for line in job.metrics()} - {1}) > 5
    job.wait_end()


def test_a_storage_process_that_is_killed_is_replaced_and_training_does_not_notice(
    home: Path,
) -> None:
    job = large(home, nodes=2, spares=0, args=["--steps", "60"]).start()
    for step in (10, 20, 30):
        job.wait_step(step)
        for name in ("node-0", "node-1"):
            for process in psutil.Process(job.agent(name)).children():
                if "holdfast.agent.storage" in process.cmdline():
                    process.kill()
    job.wait_end()
    assert not job.incidents()
    words = (job.folder / "nodes" / "node-0" / "agent.log").read_text()
    assert "the storage process has died" in words


def test_sigterm_to_an_agent_loses_no_step(home: Path) -> None:
    job = large(home, nodes=2, spares=1, args=["--steps", "80", "--pause", "0.1"]).start()
    job.wait_step(15)
    victim = job.member(1)
    at = job.status().step or 0
    os.kill(job.agent(victim), signal.SIGTERM)
    job.wait_step(at, attempt=2)
    assert restored(job, 2) >= at
    job.wait_end()
    words = (job.folder / "nodes" / victim / "agent.log").read_text()
    assert "is safe in the memory of other nodes" in words


def test_a_stopped_job_goes_on_where_it_was_stopped(home: Path) -> None:
    place = home.parent / "checkpoints"
    spec: dict[str, Any] = {"checkpoints": {"shared": {"path": "checkpoints", "every_s": 3600}}}
    job = large(home, nodes=2, spares=0, args=["--steps", "70", "--mib", "2"], **spec).start()
    job.wait_step(12)
    at = job.status().step or 0
    assert job.process is not None
    job.process.send_signal(signal.SIGINT)
    job.process.wait(60)
    assert job.status().outcome == "stopped"
    (newest, *_) = shelf.committed(FolderStore(str(place / "job")))
    assert newest.step >= at
    job.resume()
    end = time.monotonic() + 60
    while not any(line["attempt"] > 1 for line in job.metrics()):
        assert time.monotonic() < end, job.said()
        time.sleep(0.05)
    assert restored(job, 2) == newest.step
    job.wait_end()
    assert (job.out / "final").exists()
