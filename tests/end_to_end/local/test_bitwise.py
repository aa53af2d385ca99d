"""A run with faults equals the run without, bit for bit."""

import os
import signal
from pathlib import Path

import pytest
import torch

from tests.end_to_end.local.jobs import TOGETHER, RunningJob, small
from tests.more import long

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

STEPS = 90


def _finish(job: RunningJob) -> tuple[dict[int, float], dict[str, torch.Tensor]]:
    job.wait_end()
    parameters = torch.load(job.out / "final.pt", weights_only=True)
    (job.out / "final.pt").unlink()
    return job.losses(), parameters


def test_three_faults_change_no_bit_of_losses_and_parameters(home: Path) -> None:
    args = ["--steps", str(STEPS)]
    calm_losses, calm = _finish(small(home, args=args, name="calm", **TOGETHER).start())
    assert len(calm_losses) == STEPS

    job = small(home, spares=1, args=args, name="faults").start()
    job.wait_step(15)
    os.kill(job.worker(1), signal.SIGKILL)
    job.wait_step(35, attempt=2)
    job.kill_node(job.member(1))
    job.wait_step(55, attempt=3)
    os.kill(job.worker(0), signal.SIGSEGV)
    losses, parameters = _finish(job)

    assert len(job.incidents()) == 3
    assert losses == calm_losses
    assert parameters.keys() == calm.keys()
    assert all(torch.equal(parameters[name], calm[name]) for name in calm)


@long
def test_three_ranks_are_bitwise_equal_too(home: Path) -> None:
    args = ["--steps", "40"]
    calm = _finish(small(home, nodes=1, workers_per_node=3, args=args, name="calm").start())
    job = small(home, nodes=3, args=args, name="faults").start()
    job.wait_step(15)
    os.kill(job.worker(2), signal.SIGKILL)
    losses, parameters = _finish(job)
    assert losses == calm[0]
    assert all(torch.equal(parameters[name], calm[1][name]) for name in parameters)
