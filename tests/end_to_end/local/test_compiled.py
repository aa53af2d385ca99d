"""Blocks that are compiled: a worker that takes over has traced them while it waited."""

import json
import os
import signal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tests.end_to_end.local.jobs import SCRIPTS, RunningJob
from tests.more import MORE
from tests.patience import until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

RANKS = 2 if MORE else 1  # each, and each that waits warm, compiles for seconds


class Outcome(NamedTuple):
    """What a job leaves."""

    losses: dict[int, float]
    parameters: dict[str, torch.Tensor]
    compiled: list[dict[str, Any]]

    def frames(self, attempt: int) -> dict[int, set[int]]:
        """By rank: how often its process had compiled, before its first step and after each."""
        told = [one for one in self.compiled if one["attempt"] == attempt]
        ranks = {one["rank"] for one in told}
        return {r: {one["frames"] for one in told if one["rank"] == r} for r in ranks}


def _job(home: Path, name: str, **spec: Any) -> RunningJob:
    out = home.parent / "out"
    return RunningJob(
        home,
        name=name,
        script=str(SCRIPTS / "compiled.py"),
        args=["--out", str(out), "--waits-for", str(out / "go")],
        parallel={"dp_replicate": -1, "compile": True},
        snapshots={"every_steps": 1},
        recovery={"hangs": "off"},
        nodes=1,
        workers_per_node=RANKS,
        **spec,
    )


def _finish(job: RunningJob) -> Outcome:
    (job.out / "go").touch()
    job.wait_end()
    told = [json.loads(line) for line in (job.out / "compiled.jsonl").read_text().splitlines()]
    found = Outcome(job.losses(), torch.load(job.out / "final.pt", weights_only=True), told)
    for path in job.out.iterdir():
        path.unlink()
    return found


def _kill(job: RunningJob) -> None:
    job.wait_step(10)
    os.kill(job.worker(RANKS - 1), signal.SIGKILL)
    (job.out / "go").touch()


def _all_have_traced(job: RunningJob) -> bool:
    gone = {int(path.name.removeprefix("gone-")) for path in job.out.glob("gone-*")}
    return len(gone - {job.worker(rank) for rank in range(RANKS)}) >= RANKS


def test_a_worker_that_takes_over_compiles_nothing_and_changes_no_bit(home: Path) -> None:
    job = _job(home, "ahead").start()
    job.wait_step(10)
    assert until(lambda: _all_have_traced(job)), job.said()
    _kill(job)
    ahead = _finish(job)
    assert all(len(counts) == 1 and min(counts) > 0 for counts in ahead.frames(2).values())
    others = [ahead]

    if MORE:  # what they do who have not traced
        job = _job(home, "plain", env={"HOLDFAST_TRACE_AHEAD": "0"}).start()
        _kill(job)
        plain = _finish(job)
        assert all(min(counts) == 0 < max(counts) for counts in plain.frames(2).values())
        others.append(plain)

    calm = _finish(_job(home, "calm", env={"HOLDFAST_TRACE_AHEAD": "0"}).start())
    for other in others:
        assert len(other.frames(2)) == RANKS
        assert other.losses == calm.losses
        assert all(torch.equal(other.parameters[name], p) for name, p in calm.parameters.items())
