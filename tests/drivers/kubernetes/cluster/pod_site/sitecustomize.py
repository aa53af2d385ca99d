"""What a Python process of a pod finds different from a real one: its network, and its patience.

All pods share the loopback device of one machine, so two that listen on the same port of every
address would meet: who listens everywhere listens at the pod. Names are those of the cluster's DNS
and no others, and a pod knows its own at once, as `/etc/hosts` has it. The kubelet puts this folder
on the path, and the pod's address and name in variables. Libraries in C ask nobody here, so they
see no names, and a store that a worker serves listens everywhere: it gets a port that nobody has.

Pauses between two looks are shorter than in production. They are no promise, and a test that waits
for the next look proves nothing by it; how often is looked does not change what is seen.
"""

import importlib.machinery
import ipaddress
import json
import os
import socket
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

ADDRESS = os.environ.get("FAKE_POD_IP")


def _reserve(address: str, _ports: tuple[int, ...] = ()) -> Any:
    from holdfast.events import Store

    with socket.create_server((address, 0)) as sock:
        return Store(host=address, port=sock.getsockname()[1], hosted=False)


CHANGES: dict[str, dict[str, Any]] = {
    "holdfast.agent.rendezvous_stores": {"reserve": _reserve},
    "holdfast.agent.launcher": {"ASK_EVERY_S": 0.2},
    "holdfast.drivers.kubernetes.driver": {"RETRY_S": 0.2},
    "holdfast.drivers.kubernetes.doubt": {"ASK_S": 0.3, "STAND_ASIDE_S": 4.0},
    "holdfast.drivers.kubernetes.removal": {"FENCED_S": 0.5, "RETRY_S": 0.2},
    "holdfast.drivers.kubernetes.supply": {"RETRY_S": 0.2},
    "holdfast.drivers.kubernetes.lease": {"DURATION_S": 8, "SURE_S": 6.0, "POLL_S": 0.3},
    "holdfast.drivers.kubernetes.record": {"LOOK_S": 0.1, "STEADY_S": 0.5},
}
NAME = os.environ.get("FAKE_POD_NAME", "")
_bind = socket.socket.bind
_getaddrinfo = socket.getaddrinfo


def adopt() -> None:
    """This process was forked, and is of the pod that its environment names."""
    global ADDRESS, NAME
    ADDRESS, NAME = os.environ.get("FAKE_POD_IP"), os.environ.get("FAKE_POD_NAME", "")


def _bind_here(self: socket.socket, address: Any) -> None:
    """`bind`, but of the pod's address where all are meant; of IPv6 there is none."""
    if self.family == socket.AF_INET and address[0] in ("", "0.0.0.0"):
        address = (ADDRESS, *address[1:])
    elif self.family == socket.AF_INET6 and address[0] in ("", "::"):
        address = ("::1", 0, *address[2:])
    _bind(self, address)


def _addresses(host: str) -> list[str] | None:
    """What a name of the cluster means, [] if it is not known; None for what is no name of it."""
    if host in ("", "localhost") or _is_address(host):
        return None
    if host == NAME:
        return [ADDRESS or ""]
    try:
        with open(os.environ["FAKE_NAMES"], encoding="utf-8") as file:
            known = json.load(file)
    except FileNotFoundError:
        return []
    namespace = os.path.basename(os.environ["FAKE_NAMES"]).removesuffix(".json")
    short = host.removesuffix(".").removesuffix(".cluster.local").removesuffix(".svc")
    return known.get(short.removesuffix(f".{namespace}")) or []


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _look_up(host: Any, *rest: Any, **more: Any) -> Any:
    """`getaddrinfo` with the names of the cluster."""
    found = _addresses(host) if isinstance(host, str) else None
    if found is None:
        return _getaddrinfo(host, *rest, **more)
    if not found:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return [answer for address in found for answer in _getaddrinfo(address, *rest, **more)]


def _hurry(name: str) -> None:
    found = vars(sys.modules[name])
    assert CHANGES[name].keys() <= found.keys(), f"{name} has other names now"
    found.update(CHANGES[name])


class Impatient:
    """Finds the modules of `CHANGES` as they are, but for what is changed there."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """For the import system."""
        spec = importlib.machinery.PathFinder.find_spec(name, path) if name in CHANGES else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def hurried(module: ModuleType) -> None:
            execute(module)
            _hurry(name)

        spec.loader.exec_module = hurried  # type: ignore[method-assign]
        return spec


if ADDRESS:
    socket.socket.bind = _bind_here  # type: ignore[method-assign, assignment]
    socket.getaddrinfo = _look_up
    socket.gethostname = lambda: NAME
    sys.meta_path.insert(0, Impatient)
    for known in CHANGES.keys() & sys.modules.keys():  # where this process was forked
        _hurry(known)
