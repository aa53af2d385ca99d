"""Limits of the shell (`ulimit`), and a machine, that are too small for a job, told before anything
starts.

Later they would show as odd errors in odd places: a forkserver that cannot open a pipe, a journal
that seems to be on a full disk, a snapshot that does not fit into memory.
"""

import os
import resource
import socket

import psutil

from holdfast.agent.environment import worker_count
from holdfast.counts import count
from holdfast.errors import Error
from holdfast.files import require_proc
from holdfast.spec import Job

FILES_MIN = 64  # that Python, torch and our own sockets have open at once
FILES_PER_NODE = 4  # in the controller: its connection, and a descriptor that tells of its end
FILES_PER_WORKER = 16  # in the agent: pipes and memory of a worker, of the warm one, while it forks
NODE_BYTES = 64 << 20  # that agent, storage process and forkserver have of their own, at least
WORKER_BYTES = 4 << 20  # and each worker, or one that waits
PYTHON_BYTES = 12 << 20  # a worker that is Python, before its script does anything
TASKS_MIN = 8  # processes and threads that run at once: the controller with its threads
TASKS_PER_NODE = 12  # agent, storage process and forkserver, of which some have threads
TASKS_PER_WORKER = 2  # itself, and the one that waits
EACH_PROCESSOR = 128  # workers; of 500 each none had started after ten minutes
ADDRESS_BYTES_MIN = 384 << 20  # with the stacks of threads, and what malloc and OpenBLAS set aside
TORCH_ADDRESS_BYTES_MIN = 1 << 30  # and torch's libraries
FILE_BYTES_MIN = 64 * 1024 * 1024  # journal, logs, and memory of snapshots, which counts as a file


def require_limits(job: Job) -> None:
    """Raise `Error` limit-too-small if this job cannot run below the limits of this shell, and
    platform-unsupported if its processes could not be found."""
    require_proc()
    nodes = job.nodes.count + job.nodes.spare_count
    workers = worker_count(job, os.environ)
    files = max(FILES_MIN, FILES_MIN // 2 + max(FILES_PER_NODE * nodes, FILES_PER_WORKER * workers))
    _require(resource.RLIMIT_NOFILE, files, "open files", "-n", 1)
    address = TORCH_ADDRESS_BYTES_MIN if job.uses_torch else ADDRESS_BYTES_MIN
    _require(resource.RLIMIT_AS, address, "virtual memory, in KiB", "-v", 1024)
    _require(resource.RLIMIT_FSIZE, FILE_BYTES_MIN, "the size of a file, in KiB", "-f", 1024)
    _require_tasks(TASKS_MIN + nodes * (TASKS_PER_NODE + TASKS_PER_WORKER * workers))


def _require_tasks(needed: int) -> None:
    """The kernel counts all that the user runs already, threads too, and limits nobody who may
    administrate the machine."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if os.geteuid() == 0 or soft == resource.RLIM_INFINITY:
        return
    used = sum(_tasks_of(process) for process in psutil.process_iter(["uids", "num_threads"]))
    if soft < used + needed:
        raise no_more_tasks(f"it allows {soft}, {used} are in use, and the job needs {needed} more")


def _tasks_of(process: psutil.Process) -> int:
    uids, threads = process.info["uids"], process.info["num_threads"]
    return int(threads or 0) if uids is not None and uids.real == os.getuid() else 0


def no_more_tasks(why: str) -> Error:
    """The error for a user who may start no more processes or threads."""
    return Error(
        "limit-too-small",
        "the limit on processes and threads of this user (ulimit -u) is too small",
        why=why,
        help="ulimit -S -u 4096   (or end other processes: ps -LU $(id -u))",
    )


def require_room(job: Job) -> None:
    """Raise `Error` machine-too-small if the nodes and workers of this job, which are processes of
    this machine, have no room in its memory, or on its processors, even before they train."""
    nodes, workers = job.nodes.count + job.nodes.spare_count, worker_count(job, os.environ)
    each = WORKER_BYTES if job.command is not None else PYTHON_BYTES
    waiting = WORKER_BYTES if job.command is None and job.warm.mode != "off" else 0
    needed = nodes * (NODE_BYTES + workers * (each + waiting))
    has, processors = psutil.virtual_memory().total, os.cpu_count() or 1
    if needed > has:
        raise _too_small(
            f"{count(nodes, 'node')} with {count(workers, 'worker')} each: that takes "
            f"{needed / 2**30:.1f} GiB of memory here, and the machine has {has / 2**30:.1f} GiB"
        )
    if workers > EACH_PROCESSOR * processors:
        few = count(processors, "processor")
        raise _too_small(f"{workers} workers of a node would share {few} here")


def require_loopback(address: str) -> None:
    """Raise `Error` platform-unsupported if processes of this machine cannot reach each other here:
    agents would try again and again, and be replaced, before anybody said so."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        try:
            route.connect((address, 9))  # sends nothing
        except OSError as error:
            raise Error(
                "platform-unsupported",
                "the loopback interface cannot be used",
                why=f"connecting to {address}: {error.strerror}; controller, agents and workers of "
                "a local job reach each other there",
                help="ip link set lo up   (a network namespace begins without it: unshare -n)",
            ) from error


def _too_small(what: str) -> Error:
    return Error(
        "machine-too-small",
        what,
        why="each node is an agent, a storage process, a forkserver and workers on this machine",
        help="ask for fewer (--nnodes, --nproc-per-node), or run it on a cluster: --on kubernetes",
    )


def _require(kind: int, needed: int, what: str, flag: str, unit: int) -> None:
    soft, hard = resource.getrlimit(kind)
    enough = _allows(hard, needed)
    if _allows(soft, needed):
        return
    soft, needed = soft // unit, needed // unit
    remedy = f"ulimit -S {flag} {needed}"
    raise Error(
        "limit-too-small",
        f"the limit on {what} (ulimit {flag}) is {soft}, and the job needs {needed}",
        why="every process of the job inherits it from this shell",
        help=remedy
        if enough
        else f"{remedy}   (in another shell: the hard limit of this shell is lower)",
    )


def _allows(limit: int, needed: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= needed
