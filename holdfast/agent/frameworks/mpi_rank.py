"""Between MPI's daemon and the program of one rank: `mpi_rank PROGRAM ARGUMENTS...`.

It asks the worker that holds this rank's place for environment, output and shared memory, starts
the program, and says how that has ended. It goes only when the worker has gone, so Holdfast knows
of a death before MPI does; and the program goes with it, as it goes with the daemon.
"""

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

PACKET_BYTES = 1 << 20
ABI = "MPI4PY_MPIABI"  # which of several libraries mpi4py loads
_FDS = 8
_LOCAL = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_RANK = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")
_PLACES = b"HOLDFAST_MPI_PLACES="


def main() -> None:
    """Be the rank, seen from MPI."""
    from holdfast.agent.processes import die_with_parent

    daemon = os.getppid()
    die_with_parent(daemon, signal.SIGKILL)
    worker = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker.connect(f"\0{_places(daemon)}-{_first(_LOCAL)}")
    data, fds, _, _ = socket.recv_fds(worker, PACKET_BYTES, _FDS)
    told = json.loads(data)
    if told["env"]["RANK"] != _first(_RANK):
        sys.exit(f"holdfast: MPI's rank {_first(_RANK)} is not rank {told['env']['RANK']} here")
    child = os.fork()
    if child == 0:
        die_with_parent(os.getppid(), signal.SIGKILL)
        _become(told, fds)
    for sig in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sig, lambda number, _frame: os.kill(child, number))
    for fd in fds:
        os.close(fd)
    _, status = os.waitpid(child, 0)
    dead_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    end = f"signal {dead_by}" if dead_by else f"exit {os.WEXITSTATUS(status)}"
    worker.send(end.encode())
    worker.recv(1)  # end of file: the worker has ended, or knows that all is well
    if dead_by:
        signal.signal(dead_by, signal.SIG_DFL) if dead_by != signal.SIGKILL else None
        os.kill(os.getpid(), dead_by)
    os._exit(os.WEXITSTATUS(status))


def _become(told: Any, fds: list[int]) -> None:
    for number, fd in zip((1, 2), fds, strict=False):
        os.dup2(fd, number)
        os.close(fd)
    env = {**os.environ, **told["env"]}
    for name, fd in zip(told["fds"], fds[2:], strict=True):
        os.set_inheritable(fd, True)
        env[f"HOLDFAST_{name}_FD"] = str(fd)
    os.chdir(told["cwd"])
    program = sys.argv[1:]
    try:
        os.execvpe(program[0], program, env)
    except OSError as error:
        print(f"holdfast: cannot run {program[0]!r}: {error.strerror}", file=sys.stderr)
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _places(daemon: int) -> str:
    """The daemon was started by the worker, which has told it; MPI may have changed ours since."""
    for entry in Path(f"/proc/{daemon}/environ").read_bytes().split(b"\0"):
        if entry.startswith(_PLACES):
            return entry.removeprefix(_PLACES).decode()
    sys.exit("holdfast: not started by a launch agent of Holdfast")


def _first(names: tuple[str, ...]) -> str:
    """The value of the first variable that is set."""
    return next((os.environ[name] for name in names if name in os.environ), "0")


if __name__ == "__main__":
    main()
