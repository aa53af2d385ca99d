"""What a Python process of a pod finds different from a real one: its network, and its patience.

All pods share the loopback device of one machine, so two that listen on the same port of every
address would meet: who listens everywhere listens at the pod. The kubelet puts this folder on the
path and the pod's address in a variable.

Pauses between two looks are shorter than in production. They are no promise, and a test that waits
for the next look proves nothing by it; how often is looked does not change what is seen.
"""

import importlib.machinery
import os
import socket
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

ADDRESS = os.environ.get("FAKE_POD_IP")
PAUSES: dict[str, dict[str, float]] = {
    "holdfast.agent.launcher": {"ASK_EVERY_S": 0.2},
    "holdfast.drivers.kubernetes.driver": {"ASKED_S": 0.2, "RETRY_S": 0.2, "FENCED_S": 0.5},
    "holdfast.drivers.kubernetes.supply": {"RETRY_S": 0.2},
    "holdfast.drivers.kubernetes.lease": {"DURATION_S": 4, "RENEW_S": 1.0, "POLL_S": 0.1},
    "holdfast.drivers.kubernetes.record": {"LOOK_S": 0.1, "STEADY_S": 0.5},
}
_bind = socket.socket.bind


def _bind_here(self: socket.socket, address: Any) -> None:
    """`bind`, but of the pod's address where all are meant; of IPv6 there is none."""
    if self.family == socket.AF_INET and address[0] in ("", "0.0.0.0"):
        address = (ADDRESS, *address[1:])
    elif self.family == socket.AF_INET6 and address[0] in ("", "::"):
        address = ("::1", 0, *address[2:])
    _bind(self, address)


class Impatient:
    """Finds the modules of `PAUSES` as they are, but for those numbers."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """For the import system."""
        spec = importlib.machinery.PathFinder.find_spec(name, path) if name in PAUSES else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def hurried(module: ModuleType) -> None:
            execute(module)
            assert PAUSES[name].keys() <= vars(module).keys(), f"{name} has other pauses now"
            vars(module).update(PAUSES[name])

        spec.loader.exec_module = hurried  # type: ignore[method-assign]
        return spec


if ADDRESS:
    socket.socket.bind = _bind_here  # type: ignore[method-assign, assignment]
    sys.meta_path.insert(0, Impatient)
