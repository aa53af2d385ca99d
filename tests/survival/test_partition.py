"""A network that comes apart and heals, in a network namespace of its own: the side that was cut
off never trains on, writes or commits.

Everything is real: processes, connections that carry nothing, silence that is noticed after the
heartbeat's time. On one machine the lost side can be killed, too; here it is looked at what it has
done until then, and that nothing of it comes back with the network.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.checkpoint import catalog
from holdfast.checkpoint.open_store import open_store
from tests.end_to_end.local.jobs import RunningJob, small
from tests.end_to_end.local.test_numerics import restored
from tests.more import long

UNSHARE = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
PART = """
import sys
from holdfast.drivers.chaos_network import Partition
here, there = ({int(pid) for pid in side.split(",")} for side in sys.argv[1:])
parted = Partition(here, there)
print("parted", flush=True)
sys.stdin.readline()
print(parted.heal())
"""


def apart() -> str:
    """Why there are no network namespaces here; empty if there are."""
    if missing := [name for name in ("ip", "unshare", "nsenter") if shutil.which(name) is None]:
        return f"{missing[0]} is not installed"
    tried = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    return tried.stderr.strip()


pytestmark = [
    pytest.mark.slow, pytest.mark.usefixtures("nothing_left"), long,
    pytest.mark.skipif(bool(apart()), reason=f"no network namespaces: {apart()}"),
]  # fmt: skip


class ApartJob(RunningJob):
    """A job whose processes have a network of their own."""

    def _holdfast(self, *arguments: str) -> RunningJob:
        command = [*UNSHARE, str(Path(sys.executable).parent / "holdfast"), *arguments]
        with self.terminal.open("ab") as terminal:
            self.process = subprocess.Popen(
                command,
                stdout=terminal,
                stderr=terminal,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        return self

    def part(self, name: str) -> "subprocess.Popen[str]":
        """This node from all others, and from the controller."""
        assert self.process is not None
        agents = {n.name: psutil.Process(self.agent(n.name)) for n in self.status().nodes}
        sides = {n: {a.pid, *(c.pid for c in a.children(True))} for n, a in agents.items()}
        here = sides.pop(name)
        there = {self.process.pid}.union(*sides.values())
        words = [",".join(map(str, side)) for side in (here, there)]
        inside = ["nsenter", "--net", "--target", str(self.process.pid)]
        parted = subprocess.Popen(
            [*inside, sys.executable, "-c", PART, *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert parted.stdout is not None and parted.stdout.readline() == "parted\n"
        return parted


@pytest.mark.parametrize("rank", [0, 1])
def test_the_side_that_is_cut_off_never_trains_on_writes_or_commits(home: Path, rank: int) -> None:
    """Rank 0 is where the store of the attempt is, and metrics are written."""
    place = home.parent / "shared"
    spec: dict[str, Any] = {
        "checkpoints": {"shared": {"path": str(place), "every_s": 1}},
        "recovery": {"heartbeat_timeout_s": 3.0},
    }
    template = small(home, spares=1, args=["--steps", "150", "--pause", "0.05"], **spec)
    job = ApartJob.__new__(ApartJob)
    job.__dict__.update(template.__dict__)
    job.start()
    job.wait_until(lambda s: sum(n.state == "spare" for n in s.nodes) == 1, "a spare")
    job.wait_step(10)
    cut = job.member(rank)
    parted = job.part(cut)
    job.wait_step(10, attempt=2)
    assert cut not in [n.name for n in job.status().nodes]
    told, _ = parted.communicate("\n")
    assert "whole again" in told
    job.wait_end()
    (incident,) = job.incidents()
    assert incident.nodes == (cut,) and "no heartbeat" in incident.summary
    began = restored(job)[2]
    steps: dict[int, list[int]] = {}
    for line in job.metrics():
        steps.setdefault(line["attempt"], []).append(line["step"])
    assert max(steps[1]) <= began + 2, "it stood still at once: others were missing"
    assert steps[2] == list(range(began + 1, 151)) and set(job.losses()) == set(range(1, 151))
    kept = catalog.survey(open_store(str(place / job.name))).committed
    assert all(one.step <= began for one in kept if one.attempt == 1)
    assert max(kept, key=lambda one: one.step).attempt == 2
