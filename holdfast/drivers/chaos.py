"""Faults that can be done to a running local job from outside, to see what follows.

Each is done to real processes of the job, found by the id that they carry, and to nobody else's.
What can be taken back is: a stopped process goes on, a full disk gets its room back, a limit is
lifted. What a worker can only do to itself (an exception, a NaN) is not among them.
"""

import contextlib
import errno
import os
import random
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil

from holdfast.drivers import client
from holdfast.drivers.chaos_machine import StoppedMachine
from holdfast.drivers.chaos_network import Partition
from holdfast.drivers.fencing import Search
from holdfast.drivers.nodes import KnownNode, known_nodes
from holdfast.drivers.records import load_job, read_address
from holdfast.errors import Error
from holdfast.status import NodeStatus

FILL_BYTES_MAX = 1 << 30  # a disk with more room than that is somebody's, not a test's
LIMIT_BYTES = 1 << 20  # with which no worker gets far
GROUPS = (  # of version 1 and 2, and the file with the limit
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max"),
)


class Victim(NamedTuple):
    """A worker of the job, with its node."""

    folder: Path
    node: KnownNode
    rank: int
    pid: int


Undo = Callable[[], str]  # says what it took back; empty: there was nothing left to


class ChaosFault(NamedTuple):
    """One kind. `causes` are right for it; `has_rank`: an incident should name the rank."""

    what: str
    causes: tuple[str, ...]
    inject: Callable[[Victim], Undo | None]
    has_rank: bool = True
    lasts: bool = False  # until it is taken back


class Injected(NamedTuple):
    """What was done, and when (seconds since the epoch)."""

    fault: str
    what: str
    victim: Victim
    at: float
    undo: Undo | None


def inject(folder: Path, fault: str, rank: int | None = None) -> Injected:
    """Do it to the worker of this rank, or to any. Raises `Error` job-not-running, rank-not-found,
    fault-impossible or, for a fault that there is not, `KeyError`."""
    kind = FAULTS[fault]
    victim = victim_of(folder, rank)
    at = time.time()
    try:
        undo = kind.inject(victim)
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip()
        raise impossible(f"{fault}: {shlex.join(error.cmd)}: {said or error}") from error
    except (OSError, psutil.Error, subprocess.SubprocessError) as error:
        raise impossible(f"{fault}: {error}") from error
    return Injected(fault, kind.what, victim, at, undo)


def victim_of(folder: Path, rank: int | None) -> Victim:
    """The worker with this rank as the controller knows it, if it is really the job's process."""
    status = client.status(folder)
    nodes = [node for node in status.nodes if node.rank is not None and node.pids]
    if status.outcome is not None or not nodes:
        raise Error(
            "job-not-running",
            f"no worker of job {folder.name} is running",
            why=f"it has ended: {status.outcome.replace('_', ' ')}"
            if status.outcome is not None
            else f"it is {status.phase.replace('_', ' ')}",
            help=f"holdfast status {folder.name}",
        )
    chosen = random.choice(_ranks(nodes)) if rank is None else rank
    known = {node.node: node for node in known_nodes(folder)}
    found = Search(folder, set(known)).processes()
    for node in nodes:
        place = chosen - _first(node)
        ours = 0 <= place < len(node.pids) and found.get(node.pids[place]) == node.node
        if ours and node.node in known:
            return Victim(folder, known[node.node], chosen, node.pids[place])
    raise Error(
        "rank-not-found",
        f"rank {chosen} of job {folder.name} has no running worker",
        why=f"its ranks are {', '.join(map(str, _ranks(nodes)[:16]))}",
        help=f"holdfast status {folder.name}",
    )


def _first(node: NodeStatus) -> int:
    return (node.rank or 0) * len(node.pids)


def _ranks(nodes: list[NodeStatus]) -> list[int]:
    return [_first(node) + place for node in nodes for place in range(len(node.pids))]


def impossible(why: str) -> Error:
    """The error for a fault that cannot be done here; nothing was changed."""
    return Error(
        "fault-impossible",
        "the fault could not be injected",
        why=why,
        help="holdfast chaos --list   (others)",
    )


# ── what is done ──────────────────────────────────────────────────────────────────────────────


def _signals(number: signal.Signals, whom: Callable[[Victim], int]) -> Callable[[Victim], None]:
    return lambda victim: os.kill(whom(victim), number)


def _stops(whom: Callable[[Victim], int]) -> Callable[[Victim], Undo]:
    def stop(victim: Victim) -> Undo:
        process = psutil.Process(whom(victim))
        process.suspend()

        def resume() -> str:
            with contextlib.suppress(psutil.Error):  # it is known by more than its number
                process.resume()
                return f"process {process.pid} is resumed"
            return ""

        return resume

    return stop


def _worker(victim: Victim) -> int:
    return victim.pid


def _agent(victim: Victim) -> int:
    return victim.node.pid


def _forkserver(victim: Victim) -> int:
    children = psutil.Process(victim.node.pid).children()
    return next(c.pid for c in children if "holdfast.agent.forkserver" in c.cmdline())


def _cut(victim: Victim) -> None:
    """Every TCP connection of the worker, as when a switch resets them."""
    program = shutil.which("ss")
    if program is None:
        raise FileNotFoundError(errno.ENOENT, "`ss`, which cuts connections, is not installed")
    for found in psutil.Process(victim.pid).net_connections("tcp"):
        if found.status == psutil.CONN_ESTABLISHED and found.raddr:
            ports = ("sport", "=", f":{found.laddr.port}", "dport", "=", f":{found.raddr.port}")
            subprocess.run([program, "-K", *ports], capture_output=True, timeout=10, check=True)
    left = psutil.Process(victim.pid).net_connections("tcp")
    if any(found.status == psutil.CONN_ESTABLISHED and found.raddr for found in left):
        raise PermissionError(errno.EPERM, "`ss -K` is not supported by this kernel")


def _part(victim: Victim) -> Undo:
    """The node of this worker and the others are out of each other's reach; not out of ours."""
    return Partition(*_sides(victim)).heal


def _stop_machine(victim: Victim) -> Undo:
    """Of all that the node has, as the other nodes and the controller see it."""
    here, there = _sides(victim)
    controller = read_address(victim.folder)
    ours = {controller.pid} if controller is not None else set[int]()
    return StoppedMachine(here, there | ours).go_on


def _sides(victim: Victim) -> tuple[set[int], set[int]]:
    """The processes of the node, and those of the others."""
    node_of = Search(victim.folder, {victim.node.node}).processes()
    here = {pid for pid, node in node_of.items() if node == victim.node.node}
    return here, node_of.keys() - here


def _fill(place: Path) -> Undo:
    """Take all the room that is left."""
    room = os.statvfs(place)
    free = room.f_bavail * room.f_frsize
    if free > FILL_BYTES_MAX:
        size = f"{free / (1 << 30):.1f} GiB are free in {place}"
        raise OSError(errno.EFBIG, f"{size}; only small disks are filled, of up to 1 GiB")
    path = place / ".holdfast-chaos"
    with path.open("wb") as file, contextlib.suppress(OSError):
        os.posix_fallocate(file.fileno(), 0, max(1, free))
        while True:
            os.write(file.fileno(), b"\0" * 4096)

    def empty() -> str:
        path.unlink(missing_ok=True)
        return f"{path} is removed"

    return empty


def _fill_place(victim: Victim) -> Undo:
    """The first of its checkpoint places that is there, else the folder of the job."""
    job = load_job(victim.folder)
    places = map(Path, job.checkpoints.on_laptop(job.name).values())
    return _fill(next((place for place in places if place.is_dir()), victim.folder))


def _limit(victim: Victim) -> Undo:
    """A control group in which there is no memory left to take."""
    why: OSError | None = None
    for root, limit in GROUPS:
        group = root / f"holdfast-chaos-{victim.pid}"
        try:
            group.mkdir()
            (group / limit).write_text(str(LIMIT_BYTES))
            (group / "cgroup.procs").write_text(str(victim.pid))
        except OSError as error:
            why = error
            with contextlib.suppress(OSError):
                group.rmdir()
            continue
        return lambda: _ungroup(group, root)
    raise why or OSError(errno.ENOENT, "no control groups are mounted")


def _ungroup(group: Path, root: Path) -> str:
    with contextlib.suppress(OSError):
        for pid in (group / "cgroup.procs").read_text().split():
            (root / "cgroup.procs").write_text(pid)
        group.rmdir()
        return "the limit is lifted"
    return f"{group} could not be removed"


S = signal.Signals
FAULTS: dict[str, ChaosFault] = {
    "SIGKILL": ChaosFault("SIGKILL to a worker", ("worker-killed",), _signals(S.SIGKILL, _worker)),
    "SIGTERM": ChaosFault("SIGTERM to a worker", ("worker-killed",), _signals(S.SIGTERM, _worker)),
    "SIGSEGV": ChaosFault("SIGSEGV to a worker", ("worker-crashed",), _signals(S.SIGSEGV, _worker)),
    "SIGBUS": ChaosFault("SIGBUS to a worker", ("worker-crashed",), _signals(S.SIGBUS, _worker)),
    "abort": ChaosFault("SIGABRT to a worker", ("worker-aborted",), _signals(S.SIGABRT, _worker)),
    "SIGSTOP": ChaosFault("a worker is stopped", ("hang",), _stops(_worker), lasts=True),
    "out of memory": ChaosFault(
        "a memory limit on a worker, below what it needs (control groups)",
        ("out-of-memory", "worker-killed"),
        _limit,
        lasts=True,
    ),
    "connection cut": ChaosFault(
        "all TCP connections of a worker are cut (`ss -K`)",
        ("peer-lost", "worker-exception", "environment", "worker-aborted"),
        _cut,
        has_rank=False,
    ),
    "partition": ChaosFault(
        "the node of a worker and the other nodes cannot reach each other (`ip rule`)",
        ("hang", "peer-lost", "environment"),
        _part,
        has_rank=False,
        lasts=True,
    ),
    "machine stopped": ChaosFault(
        "every process of a node is stopped, and nothing that is sent to it is acknowledged",
        ("node-lost",),
        _stop_machine,
        has_rank=False,
        lasts=True,
    ),
    "disk full": ChaosFault(
        "the disk of the job's checkpoints, or of its folder, is filled (up to 1 GiB)",
        ("disk-full", "environment"),
        _fill_place,
        has_rank=False,
        lasts=True,
    ),
    "/dev/shm full": ChaosFault(
        "/dev/shm is filled (up to 1 GiB)",
        ("worker-crashed", "disk-full", "worker-killed", "out-of-memory"),
        lambda _victim: _fill(Path("/dev/shm")),
        has_rank=False,
        lasts=True,
    ),
    "agent killed": ChaosFault(
        "SIGKILL to the agent of a node",
        ("node-lost",),
        _signals(S.SIGKILL, _agent),
        has_rank=False,
    ),
    "agent stopped": ChaosFault(
        "the agent of a node is stopped", ("node-lost",), _stops(_agent), has_rank=False, lasts=True
    ),
    "forkserver killed": ChaosFault(
        "SIGKILL to the forkserver of a node",
        ("forkserver-died", "node-lost"),
        _signals(S.SIGKILL, _forkserver),
        has_rank=False,
    ),
}
"""By name, as `holdfast chaos --list` shows them; benchmarks/faults.py does the same."""
