"""A worker of an MPI job: it holds the place of one rank, which `mpirun` starts.

`mpirun` is a child of the worker with rank 0. It is given a host per node and, in place of ssh,
`mpi_launch`, which asks the first worker of each node to start MPI's daemon there. The daemon
starts the ranks of its node, each by way of `mpi_rank`: that asks the worker with the same rank
what it finds there (environment, output, progress page, snapshot memory), and tells it how the
program has ended. The worker then ends in the same way, before MPI hears of it: so a rank that dies
is the first that is gone for Holdfast as well, on its own node and with its own signal or status.

`python -m holdfast.agent.frameworks.mpi IMPLEMENTATION OPTIONS... -- PROGRAM ARGUMENTS...`
"""

import json
import os
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

from holdfast import meeting
from holdfast.agent import node_memory, processes
from holdfast.agent.frameworks import mpi_launch, mpi_rank
from holdfast.agent.storage.places import ADDRESS

FDS = ("PAGE", "ARENA", "STORAGE_PAGE")  # of a worker, by the middle of the variable's name
PROGRAMS = {
    "OpenMPI": ("mpirun.openmpi", "mpirun"),
    "MPICH": ("mpirun.mpich", "mpiexec.hydra", "mpirun"),
}
BACKED = (
    *("OMPI_MCA_btl_vader_backing_directory", "OMPI_MCA_btl_sm_backing_directory"),
    *("OMPI_MCA_osc_sm_backing_directory", "OMPI_MCA_osc_rdma_backing_directory"),
    *("OMPI_MCA_orte_tmpdir_base", "PRTE_MCA_prte_tmpdir_base"),
)
"""Folders of shared memory and of sessions: of OpenMPI 4, and of 5, which renamed some."""
MISSING = 127  # as in a shell


class Wish(NamedTuple):
    """What the command line says."""

    implementation: str
    options: list[str]
    program: list[str]

    @staticmethod
    def of(words: list[str]) -> "Wish":
        """The words after the module's name."""
        at = words.index("--")
        return Wish(words[0], words[1:at], words[at + 1 :])


def main() -> NoReturn:
    """Until the rank has ended; then likewise."""
    wish = Wish.of(sys.argv[1:])
    environ = os.environ
    seat = meeting.Seat.of(environ)
    _keep_together(environ["HOLDFAST_NODE"])
    local, per_node = int(environ["LOCAL_RANK"]), int(environ["LOCAL_WORLD_SIZE"])
    places = f"holdfast-mpi-{environ['HOLDFAST_NODE']}-{seat.attempt}-{os.getppid()}"
    place = _place(f"{places}-{local}")
    said = ""
    if local == 0:
        host = environ[ADDRESS].rpartition(":")[0]
        said = f"{host}:{_obey_launches(host.strip('[]'), seat.key, places)}"
    met = meeting.meet(seat, said)
    if seat.rank == 0:
        _mpirun(wish, seat, dict(enumerate(met.said[::per_node])), per_node)
    _end_as(_seated(place, wish.implementation))


def _keep_together(node: str) -> None:
    """What OpenMPI would leave behind where it is killed lies in a folder that goes with the node.
    Variables that the job has set stay."""
    if (folder := node_memory.made(node)) is not None:
        for name in BACKED:
            os.environ.setdefault(name, str(folder))


def _place(name: str) -> socket.socket:
    """Where the rank will ask for what it needs."""
    place = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    place.bind(f"\0{name}")
    place.listen()
    return place


def _seated(place: socket.socket, implementation: str) -> str:
    """Give the rank what is its own; how it has ended. Whoever is another user gets nothing."""
    while True:
        sock, _ = place.accept()
        _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid == os.getuid():
            break
        sock.close()
    named = [name for name in FDS if f"HOLDFAST_{name}_FD" in os.environ]
    fds = [1, 2, *(int(os.environ[f"HOLDFAST_{name}_FD"]) for name in named)]
    env = {mpi_rank.ABI: implementation.lower(), **os.environ}
    told = json.dumps({"env": env, "fds": named, "cwd": os.getcwd()})
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, mpi_rank.PACKET_BYTES)
    socket.send_fds(sock, [told.encode()], fds)
    end = sock.recv(64).decode()
    _open.append(sock)  # the rank goes when this process has: see `mpi_rank`
    return end or f"signal {int(signal.SIGKILL)}"


_open: list[socket.socket] = []
_launcher: list[subprocess.Popen[bytes]] = []
_daemons: list[threading.Thread] = []  # while they run here


def _end_as(end: str) -> NoReturn:
    """As the rank has ended; where all is well, not before what MPI still runs here."""
    kind, _, number = end.partition(" ")
    if kind == "signal":
        signal.signal(int(number), signal.SIG_DFL) if int(number) != signal.SIGKILL else None
        os.kill(os.getpid(), int(number))
    if int(number) == 0:
        for sock in _open:
            sock.close()
        for launcher in _launcher:
            number = str(launcher.wait())
        for daemon in _daemons:
            daemon.join()
    os._exit(int(number) % 256)


# ── mpirun, at rank 0 ──


def _mpirun(wish: Wish, seat: meeting.Seat, nodes: dict[int, str], per_node: int) -> None:
    """Start it; if it ends badly, so does this process."""
    name = next(filter(shutil.which, PROGRAMS[wish.implementation]), None)
    if name is None:
        names = " or ".join(PROGRAMS[wish.implementation])
        print(f"holdfast: no {names}: {wish.implementation} is not installed", file=sys.stderr)
        os._exit(MISSING)
    hosts = {f"node-{number}": address for number, address in nodes.items()}
    # Where this process is killed the folder stays: with the job, or in a pod.
    folder = Path(tempfile.mkdtemp(prefix="mpi-", dir=os.environ.get("HOLDFAST_JOB_DIR")))
    separator = " slots=" if wish.implementation == "OpenMPI" else ":"
    (folder / "hosts").write_text("".join(f"{host}{separator}{per_node}\n" for host in hosts))
    rank = (sys.executable, "-P", "-m", mpi_rank.__name__)
    shared = len({address.rpartition(":")[0] for address in hosts.values()}) < len(hosts)
    given = _options(wish, folder, shared=shared)
    command = [name, *given, *wish.options, "-np", str(seat.size), *rank, *wish.program]
    env = {**os.environ, mpi_launch.HOSTS: json.dumps(hosts)}
    if os.geteuid() == 0:
        env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    parent = os.getpid()
    launcher = subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        preexec_fn=partial(processes.die_with_parent, parent, signal.SIGKILL),
    )
    _launcher.append(launcher)
    threading.Thread(target=_watch, args=(launcher, folder), daemon=True).start()


def _options(wish: Wish, folder: Path, *, shared: bool) -> list[str]:
    """Which hosts there are, and how a daemon is started there; `shared`: some are one machine."""
    launch = f"{shlex.quote(sys.executable)} -m {mpi_launch.__name__}"
    if wish.implementation == "OpenMPI":
        # Names of nodes are ours and mean nothing to a resolver; ranks are in the order of nodes.
        ssh = ("--mca", "plm_rsh_agent", launch, "--mca", "plm_rsh_no_tree_spawn", "1")
        bind = () if "--bind-to" in wish.options else ("--bind-to", "none")
        # It names its shared memory by machine and rank on the node: two nodes would take the same.
        apart = ("--mca", "btl", "^vader,sm") if shared else ()
        return ["--hostfile", str(folder / "hosts"), *ssh, "--map-by", "slot", *bind, *apart]
    script = folder / "launch"  # Hydra takes the name of a program only
    script.write_text(f'#!/bin/sh\nexec {launch} "$@"\n')
    script.chmod(0o700)
    own = os.environ[ADDRESS].rpartition(":")[0].strip("[]")
    start = ("-launcher", "ssh", "-launcher-exec", str(script), "-localhost", own)
    return ["-f", str(folder / "hosts"), *start]


def _watch(launcher: "subprocess.Popen[bytes]", folder: Path) -> None:
    """A rank that has failed is told of by its own worker, before `mpirun` knows. What it says
    itself matters where it could not start them."""
    status = launcher.wait()
    shutil.rmtree(folder, ignore_errors=True)
    if status != 0:
        os._exit(status % 256)


# ── daemons, at the first worker of each node ──


def _obey_launches(host: str, key: bytes, places: str) -> int:
    """Start what `mpirun` wants here; the port on which it may ask."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, 0), family=family)

    def serve() -> None:
        while True:
            sock, _ = listener.accept()
            told = (sock, key, places)
            _daemons.append(threading.Thread(target=mpi_launch.obey, args=told, daemon=True))
            _daemons[-1].start()

    threading.Thread(target=serve, daemon=True).start()
    return int(listener.getsockname()[1])


if __name__ == "__main__":
    main()
