"""Break a running job on purpose, with the same signal a kernel or a dying machine would use.

Whom to hit is read from what Holdfast shows to everybody: `status --json` names the workers of each
node, and the node's folder names its agent, whose descendants are all that runs there.
"""

import json
import os
import signal
from pathlib import Path

import psutil

from holdfast.status import JobStatus, NodeStatus


def kill_worker(status: JobStatus, rank: int) -> str:
    """SIGKILL the worker with this rank (one worker a node); what was done, in words."""
    node = member(status, rank)
    os.kill(node.pids[0], signal.SIGKILL)
    return f"kill -9 {node.pids[0]}: the worker with rank {rank}, on {node.name}"


def kill_node(folder: Path, status: JobStatus, rank: int) -> str:
    """SIGKILL every process of the node with this node rank; what was done, in words."""
    node = member(status, rank)
    agent = json.loads((folder / "nodes" / node.name / "agent.json").read_text())["pid"]
    processes = [psutil.Process(agent), *psutil.Process(agent).children(recursive=True)]
    for process in processes:
        process.kill()
    pids = " ".join(str(process.pid) for process in processes)
    return f"kill -9 {pids}: all that runs on {node.name}, agent, worker and the rest"


def member(status: JobStatus, rank: int) -> NodeStatus:
    """The node with this node rank."""
    return next(node for node in status.nodes if node.rank == rank)
