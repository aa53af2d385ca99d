"""Nothing is lost with nodes, at a stop, or by a poisoned checkpoint: real jobs, real signals."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.checkpoint import catalog
from holdfast.checkpoint.folder import FolderStore
from tests.end_to_end.local.jobs import ENDLESS, SCRIPTS, RunningJob, small
from tests.more import long
from tests.patience import PATIENCE_S
from tests.warm import holdfast

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "preemption.md"
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


def storage_of(agent: int) -> list[psutil.Process]:
    """The storage process of an agent, if it has one."""
    children = psutil.Process(agent).children() if psutil.pid_exists(agent) else []
    return [one for one in children if "holdfast.agent.storage" in one.cmdline()]


def kill_storage(job: RunningJob) -> None:
    """SIGKILL of the storage process of every node."""
    for path in (job.folder / "nodes").glob("*/agent.json"):
        for process in storage_of(json.loads(path.read_text())["pid"]):
            process.kill()


@long
def test_storage_that_hangs_on_one_node_costs_checkpoints_and_no_steps(home: Path) -> None:
    tiers = {"shared": {"path": str(home.parent / "checkpoints"), "every_s": 1}}
    args = ["--steps", "100000", "--pause", "0.03"]
    job = small(home, args=args, checkpoints=tiers).start()
    at = job.wait_step(10).step or 0
    [storage] = storage_of(job.agent(job.member(1)))
    storage.suspend()
    before = job.wait_step(at + 100).step or 0
    os.kill(job.worker(0), signal.SIGKILL)
    job.wait_step(before, attempt=2)
    storage.resume()
    assert [incident.steps_lost for incident in job.incidents() if incident.steps_lost > 1] == []
    assert holdfast("stop", job.name, "--now").returncode == 0
    job.wait_end(130)


def test_a_last_save_that_takes_longer_than_a_hang_is_waited_for(home: Path) -> None:
    tiers = {"shared": {"path": str(home.parent / "checkpoints"), "every_s": 3600}}
    recovery = {"hang_timeout_s": 2}
    args = ["--steps", "20", "--pause", "0.05"]
    job = small(home, args=args, checkpoints=tiers, recovery=recovery).start()
    job.wait_step(5)
    stopped = [one for node in (0, 1) for one in storage_of(job.agent(job.member(node)))]
    for storage in stopped:
        storage.suspend()
    saves = "all workers have ended; their last checkpoint is being saved"
    since = job.wait_until(lambda s: s.why == saves, "all workers have ended").wall_s
    then = job.wait_until(lambda s: s.wall_s > since + 5, "longer than a hang may last")
    assert (then.why, then.attempt, then.incidents_count) == (saves, 1, 0)
    for storage in stopped:
        storage.resume()
    job.wait_end(0)
    [kept] = catalog.committed(FolderStore(str(home.parent / "checkpoints" / job.name)))
    assert kept.step == 20 and job.incidents() == []


@long
def test_lost_storage_processes_are_not_noticed_and_with_two_copies_two_nodes_may_be_lost(
    home: Path,
) -> None:
    """Each rank has more than workers send to each other: it all goes by the storage processes."""
    spec: dict[str, Any] = {"snapshots": {"copies": 2}}
    args = ["--steps", "40", "--pause", "0.1"]
    job = large(home, nodes=3, spares=2, args=args, **spec).start()
    for step in (6, 12):
        job.wait_step(step)
        kill_storage(job)
    before = job.wait_step(24).step or 0
    status = job.status()
    assert status.copies is not None and status.copies.survives == 2
    assert status.attempt == 1 and not job.incidents()
    lost = [job.member(1), job.member(2)]
    for name in lost:
        job.kill_node(name)
    job.wait_step(before, attempt=2)
    later = {line["attempt"] for line in job.metrics()} - {1}
    assert min(restored(job, attempt) for attempt in later) > 0, "no copy of the lost ones"
    job.wait_end()
    assert {incident.cause for incident in job.incidents()} == {"node-lost"}
    words = (job.folder / "nodes" / lost[0] / "agent.log").read_text()
    assert "the storage process has died" in words


def follow_the_guide(job: RunningJob, node: str) -> None:
    """Do to a node of the job what docs/guides/preemption.md prints."""
    [block] = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    command = block.replace("/gpt/", f"/{job.folder.name}/").replace("node-1", node)
    environ = {**os.environ, "HOLDFAST_HOME": str(job.folder.parents[1])}
    subprocess.run(["bash", "-euc", command], check=True, env=environ)


def test_a_node_that_is_taken_away_loses_no_step_and_a_stopped_job_can_go_on(home: Path) -> None:
    place = FolderStore(str(home.parent / "checkpoints" / "job"))
    spec: dict[str, Any] = {
        "checkpoints": {"shared": {"path": "checkpoints", "every_s": 3600}},
        "recovery": {"stop_grace_s": PATIENCE_S},  # for the save at its end
    }
    job = large(
        home, nodes=2, spares=1, args=[*ENDLESS, "--mib", "2", "--pause", "0.15"], **spec
    ).start()
    at = job.wait_step(6).step or 0
    victim = job.member(1)
    follow_the_guide(job, victim)
    job.wait_step(at + 5, attempt=2)
    assert restored(job, 2) >= at
    (incident,) = job.incidents()
    assert (incident.cause, incident.node) == ("node-left", victim)
    assert incident.steps_lost < at, "only those that others did while it was leaving"
    assert job.status().restarts_count == 0, "nothing has failed"
    words = (job.folder / "nodes" / victim / "agent.log").read_text()
    assert " is persisted in " in words
    at = job.status().step or 0
    assert job.process is not None
    job.process.send_signal(signal.SIGINT)
    job.process.wait(PATIENCE_S)
    assert job.status().outcome == "stopped"
    newest = catalog.committed(place)[0]
    assert newest.step >= at
    job.resume().wait_step(newest.step + 5, attempt=3)
    job.finish()
    assert {line["attempt"] for line in job.metrics()} == {1, 2, 3}, "it goes on counting"
    last = max(line["step"] for line in job.metrics())
    assert catalog.committed(place)[0].step == last, "the last step is saved before the job ends"
    assert restored(job, 3) == newest.step


def test_a_job_whose_model_has_changed_stops_and_loses_nothing_until_it_begins_anew(
    home: Path,
) -> None:
    place = FolderStore(str(home.parent / "checkpoints" / "job"))
    spec: dict[str, Any] = {"checkpoints": {"shared": {"path": "checkpoints", "every_s": 1}}}

    def job(width: int, *flags: str) -> RunningJob:
        args = ["--steps", "8", "--mib", "1", "--pause", "0", "--width", str(width)]
        made = large(home, nodes=1, spares=0, args=args, **spec).start(*flags)
        assert made.process is not None
        made.process.wait(PATIENCE_S)
        return made

    assert job(8).status().outcome == "succeeded"
    before = [one.key for one in catalog.committed(place)]
    ended = job(9, "--replace")
    assert ended.status().outcome == "failed"
    why = (ended.folder / "logs" / "attempt-2" / "rank-0.log").read_text()
    assert "error[checkpoint-unusable]: step 8 of attempt 1" in why
    assert "model.weight is (8, 8) float32 there and (9, 8) float32 here" in why
    assert [one.key for one in catalog.committed(place)] == before
    anew = job(9, "--replace", "--fresh")
    assert anew.status().outcome == "succeeded", anew.terminal.read_text()
    assert restored(anew, min(line["attempt"] for line in anew.metrics())) == 0
    seen = catalog.survey(place)
    assert {one.attempt for one in seen.committed} == {anew.status().attempt}
    assert {one.key for one in seen.void} == set(before)
    assert all(catalog.verify(place, one.key) == [] for one in (*seen.committed, *seen.void))


@long
def test_a_second_job_of_the_name_ends_while_the_first_lives_and_goes_on_when_it_was_killed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two people, or one with two homes: same name, same shared folder."""
    tiers = {"shared": {"path": str(home.parent / "checkpoints"), "every_s": 1}}
    args = ["--steps", "100000", "--pause", "0.03"]
    first = small(home, nodes=1, args=args, checkpoints=tiers).start()
    first.wait_step(60)
    here = home / "another"
    here.mkdir(mode=0o700)
    monkeypatch.setenv("HOLDFAST_HOME", str(here))
    second = small(here, nodes=1, args=args, checkpoints=tiers).start()
    second.wait_end(1)
    assert "checkpoint-in-use" in second.said() and second.status().attempt == 2
    at = first.status().step or 0
    first.wait_step(at + 10, attempt=1)
    first.kill_controller()
    first.kill_node(first.member(0))
    third = small(here, nodes=1, args=["--steps", str(at + 50)], checkpoints=tiers)
    third.start("--replace").wait_end()
    assert restored(third, third.status().attempt) > 0


@long
def test_a_poisoned_checkpoint_is_left_for_an_older_one(home: Path) -> None:
    spec: dict[str, Any] = {"checkpoints": {"shared": {"path": "checkpoints", "every_s": 1}}}
    args = ["--steps", "50", "--mib", "1", "--pause", "0.1", "--poison", "39", "--fails", "40"]
    job = large(home, nodes=1, spares=0, args=args, **spec).start()
    job.wait_end()
    told = [action.action for incident in job.incidents() for action in incident.actions]
    assert "RollBack" in told
    assert restored(job, 3) < 40
