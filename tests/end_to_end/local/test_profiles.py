"""Running workers are profiled without a restart, and whatever happens to them meanwhile is told.

The profiler is PyTorch's own, on real processes that talk over gloo.
"""

import gzip
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.drivers import client
from holdfast.profiles import AUTOMATIC, ProfileRequest
from holdfast.status import JobStatus
from tests.end_to_end.local.jobs import TOGETHER, RunningJob, guide, program, small
from tests.end_to_end.local.short_blocks import BLOCK_S, WithShortBlocks
from tests.more import long
from tests.patience import PATIENCE_S, Patience
from tests.warm import holdfast, start

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

STEPS = 100_000  # never reached
FAST_S, SLOW_S = 0.05, 0.5
PACED = """
import time
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    with open("pace") as file:
        time.sleep(float(file.read() or 0))
"""
PLAIN = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.AdamW(model.parameters())
mine = None
while True:
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
    if mine is None and dist.get_rank() == 1 and os.path.exists("own"):
        mine = torch.profiler.profile(schedule=lambda _step: torch.profiler.ProfilerAction.NONE)
        open("owns", "w").close()
"""


def profiled(job: RunningJob, *words: str) -> dict[str, Any]:
    done = holdfast("profile", job.name, "--json", *words)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def left(job: RunningJob) -> list[str]:
    """What of profiles is in the folder of the job."""
    return sorted(path.name for path in (job.folder / "profiles").rglob("*") if path.is_file())


def stop(job: RunningJob) -> None:
    assert holdfast("stop", job.name, "--now").returncode == 0
    job.wait_end(130)


def test_a_profile_changes_no_loss_and_restarts_nothing(home: Path) -> None:
    spec, (_, plain, exact) = guide("profiles")
    spec = {name: spec[name] for name in ("name", "workers_per_node")}
    job = small(home, args=["--steps", str(STEPS), "--pause", "0.1"], nodes=1, **spec).start()
    job.wait_step(5)
    merged = home.parent / exact.pop()
    done = holdfast(*exact, str(merged), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    shown = holdfast(*plain)
    assert shown.returncode == 0 and "try first: " in shown.stdout, shown
    assert left(job)[-1] == "trace.json.gz" and len(left(job)) <= 3, "older traces are gone"
    stop(job)
    assert job.status().attempt == 1 and not job.incidents()
    with_profile = job.losses()
    assert [one["rank"] for one in found["ranks"]] == [0, 1]
    assert len({one["first_step"] for one in found["ranks"]}) == 1, "they begin together"
    for one in found["ranks"]:
        parts = one["parts"]
        assert one["steps"] == 3 and not one["why"] and one["device"] == "cpu"
        assert parts["compute"] > 0 and parts["idle"] > 0.08, "the script sleeps in each step"
        assert 0 < parts["snapshots"] < parts["idle"], "there is one of each step"
        assert one["communication_s"] > 0 and 0 <= one["overlap"] <= 1
    told = json.loads(gzip.decompress(merged.read_bytes()))["traceEvents"]
    names = {event["args"]["name"] for event in told if event["name"] == "process_name"}
    assert {"rank 0 · steps", "rank 1 · steps"} <= names
    assert any(event["name"].startswith("gloo:") for event in told)
    last = max(with_profile)
    assert found["ranks"][0]["first_step"] + 3 < last
    words = ["--steps", str(last), "--pause", "0"]
    again = small(home, name="plain", args=words, **TOGETHER).start()
    again.wait_end()
    assert again.losses() == with_profile


@long
def test_a_script_without_the_library_is_profiled_by_its_optimizer_steps(home: Path) -> None:
    options: dict[str, Any] = {"framework": "pytorch", "warm": {"mode": "auto"}}
    job = program(home, PLAIN, workdir=str(home.parent), **options, **TOGETHER).start()
    job.wait_until(lambda s: (s.optimizer_steps or 0) > 5, "optimizer steps")
    found = profiled(job, "--steps", "2", "--ranks", "0,1")
    assert [one["steps"] for one in found["ranks"]] == [2, 2]
    assert all(one["communication_s"] > 0 for one in found["ranks"])
    (home.parent / "own").touch()
    job.wait_until(lambda _: (home.parent / "owns").exists(), "its own profiler")
    one, other = profiled(job, "--steps", "1", "--ranks", "0,1")["ranks"]
    assert not one["why"] and "a torch.profiler of its own" in other["why"]
    stop(job)
    assert job.status().attempt == 1 and not job.incidents()


@long
def test_who_cannot_be_profiled_is_told_so_and_nothing_is_left(home: Path) -> None:
    job = small(home, args=["--steps", str(STEPS), "--pause", "0.25"], **TOGETHER).start()
    job.wait_step(1)
    refused = holdfast("profile", job.name, "--ranks", "7")
    assert (refused.returncode, "it has no rank 7" in refused.stderr) == (2, True)
    first = start("profile", job.name, "--steps", "50", "--ranks", "0,1")
    traced = job.folder / "profiles"
    job.wait_until(lambda _: traced.is_dir() and any(traced.iterdir()), "it has begun")
    second = holdfast("profile", job.name)
    assert (second.returncode, "profile-refused" in second.stderr) == (2, True)
    assert "another profile of this job is being taken" in second.stderr
    job.wait_step((job.status().step or 0) + 8)  # of which some are recorded by now
    os.kill(job.worker(1), signal.SIGKILL)
    out, told = first.communicate(timeout=PATIENCE_S)
    assert first.returncode == 3 and out == "", told
    assert "rank 1: its worker ended" in told and "rank 0: its worker ended" in told
    assert left(job) == []
    job.wait_step(2, attempt=2)
    assert client.profile(job.folder, ProfileRequest(id="again", steps=1)).ranks[0].why == ""
    stop(job)
    ended = holdfast("profile", job.name)
    assert (ended.returncode, "job-not-running" in ended.stderr) == (4, True)


class Paced:
    """A job of one rank whose steps take as long as the test says; it is profiled when they take
    five times as long."""

    def __init__(self, home: Path) -> None:
        self._pace = home.parent / "pace"
        self.steps_take(FAST_S)
        options: dict[str, Any] = {"framework": "pytorch", "warm": {"mode": "auto"}}
        one: dict[str, Any] = {"nodes": 1, "workers_per_node": 1}
        asked = {"monitoring": {"profile_slowdown": 4.0}, "workdir": str(home.parent)}
        self.job = program(home, PACED, **options, **one, **asked)
        self.job.by = WithShortBlocks
        self.job.start()

    def steps_take(self, seconds: float) -> None:
        fresh = self._pace.with_suffix(".new")
        fresh.write_text(str(seconds))
        fresh.replace(self._pace)

    def until(self, condition: Callable[[JobStatus], bool], what: str) -> JobStatus:
        """As the job waits, but with fewer looks: minutes go by."""
        patience = Patience(turn_s=0.6)
        while not patience.is_over:
            if (self.job.folder / "job.json").exists() and condition(status := self.job.status()):
                return status
            time.sleep(0.5)
        raise AssertionError(f"{what}\n{self.notes()}\n{self.job.said()}")

    def trains_for(self, seconds: float, attempt: int = 1) -> None:
        """Until so much has been trained at the pace of now, in as many reports as that takes."""
        pace_s = float(self._pace.read_text())
        first = self.until(lambda s: s.attempt == attempt and bool(s.optimizer_steps), "steps")
        last = (first.optimizer_steps or 0) + seconds / pace_s
        self.until(lambda s: (s.optimizer_steps or 0) >= last, f"step {last}")

    def notes(self) -> list[str]:
        return [one.text for one in self.job.status().notes]


@long
def test_steps_that_become_slow_are_profiled_once_and_everybody_is_shown_why(home: Path) -> None:
    site = Paced(home)
    job, traced = site.job, site.job.folder / "profiles"
    site.trains_for(5 * BLOCK_S)
    site.steps_take(SLOW_S)
    site.trains_for(2 * SLOW_S)
    site.steps_take(FAST_S)
    site.trains_for(3 * BLOCK_S)
    asked = start("profile", job.name, "--json", "--steps", "40")
    site.until(lambda _: traced.is_dir() and any(traced.iterdir()), "a profile under way")
    site.steps_take(SLOW_S)
    site.trains_for(26 * SLOW_S)  # longer than what is told of without a profile
    assert asked.poll() is None
    site.steps_take(FAST_S)
    out, told = asked.communicate(timeout=PATIENCE_S)
    assert asked.returncode == 0, told
    mine = Path(json.loads(out)["trace"])
    site.trains_for(2 * BLOCK_S)
    assert site.notes() == [] and len(left(job)) == 2, "neither slow for once nor by a profile"
    site.steps_take(SLOW_S)
    site.until(lambda s: len(s.notes) >= 2, "the profile of slow steps")
    slower, profiled = site.notes()
    assert slower.startswith("steps have become ") and "slower than usual" in slower
    assert profiled.startswith("a profile of rank 0 says compute ") and "try first: " in profiled
    assert slower in holdfast("why", job.name).stdout
    assert profiled in holdfast("why", job.name).stdout
    (folder,) = traced.glob(f"{AUTOMATIC}1-step-*")
    assert [path.name for path in folder.iterdir()] == ["rank-0.json.gz"] and mine.is_file()
    site.steps_take(FAST_S)
    os.kill(job.worker(0), signal.SIGKILL)
    site.trains_for(3 * BLOCK_S, attempt=2)
    site.steps_take(SLOW_S)
    site.until(lambda s: len(s.notes) >= 3, "that it is slow again")
    site.trains_for(2 * BLOCK_S, attempt=2)
    assert len(site.notes()) == 3 and list(traced.glob(f"{AUTOMATIC}*")) == [folder]
    stop(job)
    assert len(job.incidents()) == 1 and job.status().attempt == 2, "the worker that was killed"
