"""A machine that stops is known to be lost while a process that is only stopped is waited for; so
is a link that comes back. Everything is real: processes, connections, what the kernel says."""

import time
from pathlib import Path

import psutil
import pytest

from holdfast.drivers.chaos_machine import StoppedMachine
from tests.end_to_end.local.jobs import RunningJob, program
from tests.more import long

BLACKOUT_S = 1.5
TRAINS = """
import time
print("up", flush=True)
while True:
    time.sleep(1)
"""

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


def test_a_machine_that_stops_is_lost_long_before_silence_is_believed(home: Path) -> None:
    recovery = {"heartbeat_timeout_s": 10.0}  # there is time between the two
    job = program(home, TRAINS, nodes={"count": 2, "spares": 1}, recovery=recovery).start()
    job.wait_until(
        lambda s: sum(n.state == "spare" for n in s.nodes) == 1 and job.said().count("up") == 2,
        "a spare",
    )
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
    assert job.process is not None
    job.process.terminate()
    job.process.wait()
