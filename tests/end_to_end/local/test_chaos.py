"""Faults from outside hit the process that is meant, are repaired, and are taken back."""

import json
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.end_to_end.local.jobs import RunningJob, program
from tests.warm import holdfast

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

ALLOCATES = """
import time
print("up", flush=True)
while True:
    time.sleep(0.02)
    grown = bytearray(8 << 20)
"""


def injected(job: RunningJob, fault: str, *words: str) -> dict[str, Any]:
    """What the command says that it has done."""
    run = holdfast("chaos", job.name, "--fault", fault, *words, "--json")
    assert run.returncode == 0, run.stderr
    told: dict[str, Any] = json.loads(run.stdout)
    return told


def test_what_is_injected_is_found_as_what_it_is_and_the_job_goes_on(home: Path) -> None:
    job = program(home, ALLOCATES, nodes={"count": 2}, warm={"mode": "off"}).start()
    job.wait_until(lambda s: s.phase == "running" and job.said().count("up") == 2, "running")
    killed = injected(job, "SIGKILL", "--rank", "1")
    assert (killed["rank"], killed["undone"]) == (1, None)
    job.wait_until(
        lambda s: s.attempt == 2 and s.phase == "running" and all(all(n.pids) for n in s.nodes),
        "attempt 2, and who its workers are",
    )
    [first] = job.incidents()
    assert (first.cause, first.rank, first.signal) == ("worker-killed", 1, 9)

    pid = job.worker(0)
    stopped = injected(job, "SIGSTOP", "--rank", "0", "--for", "0")
    assert stopped["pid"] == pid and stopped["undone"] == f"process {pid} is resumed"
    assert psutil.Process(pid).status() != psutil.STATUS_STOPPED
    assert job.status().attempt == 2

    wrong = holdfast("chaos", job.name, "--fault", "SIGKILL", "--rank", "7")
    assert wrong.returncode == 4 and "error[rank-not-found]" in wrong.stderr
    injected(job, "forkserver killed", "--rank", "0")
    job.wait_until(lambda s: s.attempt == 3 and s.phase == "running", "attempt 3")
    assert job.incidents()[-1].cause == "forkserver-died"

    holdfast("stop", job.name, "--now")
    over = holdfast("chaos", job.name, "--fault", "SIGKILL")
    assert over.returncode == 4 and "error[job-not-running]" in over.stderr
    assert "it has ended: stopped" in over.stderr
