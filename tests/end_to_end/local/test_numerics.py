"""A loss that is no number is seen at its step, gone back on, and never reported as success."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
import torch

from holdfast.train.data import SampleOrder
from tests.end_to_end.local.jobs import TOGETHER, RunningJob, small
from tests.more import long

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

STEPS = 20
SAMPLE = 100
BAD_STEP = 10  # the script counts from 0: it is completed step 11
TOLD = "The loss of rank 1 was nan at step 11."
ARGS = ["--steps", str(STEPS), "--bad-step", str(BAD_STEP)]


def parameters(job: RunningJob) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(job.out / "final.pt", weights_only=True)
    (job.out / "final.pt").unlink()
    return found


def finite_losses(job: RunningJob) -> dict[int, float]:
    """By step; steps whose loss was no number were done again."""
    return {line["step"]: line["loss"] for line in job.metrics() if line["loss"] is not None}


def test_a_loss_that_is_nan_once_changes_no_bit_of_the_result(home: Path) -> None:
    calm = small(home, args=[*ARGS, "--pause", "0"], name="calm", **TOGETHER).start()
    calm.wait_end()
    expected = parameters(calm)
    job = small(home, args=[*ARGS, "--bad", "loss"], name="bad", **TOGETHER).start()
    job.wait_end()
    found = parameters(job)
    assert finite_losses(job) == calm.losses()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    (incident,) = job.incidents()
    assert (incident.cause, incident.rank, incident.step) == ("nan", 1, BAD_STEP + 1)
    assert incident.ended_at is not None and incident.steps_lost <= 2
    assert TOLD in incident.summary


@long
def test_a_loss_that_is_nan_each_time_ends_the_job_with_its_step_and_rank(home: Path) -> None:
    args = [*ARGS, "--bad", "loss", "--times", "99"]
    job = small(home, args=args, name="bad", **TOGETHER).start()
    job.wait_end(1)
    status = job.status()
    assert status.outcome == "failed" and status.attempt == 2
    assert TOLD in (status.why or "")
    assert [i.cause for i in job.incidents()] == ["nan", "nan"]


def restored(job: RunningJob) -> dict[int, int]:
    """The step after which each attempt has gone on, by the journal."""
    entries = map(json.loads, (job.folder / "journal.jsonl").read_text().splitlines()[1:])
    events = [entry["event"] for entry in entries]
    return {e["attempt"]: e["step"] for e in events if e.get("milestone") == "restored"}


@long
def test_with_checkpoints_an_older_one_is_tried_before_the_job_ends(home: Path) -> None:
    """Slow enough for some checkpoints before the bad step."""
    args = ["--steps", "40", "--bad-step", "34", "--bad", "loss", "--times", "99"]
    shared = {"shared": {"path": str(home.parent / "checkpoints"), "every_s": 1}}
    slow = [*args, "--pause", "0.15"]
    job = small(home, args=slow, name="bad", checkpoints=shared, **TOGETHER).start()
    job.wait_end(1)
    first, second, third = job.incidents()
    assert first.steps_lost <= 2
    attempts = restored(job)
    assert attempts[3] < attempts[2] < 35
    assert [action.action for action in second.actions].count("RollBack") == 1
    assert third.ended_at is None and job.status().attempt == 3


def bad_batch(sample: int) -> int:
    """The number of the first batch with this sample of the script, on two ranks."""
    order = SampleOrder(256, batch_size=8, seed=5, shuffle=True, drop_last=True)
    dealt = [order.tickets(0, 0, rank, 2) for rank in range(2)]
    both = zip(*dealt, strict=False)
    return next(n for n, two in enumerate(both) if any(sample in one.indices for one in two))


def test_a_batch_that_makes_numbers_nan_each_time_ends_the_job_unless_it_may_be_left_out(
    home: Path,
) -> None:
    number = bad_batch(SAMPLE)
    assert 3 < number < 11
    args = ["--steps", "14", "--bad-sample", str(SAMPLE)]
    stuck = small(home, args=args, name="stuck", **TOGETHER).start()
    stuck.wait_end(1)
    status = stuck.status()
    assert (status.outcome, status.attempt) == ("failed", 2)
    assert re.search(rf"The loss of rank [01] was nan at step {number + 1}\.", status.why or "")
    assert [one.cause for one in stuck.incidents()] == ["nan", "nan"]
    slow, recovery = [*args, "--pause", "0.1"], {"skip_batches": 3}
    job = small(home, args=slow, name="skips", recovery=recovery, **TOGETHER).start()
    job.wait_step(number + 2, attempt=3)
    os.kill(job.worker(1), signal.SIGKILL)
    job.wait_end()
    first, second, third = job.incidents()
    assert [one.cause for one in (first, second, third)] == ["nan", "nan", "worker-killed"]
    told = [action.reason for action in second.actions if action.action == "SkipBatches"]
    assert told[-1] == f"batches {number} to {number} (from 0) are skipped: 1 of 3 allowed"
    assert set(finite_losses(job)) == set(range(1, 15)) and job.status().attempt == 4
    logs = [(job.folder / f"logs/attempt-{n}/rank-0.log").read_text() for n in (2, 3, 4)]
    assert ["are skipped" in log for log in logs] == [False, True, False], "once"


@long
def test_a_loss_that_is_nan_in_the_last_step_is_no_success(home: Path) -> None:
    last = ["--steps", "12", "--bad-step", "11", "--bad", "loss", "--times", "99"]
    job = small(home, args=last, name="bad", **TOGETHER).start()
    job.wait_end(1)
    assert job.status().outcome == "failed"


@long
def test_one_infinite_gradient_norm_is_no_fault(home: Path) -> None:
    job = small(home, args=[*ARGS, "--bad", "norm"], name="scaled", **TOGETHER).start()
    job.wait_end()
    assert job.incidents() == [] and job.status().attempt == 1


@long
def test_a_job_that_ignores_nan_trains_on_and_says_so(home: Path) -> None:
    args = [*ARGS, "--bad", "loss"]
    recovery = {"on_nan": "ignore"}
    job = small(home, args=args, name="ignored", recovery=recovery, **TOGETHER).start()
    job.wait_end()
    status = job.status()
    assert job.incidents() == [] and status.attempt == 1
    assert [note.step for note in status.notes] == [BAD_STEP + 1]
