"""Limits of the shell (`ulimit`), and a machine, that are too small for a job, told before anything
starts.

Later they would show as odd errors in odd places: a forkserver that cannot open a pipe, a journal
that seems to be on a full disk, a snapshot that does not fit into memory.
"""

import os
import resource

import psutil

from holdfast.agent.environment import worker_count
from holdfast.errors import Error
from holdfast.spec import Job

FILES_MIN = 64  # that Python, torch and our own sockets have open at once
FILES_PER_NODE = 4  # in the controller: its connection, and a descriptor that tells of its end
FILES_PER_WORKER = 16  # in the agent: pipes and memory of a worker, of the warm one, while it forks
NODE_BYTES = 64 << 20  # that agent, storage process and forkserver have of their own, at least
WORKER_BYTES = 4 << 20  # and each worker
FILE_BYTES_MIN = 64 * 1024 * 1024  # journal, logs, and memory of snapshots, which counts as a file


def require_limits(job: Job) -> None:
    """Raise `Error` limit-too-small if this job cannot run below the limits of this shell."""
    nodes = job.nodes.count + job.nodes.spare_count
    workers = worker_count(job, os.environ)
    files = max(FILES_MIN, FILES_MIN // 2 + max(FILES_PER_NODE * nodes, FILES_PER_WORKER * workers))
    _require(resource.RLIMIT_NOFILE, files, "open files", "-n", 1)
    _require(resource.RLIMIT_FSIZE, FILE_BYTES_MIN, "the size of a file, in KiB", "-f", 1024)


def require_memory(job: Job) -> None:
    """Raise `Error` machine-too-small if the nodes of this job, which are processes of this
    machine, have no room in its memory even before they train anything."""
    nodes = job.nodes.count + job.nodes.spare_count
    needed = nodes * (NODE_BYTES + worker_count(job, os.environ) * WORKER_BYTES)
    has = psutil.virtual_memory().total
    if needed > has:
        raise Error(
            "machine-too-small",
            f"{nodes} nodes need {needed / 2**30:.1f} GiB of memory here, and the machine has "
            f"{has / 2**30:.1f} GiB",
            why="each is an agent, a storage process, a forkserver and workers on this machine",
            help="ask for fewer (nodes.count, --nnodes), or run it on a cluster: --on kubernetes",
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
