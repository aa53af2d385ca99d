"""Replicas: the others go on without one that is lost, and no step is applied by some only."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.local.jobs import SCRIPTS, RunningJob, guide
from tests.end_to_end.local.replica_steps import (
    BATCH,
    OuterStep,
    replayed,
    replayed_pairs,
    replayed_windows,
)
from tests.end_to_end.local.test_in_process import UNHURRIED_S
from tests.more import long
from tests.warm import holdfast

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

STEPS = 100_000  # until `finish`


def replicas(home: Path, steps: int = STEPS, **spec: Any) -> RunningJob:
    """A job of as many as `replica_steps` replays."""
    args = ["--out", str(home.parent / "out"), "--steps", str(steps)]
    return RunningJob(home, **{**spec, "script": str(SCRIPTS / "replicas.py"), "args": args})


def lines(job: RunningJob) -> list[dict[str, Any]]:
    """What all ranks have written down."""
    found = []
    for file in job.out.glob("rank-*.jsonl"):
        rank = int(file.stem.removeprefix("rank-"))
        found += [{"rank": rank, **json.loads(line)} for line in file.read_text().splitlines()]
    return found


def history(job: RunningJob) -> list[list[dict[str, Any]]]:
    """For each step, what those who have taken part in it in the end had after it."""
    steps: dict[int, list[dict[str, Any]]] = {}
    for line in lines(job):
        steps.setdefault(line["step"], []).append(line)
    newest = {step: max(line["attempt"] for line in told) for step, told in steps.items()}
    return [[one for one in steps[s] if one["attempt"] == newest[s]] for s in sorted(steps)]


def trains(job: RunningJob, size: int, attempt: int = 1) -> int:
    """Wait until so many replicas go on by some steps, in this attempt or a later one; which."""
    status = job.wait_until(
        lambda s: s.size == size and s.phase == "running" and s.attempt >= attempt,
        f"{size} replicas",
    )
    job.wait_step((status.step or 0) + 3, attempt=status.attempt)
    return status.attempt


def test_replicas_fail_and_come_back_while_the_others_train(home: Path) -> None:
    spec, (_, chaos, status, why) = guide("replicas")
    spec["recovery"]["restart_grace_s"] = UNHURRIED_S
    job = replicas(home, **spec).start()
    first = trains(job, 3)
    assert holdfast(*chaos).returncode == 0
    second = trains(job, 3, first + 1)
    assert "2 workers keep their processes" in holdfast(*why).stdout
    job.kill_node(job.member(0))
    third = trains(job, 3, second + 2)
    victim = job.worker(0)
    job.kill_controller()
    os.kill(victim, signal.SIGKILL)
    job.resume()
    trains(job, 3, third + 1)
    assert holdfast(*status).returncode == 0
    job.finish()
    steps = history(job)
    assert [told[0]["step"] for told in steps] == [*range(len(steps))]
    sizes = [told[0]["world_size"] for told in steps]
    assert [len(told) for told in steps] == sizes, "each step was done by all who took part in it"
    assert all(len({one["has"] for one in told}) == 1 for told in steps), "some have another state"
    assert [told[0]["has"] for told in steps] == replayed(sizes)


PAIRS: dict[str, Any] = {
    "nodes": {"count": 4},
    "workers_per_node": 1,
    "parallel": {"dp_replicate": -1, "dp_shard": 2},
    "elasticity": {"min_nodes": 2},
    "recovery": {"mode": "replicas", "replicas": {"nodes_each": 2}},
    "snapshots": {"every_steps": 1},
}


@long
def test_of_replicas_of_two_nodes_one_goes_on_when_both_nodes_of_the_other_are_lost(
    home: Path,
) -> None:
    """The model is sharded over the nodes of a replica (HSDP)."""
    job = replicas(home, 60, **PAIRS).start()
    first = trains(job, 4)
    for node in (job.member(0), job.member(1)):
        job.kill_node(node)
    trains(job, 4, first + 2)
    job.wait_end()
    steps = history(job)
    assert len(steps) == 60
    assert max(one.steps_lost for one in job.incidents()) < 5, "memory has survived that"
    sizes = [told[0]["world_size"] for told in steps]
    assert {2, 4} == set(sizes), "one replica has gone on without the other"
    assert [len(told) for told in steps] == sizes, "each step was done by all who took part in it"
    had = [{(one["rank"] % 2, one["has"]) for one in told} for told in steps]
    replay = replayed_pairs(sizes, 4 * BATCH)
    assert had == [{(0, first), (1, second)} for first, second in replay]


WINDOW = OuterStep(every=10, lr=0.7, momentum=0.9)
APART: dict[str, Any] = {
    "nodes": {"count": 3},
    "elasticity": {"min_nodes": 1},
    "recovery": {"mode": "replicas", "replicas": {"sync_every": WINDOW.every}},
}


@long
def test_replicas_that_train_by_themselves_take_each_outer_step_together_or_not(home: Path) -> None:
    job = replicas(home, 100, **APART).start()
    first = trains(job, 3)
    job.kill_node(job.member(1))
    second = trains(job, 3, first + 2)
    os.kill(job.worker(0), signal.SIGKILL)
    trains(job, 3, second + 1)
    job.wait_end()
    steps = history(job)
    assert len(steps) == 100
    sizes = [told[0]["world_size"] for told in steps]
    assert [len(told) for told in steps] == sizes, "each step was done by all who took part in it"
    assert {2, 3} == set(sizes), "two have gone on without the third"
    kept = {(one["pid"], one["attempt"]) for one in lines(job)}
    assert len({pid for pid, _ in kept}) < len(kept), "some have kept their processes"
    had = [[one["has"] for one in sorted(told, key=lambda one: one["rank"])] for told in steps]
    assert had == replayed_windows(sizes, WINDOW)
