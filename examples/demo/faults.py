"""Break a running job on purpose, with the same signal a kernel or a dying machine would use.

Everything is read from what Holdfast shows to everybody: `status --json` for the roles of the
nodes, the job's folder for their processes and logs.
"""

import json
import re
import signal
from pathlib import Path

import psutil

from holdfast.status import JobStatus


def kill_worker(folder: Path, status: JobStatus, rank: int) -> str:
    """SIGKILL the worker with this rank of the running attempt; what was done, in words.

    Raises RuntimeError if its node does not run such a process.
    """
    log = folder / "logs" / f"attempt-{status.attempt}" / f"rank-{rank}.log"
    said = re.search(rf"rank {rank} of \d+, pid (\d+)", log.read_text())
    node = node_of_rank(status, rank)
    worker = next((p for p in _node(folder, node) if said and p.pid == int(said[1])), None)
    if worker is None:
        raise RuntimeError(f"no process of {node} is the worker that wrote {log}")
    worker.send_signal(signal.SIGKILL)
    return f"kill -9 {worker.pid}: the worker with rank {rank}, on {node}"


def kill_node(folder: Path, node: str) -> str:
    """SIGKILL every process of a node, its agent first; what was done, in words."""
    processes = _node(folder, node)
    for process in processes:
        process.send_signal(signal.SIGKILL)
    return f"kill -9 {' '.join(str(p.pid) for p in processes)}: all that runs on {node}"


def node_of_rank(status: JobStatus, rank: int) -> str:
    """The name of the node with this node rank; with one worker each, that is the worker's too."""
    return next(node.name for node in status.nodes if node.rank == rank)


def _node(folder: Path, name: str) -> list[psutil.Process]:
    pid = json.loads((folder / "nodes" / name / "agent.json").read_text())["pid"]
    agent = psutil.Process(pid)
    return [agent, *agent.children(recursive=True)]
