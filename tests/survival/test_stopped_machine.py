"""A machine that stops is known to be lost while a process that is only stopped is named, and is
waited for; so is a link that comes back. Everything is real: processes, connections, what the
kernel says."""

import time
from pathlib import Path

import psutil
import pytest

from holdfast.drivers.chaos_machine import StoppedMachine
from holdfast.status import JobStatus
from tests.end_to_end.local.jobs import RunningJob, program
from tests.more import long

BLACKOUT_S = 1.5
TRAINS = """
import time
print("up", flush=True)
while True:
    time.sleep(1)
"""

LIMIT = {"heartbeat_timeout_s": 10.0}  # there is time between silence that is told, and a loss
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left"), long]


def stopped(job: RunningJob, name: str) -> StoppedMachine:
    """This node, as all others and the controller see it."""
    assert job.process is not None
    agents = {n.name: psutil.Process(job.agent(n.name)) for n in job.status().nodes}
    sides = {n: {a.pid, *(c.pid for c in a.children(True))} for n, a in agents.items()}
    here = sides.pop(name)
    try:
        return StoppedMachine(here, {job.process.pid}.union(*sides.values()))
    except PermissionError as error:
        pytest.skip(f"sockets of other processes cannot be had: {error}")


def trains(home: Path) -> RunningJob:
    """Two members and a spare."""
    job = program(home, TRAINS, nodes={"count": 2, "spares": 1}, recovery=LIMIT).start()
    job.wait_until(
        lambda s: sum(n.state == "spare" for n in s.nodes) == 1 and job.said().count("up") == 2,
        "a spare",
    )
    return job


def ends(job: RunningJob) -> None:
    """Somebody ends it."""
    assert job.process is not None
    job.process.terminate()
    job.process.wait()


def is_silent(status: JobStatus, name: str) -> bool:
    """Whether that is told of this node."""
    found = [one for node in status.nodes if node.name == name for one in node.conditions]
    return any("its process does not run" in one.detail for one in found)


def test_an_agent_that_stands_still_for_a_while_is_named_and_costs_nothing(home: Path) -> None:
    job = trains(home)
    paused = job.member(1)
    agent = psutil.Process(job.agent(paused))
    agent.suspend()
    job.wait_until(lambda s: is_silent(s, paused), "that its silence is told")
    agent.resume()
    job.wait_until(lambda s: not is_silent(s, paused), "that it is over")
    assert job.incidents() == [] and job.status().attempt == 1
    ends(job)


def test_a_machine_that_stops_is_lost_long_before_silence_is_believed(home: Path) -> None:
    job = trains(home)
    blackout = stopped(job, job.member(0))
    end = time.monotonic() + BLACKOUT_S
    while time.monotonic() < end:
        time.sleep(0.01)
    assert blackout.go_on() == "the machine is resumed"
    cut = job.member(1)
    machine = stopped(job, cut)
    began = time.time()
    job.wait_until(lambda s: s.attempt == 2, "attempt 2")
    machine.go_on()
    (incident,) = job.incidents()
    assert incident.nodes == (cut,), "the one that came back was not given up"
    assert "no TCP acknowledgement from its machine" in incident.summary
    assert incident.detected_at is not None and incident.detected_at - began < 9.0
    ends(job)
