"""A Ray cluster of several machines on this one, for tests: each a raylet of its own with one CPU.

A program, so that Ray is not imported where tests fork. It prints the cluster's address and the
number of its raylet's process for each machine; then each line of its input is an order, and gets
one line in answer: `add` a machine, or `left`: what actors and placement groups there are. At the
end of its input the cluster ends.
"""

import contextlib
import functools
import inspect
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.patience import until
from tests.tidy.source import ROOT

UNTOLD = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
PORTS = range(10_000, int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]))
_dice = random.SystemRandom()  # suites that run at the same time share nothing
STORE_BYTES = 80 * 1024 * 1024
ONLY_WHAT_IS_ASKED_FOR = {  # each worker that Ray starts ahead takes a second of a core
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
}


class RayMachines:
    """The program, from outside."""

    def __init__(self, machines: int) -> None:
        self._folder = tempfile.mkdtemp(prefix="ray-")  # short: there are sockets in it
        Path(self._folder, "ray").mkdir()  # Ray writes its address there, and does not make it
        self._errors = Path(self._folder, "errors")
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __spec__.name, str(machines)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                env={**os.environ, **ONLY_WHAT_IS_ASKED_FOR, "RAY_TMPDIR": self._folder},
                text=True,
            )
        told = self._answer()
        self.address: str = told["address"]
        self.raylets: list[int] = told["raylets"]

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # Ray prints, too
                return json.loads(line)
        raise AssertionError(f"the Ray cluster ended:\n{self._errors.read_text()}")

    def ask(self, order: str) -> Any:
        """Its answer to an order."""
        assert self._process.stdin is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def main() -> None:
    """Run until the end of the input."""
    import ray
    from ray._private import services
    from ray.cluster_utils import Cluster

    services.start_api_server = lambda *_, **__: (None, None)  # as where it cannot be started
    services.get_node = _patiently(services.get_node)
    services.start_raylet = _unhurried(services.start_raylet)
    shape = {"num_cpus": 1, "object_store_memory": STORE_BYTES}
    head = {**shape, "include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    machines = [cluster.head_node]
    machines += [cluster.add_node(**shape) for _ in range(int(sys.argv[1]) - 1)]
    raylets = [node.all_processes["raylet"][0].process.pid for node in machines]
    _say(address=cluster.address, raylets=raylets)
    ray.init(address=cluster.address, namespace="tests", log_to_driver=False)
    for line in sys.stdin:
        if line.strip() == "add":
            cluster.add_node(**shape)
            _say()
        else:
            actors = ray.util.list_named_actors(all_namespaces=True)
            states = [group["state"] for group in ray.util.placement_group_table().values()]
            _say(actors=actors, groups=[state for state in states if state != "REMOVED"])
    ray.shutdown()
    cluster.shutdown()


def _port() -> int:
    """A free one, none of those that the kernel gives to connections."""
    while True:
        with socket.socket() as server, contextlib.suppress(OSError):
            server.bind(("", _dice.choice(PORTS)))
            return int(server.getsockname()[1])


def _unhurried(start_raylet: Callable[..., Any]) -> Callable[..., Any]:
    """A raylet ends unless its agents have told their ports within a quarter of a minute. So it is
    told before: one of them, and that there are no others, as where Ray is installed without."""

    @functools.wraps(start_raylet)
    def start(*words: Any, **how: Any) -> Any:
        given = inspect.signature(start_raylet).bind(*words, **how)
        for name in UNTOLD:
            place = Path(given.arguments["session_dir"], f"{name}_{given.arguments['node_id']}")
            place.write_text("-1")
        given.arguments["runtime_env_agent_port"] = _port()
        return start_raylet(*given.args, **given.kwargs)

    return start


def _patiently(get_node: Callable[..., Any]) -> Callable[..., Any]:
    """Ray gives a node half a minute to start."""

    def get(*words: Any) -> Any:
        found: list[Any] = []

        def is_there() -> bool:
            with contextlib.suppress(RuntimeError):
                found.append(get_node(*words))
            return bool(found)

        until(is_there)
        return found[0] if found else get_node(*words)

    return get


def _say(**told: object) -> None:
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
