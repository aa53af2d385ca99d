"""What runs on a machine of Ray: an actor that has an agent as its child.

It starts the agent, says how it ended, and kills what a node has left. The agent dies with its
actor, so that what Ray takes back is free; the actor is detached, so that neither dies with the
controller.
"""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from holdfast.agent.interfaces import socket_variables
from holdfast.drivers.fencing import Fenced, fence_nodes
from holdfast.drivers.nodes import ended_words, log_of, spawn_agent

AFTER_S = 60.0  # for a controller to ask how the agent ended; then the actor goes, too
OF_RAY = ("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_LD_PRELOAD_ON_WORKERS")  # of a process of Ray's own


class Placed(NamedTuple):
    """Where an agent runs."""

    pid: int
    ray_node: str  # id of the machine, as Ray has it
    group: str  # whose bundle it has


class AgentActor:
    """The parent of one agent."""

    def __init__(self, folder: str, node: str, name: str, told: Mapping[str, str]) -> None:
        self._folder, self._node, self._name = Path(folder), node, name
        self._told = dict(told)
        self._child: subprocess.Popen[bytes] | None = None
        self._group = ""

    def start(self, group: str) -> Placed:
        """Start the agent in a bundle of this group, if it does not run already. Raises `OSError`
        where the job's folder is not to be seen."""
        import ray

        if self._child is None:
            if not (self._folder / "token").exists():
                where, home = socket.gethostname(), self._folder.parents[1]
                raise OSError(
                    f"{self._folder} does not exist on {where}: HOLDFAST_HOME ({home}) has to be "
                    "on a file system that all machines of the Ray cluster share"
                )
            self._child = self._spawn(ray.util.get_node_ip_address())
            self._group = group
        return Placed(self._child.pid, ray.get_runtime_context().get_node_id(), self._group)

    def _spawn(self, address: str) -> "subprocess.Popen[bytes]":
        inherited = {k: v for k, v in os.environ.items() if k not in OF_RAY}
        return spawn_agent(
            self._folder, self._node, self._name,
            ["--address", address, "--dies-with", str(os.getpid())],
            {**inherited, **socket_variables(address), **self._told},
        )  # fmt: skip

    def wait(self) -> str:
        """How the agent ended."""
        assert self._child is not None, "nobody has started it"
        how = ended_words(self._child.wait(), log_of(self._folder, self._name))
        threading.Thread(target=_go_later, daemon=True).start()
        return how

    def fence(self) -> Fenced:
        """Kill every process of the node on this machine."""
        return fence_nodes(self._folder, {self._node})


def _go_later() -> None:
    time.sleep(AFTER_S)
    sys.stdout.flush()
    os._exit(0)
