"""Probes of containers over HTTP and TCP, with Kubernetes' periods, paced."""

import asyncio
import contextlib
from typing import Protocol

from tests.drivers.kubernetes.cluster.pace import Pace
from tests.drivers.kubernetes.cluster.processes import Container
from tests.drivers.kubernetes.cluster.proxy import named_port
from tests.drivers.kubernetes.cluster.refusal import Body

SHORTEST_S = 0.05  # a probe in a real cluster is at most one a second
AFTER_SUCCESS_S = 0.5  # only a container that does not answer is looked at as often as its pod says


class Probed(Protocol):
    """A pod whose containers are probed."""

    pod: Body
    ip: str

    def set_ready(self, name: str, value: bool) -> None:
        """What was found."""


async def ready(spec: Body, pod: Probed, pace: Pace) -> None:
    """Keep the pod told whether the container is ready, until cancelled."""
    probe = spec.get("readinessProbe")
    failures = 0
    while probe is not None:
        failures = 0 if await _passes(probe, pod) else failures + 1
        if not failures or failures >= probe.get("failureThreshold", 3):
            pod.set_ready(spec["name"], not failures)
        await asyncio.sleep(_period_s(probe, pace) if failures else AFTER_SUCCESS_S)


async def live(spec: Body, pod: Probed, pace: Pace, process: Container) -> None:
    """End a container that is found dead too often, until cancelled. One that says nothing has as
    long as in a real cluster: it may get no processor."""
    probe = spec.get("livenessProbe")
    failures, answered = 0, False
    while probe is not None:
        passes = await _passes(probe, pod, float(probe.get("periodSeconds", 10)))
        answered = answered or passes  # a real one has minutes to start, whatever our pace
        failures = 0 if passes or not answered else failures + 1
        if failures >= probe.get("failureThreshold", 3):
            process.kill()
            return
        await asyncio.sleep(AFTER_SUCCESS_S if passes else _period_s(probe, pace))


def _period_s(probe: Body, pace: Pace) -> float:
    return max(SHORTEST_S, pace.s(float(probe.get("periodSeconds", 10))))


async def _passes(probe: Body, pod: Probed, within_s: float = 1.0) -> bool:
    target = probe.get("httpGet") or probe.get("tcpSocket")
    if target is None:
        return True
    port = named_port(pod.pod, target["port"])
    timeout = max(within_s, float(probe.get("timeoutSeconds", 1)))
    with contextlib.suppress(OSError, TimeoutError, ValueError, IndexError):
        async with asyncio.timeout(timeout):
            return await _answers(pod.ip, port, target.get("path"))
    return False


async def _answers(ip: str, port: int, path: str | None) -> bool:
    reader, writer = await asyncio.open_connection(ip, port)
    try:
        if path is None:
            return True
        head = f"GET {path} HTTP/1.1\r\nHost: {ip}:{port}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode())
        status = (await reader.readline()).split()
        return 200 <= int(status[1]) < 400
    finally:
        writer.transport.abort()
