"""A run with faults equals the run without, bit for bit."""

import os
import signal
from pathlib import Path

import pytest
import torch

from tests.end_to_end.local.jobs import ENDLESS, TOGETHER, RunningJob, small
from tests.more import long

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


def _told(job: RunningJob) -> tuple[dict[int, float], dict[str, torch.Tensor]]:
    parameters = torch.load(job.out / "final.pt", weights_only=True)
    (job.out / "final.pt").unlink()
    return job.losses(), parameters


def test_three_faults_change_no_bit_of_losses_and_parameters(home: Path) -> None:
    job = small(home, spares=1, args=ENDLESS, name="faults").start()
    done = job.wait_step(5).step or 0
    os.kill(job.worker(1), signal.SIGKILL)
    done = job.wait_step(done + 5, attempt=2).step or 0
    written = job.losses()
    job.kill_node(job.member(0))  # with rank 0 and the store of the attempt
    done = job.wait_step(done + 5, attempt=3).step or 0
    os.kill(job.worker(0), signal.SIGSEGV)
    job.wait_step(done + 5, attempt=4)
    job.finish()
    losses, parameters = _told(job)
    causes = [incident.cause for incident in job.incidents()]
    assert causes == ["worker-killed", "node-lost", "worker-crashed"], job.said()

    undisturbed = ["--steps", str(max(losses)), "--pause", "0"]
    quiet = small(home, args=undisturbed, name="calm", **TOGETHER).start()
    quiet.wait_end()
    calm_losses, calm = _told(quiet)
    assert losses.items() <= calm_losses.items()
    never_written = [step for step in calm_losses if step not in losses]
    goes_on = min(line["step"] for line in job.metrics() if line["attempt"] == 3)
    at_most = range(max(written) + 1, goes_on)  # a node has no time to write when it is lost
    assert never_written == [step for step in at_most if step not in losses]
    assert never_written == [*range(goes_on - len(never_written), goes_on)], "the newest ones"
    assert parameters.keys() == calm.keys()
    assert all(torch.equal(parameters[name], calm[name]) for name in calm)


@long
def test_three_ranks_are_bitwise_equal_too(home: Path) -> None:
    args = ["--steps", "40"]
    quiet = small(home, nodes=1, workers_per_node=3, args=args, name="calm").start()
    quiet.wait_end()
    calm = _told(quiet)
    job = small(home, nodes=3, args=args, name="faults").start()
    job.wait_step(15)
    os.kill(job.worker(2), signal.SIGKILL)
    job.wait_end()
    losses, parameters = _told(job)
    assert losses == calm[0]
    assert all(torch.equal(parameters[name], calm[1][name]) for name in parameters)
