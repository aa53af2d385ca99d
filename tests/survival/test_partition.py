"""A network that comes apart and heals, in a network namespace of its own: the side that was cut
off never trains on, writes or commits.

Everything is real: processes, connections that carry nothing, silence that is noticed after the
heartbeat's time. On one machine the lost side can be killed, too; here it is looked at what it has
done until then, and that nothing of it comes back with the network. The same when the controller is
lost as well: before it has noticed anything, and at the moment when the network heals.
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
from tests.end_to_end.local.jobs import RunningJob, program, small
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
IN_STEP = """
import os, socket, sys, time
from pathlib import Path
rank, attempt, node = (os.environ[n] for n in ("RANK", "HOLDFAST_ATTEMPT", "HOLDFAST_NODE"))
out = Path(sys.argv[1])
port, new = out / f"port-{attempt}", out / "new"
if rank == "0":
    server = socket.create_server(("127.0.0.1", 0))
    new.write_text(str(server.getsockname()[1]))
    new.rename(port)
    peer, _ = server.accept()
else:
    while not port.exists():
        time.sleep(0.02)
    peer = socket.create_connection(("127.0.0.1", int(port.read_text())))
over = False
while not over:
    last = rank == "0" and (out / "enough").exists()
    peer.sendall(b"!" if last else b".")
    if not (heard := peer.recv(1)):
        sys.exit(1)
    over = last or heard == b"!"
    with (out / f"steps-{attempt}-{rank}-{node}").open("a") as file:
        file.write("x")
    time.sleep(0.02)
"""


def apart() -> str:
    """Why there are no network namespaces here; empty if there are."""
    if missing := [name for name in ("ip", "unshare", "nsenter") if shutil.which(name) is None]:
        return f"{missing[0]} is not installed"
    tried = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    return tried.stderr.strip()


pytestmark = [
    pytest.mark.slow, pytest.mark.usefixtures("nothing_left"),
    pytest.mark.skipif(bool(apart()), reason=f"no network namespaces: {apart()}"),
]  # fmt: skip


class ApartJob(RunningJob):
    """A job whose processes have a network of their own."""

    def _holdfast(self, *arguments: str) -> RunningJob:
        before, first = self.process, list[str](UNSHARE)
        if before is not None:  # where its nodes are
            first = self._inside(self.agent(self.status().nodes[0].name))
        command = [*first, str(Path(sys.executable).parent / "holdfast"), *arguments]
        with self.terminal.open("ab") as terminal:
            self.process = subprocess.Popen(
                command,
                stdout=terminal,
                stderr=terminal,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        return self

    def _inside(self, pid: int) -> list[str]:
        return ["nsenter", "--net", "--target", str(pid)]

    def loses_its_controller(self) -> None:
        """It is gone, and another one is told to go on."""
        self.kill_controller()
        self.resume()

    def part(self, name: str) -> "subprocess.Popen[str]":
        """This node from all others, and from the controller."""
        assert self.process is not None
        agents = {n.name: psutil.Process(self.agent(n.name)) for n in self.status().nodes}
        sides = {n: {a.pid, *(c.pid for c in a.children(True))} for n, a in agents.items()}
        here = sides.pop(name)
        there = {self.process.pid}.union(*sides.values())
        words = [",".join(map(str, side)) for side in (here, there)]
        inside = self._inside(self.process.pid)
        parted = subprocess.Popen(
            [*inside, sys.executable, "-c", PART, *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert parted.stdout is not None and parted.stdout.readline() == "parted\n"
        return parted


def apart_from(template: RunningJob) -> ApartJob:
    """The same job with a network of its own."""
    job = ApartJob.__new__(ApartJob)
    job.__dict__.update(template.__dict__)
    job.start()
    job.wait_until(lambda s: sum(n.state == "spare" for n in s.nodes) == 1, "a spare")
    return job


def trains_apart(home: Path) -> ApartJob:
    """A job that saves every second, and has done ten steps."""
    spec: dict[str, Any] = {
        "checkpoints": {"shared": {"path": str(home.parent / "shared"), "every_s": 1}},
        "recovery": {"heartbeat_timeout_s": 3.0},
    }
    args = ["--steps", "150", "--pause", "0.05"]
    job = apart_from(small(home, spares=1, args=args, **spec))
    job.wait_step(10)
    return job


def is_given_up(job: ApartJob, cut: str) -> None:
    """Wait until the spare trains in its place."""
    job.wait_step(10, attempt=2)
    assert cut not in [n.name for n in job.status().nodes]


def heals(parted: "subprocess.Popen[str]") -> None:
    """Everybody reaches everybody."""
    told, _ = parted.communicate("\n")
    assert "is removed" in told


def nothing_of_it_came_back(home: Path, job: ApartJob) -> None:
    """After the end, in what was written: steps, and checkpoints."""
    began = restored(job)[2]
    steps: dict[int, list[int]] = {}
    for line in job.metrics():
        steps.setdefault(line["attempt"], []).append(line["step"])
    assert max(steps[1]) <= began + 2, "it stood still at once: others were missing"
    assert steps[2] == list(range(began + 1, 151)) and set(job.losses()) == set(range(1, 151))
    kept = catalog.survey(open_store(str(home.parent / "shared" / job.name))).committed
    assert all(one.step <= began for one in kept if one.attempt == 1)
    assert max(kept, key=lambda one: one.step).attempt == 2


@long
@pytest.mark.parametrize("rank", [0, 1])
def test_the_side_that_is_cut_off_never_trains_on_writes_or_commits(home: Path, rank: int) -> None:
    """Rank 0 is where the store of the attempt is, and metrics are written."""
    job = trains_apart(home)
    cut = job.member(rank)
    parted = job.part(cut)
    is_given_up(job, cut)
    heals(parted)
    job.wait_end()
    (incident,) = job.incidents()
    assert incident.nodes == (cut,) and "no heartbeat" in incident.summary
    nothing_of_it_came_back(home, job)


@long
@pytest.mark.parametrize("rank", [0, 1])
def test_nor_when_the_controller_is_lost_before_it_has_noticed(home: Path, rank: int) -> None:
    job = trains_apart(home)
    cut = job.member(rank)
    parted = job.part(cut)
    psutil.Process(job.agent(cut)).suspend()  # or it would find the next controller's port
    job.loses_its_controller()
    is_given_up(job, cut)
    heals(parted)
    job.wait_end()
    assert [incident.nodes for incident in job.incidents()] == [(cut,)]
    nothing_of_it_came_back(home, job)


@long
@pytest.mark.parametrize("rank", [0, 1])
def test_nor_when_it_is_lost_while_the_network_heals(home: Path, rank: int) -> None:
    job = trains_apart(home)
    cut = job.member(rank)
    parted = job.part(cut)
    is_given_up(job, cut)
    job.kill_controller()
    heals(parted)
    job.resume()
    job.wait_end()
    assert [incident.nodes for incident in job.incidents()] == [(cut,)]
    nothing_of_it_came_back(home, job)


@long
def test_a_network_that_heals_before_the_next_controller_comes_costs_no_attempt(home: Path) -> None:
    job = trains_apart(home)
    parted = job.part(job.member(1))
    job.kill_controller()
    heals(parted)
    job.resume()
    job.wait_end()
    assert job.incidents() == [] and job.status().attempt == 1
    assert set(job.losses()) == set(range(1, 151))


def test_a_controller_that_is_lost_beside_a_partition_changes_nothing_of_this(home: Path) -> None:
    """As above, with a script that takes no second to start: both ranks do each step together."""
    out = home.parent / "out"
    recovery = {"heartbeat_timeout_s": 2.0}
    nodes = {"count": 2, "spares": 1}
    job = apart_from(program(home, IN_STEP, nodes=nodes, args=[str(out)], recovery=recovery))
    job.wait_until(lambda _: len([*out.glob("steps-1-*")]) == 2, "both do steps")
    cut = job.member(1)
    parted = job.part(cut)
    done = [len(path.read_text()) for path in out.glob("steps-1-*")]
    psutil.Process(job.agent(cut)).suspend()
    job.loses_its_controller()
    job.wait_until(lambda _: len([*out.glob("steps-2-*")]) == 2, "the spare has taken its place")
    heals(parted)
    (out / "enough").touch()
    job.wait_end()
    assert [incident.nodes for incident in job.incidents()] == [(cut,)]
    assert max(len(path.read_text()) for path in out.glob("steps-1-*")) <= max(done) + 2
    assert len([*out.glob("steps-2-*")]) == 2 and job.status().attempt == 2
