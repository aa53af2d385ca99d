"""Of scripts without steps a deadlock is found, by what the kernel knows of it; no sleep is one."""

from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.local.jobs import TOGETHER, RunningJob, program
from tests.more import long

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

SOON: dict[str, Any] = {"recovery": {"hang_timeout_s": 6.0}}
DEADLOCK = """
import pathlib, threading, numpy
mark = pathlib.Path(__file__).with_name("hung")
lock = threading.Lock()
def take():
    lock.acquire()
def work():
    with lock:
        take()
numpy.ones((300, 300)) @ numpy.ones((300, 300))
if not mark.exists():
    mark.touch()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
print("done", flush=True)
"""


def test_a_script_that_waits_for_its_own_lock_is_restarted(home: Path) -> None:
    job = program(home, DEADLOCK, nodes=1, **SOON).start()
    job.wait_end()
    (incident,) = job.incidents()
    assert (incident.cause, incident.rank) == ("hang", 0), incident.summary
    assert "join (threading.py" in incident.summary or "<module>" in incident.summary
    assert any(
        "take (" in line for one in incident.collected for r in one.ranks for line in r.stacks
    )
    assert incident.bill["detect"] >= 6.0
    assert job.status().attempt == 2 and job.status().phase == "succeeded"


READS = """
import os, pathlib, torch
import torch.distributed as dist
dist.init_process_group("gloo")
mark = pathlib.Path(__file__).with_name("hung")
def read():
    os.read(os.pipe()[0], 1)
if dist.get_rank() == 1 and not mark.exists():
    mark.touch()
    read()
dist.barrier()
"""


def test_a_rank_in_a_read_that_never_returns_is_named_where_the_other_waits_for_it(
    home: Path,
) -> None:
    options: dict[str, Any] = {"framework": "pytorch", **TOGETHER, **SOON}
    job = program(home, READS, **options).start()
    job.wait_end()
    (incident,) = job.incidents()
    assert (incident.cause, incident.rank) == ("hang", 1), incident.summary
    assert "in read (" in incident.summary and "barrier" in incident.summary
    assert job.status().phase == "succeeded"


PATIENT = """
import time, numpy
a, until = numpy.ones((400, 400)), time.monotonic() + 8
while time.monotonic() < until:
    a = a @ a / a.max()
def wait():
    time.sleep(25)
wait()
"""


def test_one_that_computes_in_silence_and_then_sleeps_is_told_and_left_alone(home: Path) -> None:
    job = program(home, PATIENT, nodes=1, **SOON).start()
    job.wait_until(lambda s: "sleeps in wait (" in (s.why or ""), "the sleep to be told")
    job.wait_end()
    assert job.incidents() == [] and job.status().phase == "succeeded"


@long
def test_so_is_a_shell_that_waits_for_a_child_that_sleeps(home: Path) -> None:
    command = ["/bin/sh", "-c", "sleep 25; true"]
    job = RunningJob(home, command=command, nodes=1, **SOON).start()
    job.wait_until(lambda s: (s.why or "").startswith("Idle for"), "it to be told")
    job.wait_end()
    assert job.incidents() == [] and job.status().phase == "succeeded"


SPAWNS = """
import os, pathlib, threading, torch
import torch.distributed as dist
here = pathlib.Path(__file__).parent
def lock():
    one = threading.Lock()
    one.acquire()
    one.acquire()
def train(local, node):
    meet = here / f"meeting-{os.environ['HOLDFAST_ATTEMPT']}"
    dist.init_process_group("gloo", f"file://{meet}", rank=2 * node + local, world_size=4)
    mark = here / "hung"
    dist.barrier()
    if dist.get_rank() == 3 and not mark.exists():
        mark.touch()
        lock()
    dist.barrier()
if __name__ == "__main__":
    torch.multiprocessing.spawn(train, (int(os.environ["RANK"]),), 2)
"""


@long
def test_a_hang_among_ranks_that_the_workers_have_started_is_put_down_to_the_right_worker(
    home: Path,
) -> None:
    options: dict[str, Any] = {"framework": "pytorch", **TOGETHER, **SOON}
    job = program(home, SPAWNS, **options).start()
    job.wait_end()
    (incident,) = job.incidents()
    assert (incident.cause, incident.rank) == ("hang", 1), incident.summary
    assert "in lock (" in incident.summary and "barrier" in incident.summary
    assert job.status().phase == "succeeded"
