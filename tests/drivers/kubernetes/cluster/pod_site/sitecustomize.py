"""Gives a Python process of a pod its own network: who listens everywhere listens at the pod.

All pods share the loopback device of one machine, so two that listen on the same port of every
address would meet. The kubelet puts this folder on the path and the pod's address in a variable.
"""

import os
import socket
from typing import Any

ADDRESS = os.environ.get("FAKE_POD_IP")
_bind = socket.socket.bind


def _bind_here(self: socket.socket, address: Any) -> None:
    """`bind`, but of the pod's address where all are meant; of IPv6 there is none."""
    if self.family == socket.AF_INET and address[0] in ("", "0.0.0.0"):
        address = (ADDRESS, *address[1:])
    elif self.family == socket.AF_INET6 and address[0] in ("", "::"):
        address = ("::1", 0, *address[2:])
    _bind(self, address)


if ADDRESS:
    socket.socket.bind = _bind_here  # type: ignore[method-assign, assignment]
