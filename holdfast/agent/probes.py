"""What a cluster asks an agent by HTTP: is it live, is it ready, and its figures for Prometheus.

Live is who answers: it takes a turn of the agent's loop, and nothing of the training. Ready is who
has been welcomed by a controller once, and stays so while controllers come and go, because systems
that evict what is not ready must not evict a node for that. No token is asked for: the kubelet
could not show one, and nothing can be changed here.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.errors import Error

REQUEST_S = 5.0
STATUS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


@dataclass(frozen=True)
class Health:
    """How a node is."""

    registered: bool  # a controller has welcomed it
    connected: bool  # and is there now
    attempt: int
    workers: int  # that live
    step: int | None = None
    step_ago_s: float = 0.0


async def serve(host: str, port: int, look: Callable[[], Health]) -> asyncio.Server:
    """Answer from now on. Raises `Error` port-unusable."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            async with asyncio.timeout(REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_answer(head, look()))
                await writer.drain()
        writer.close()

    try:
        return await asyncio.start_server(talk, host, port)
    except OSError as error:
        raise _unusable(host, port, error) from error


def _answer(head: bytes, health: Health) -> bytes:
    method, _, rest = head.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0].decode(errors="replace")
    status, text = (405, "") if method != b"GET" else _page(path, health)
    body = (text or STATUS[status] + "\n").encode()
    first = f"HTTP/1.1 {status} {STATUS[status]}\r\nContent-Type: text/plain; version=0.0.4\r\n"
    return f"{first}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


def _page(path: str, health: Health) -> tuple[int, str]:
    match path:
        case "/live":
            return 200, ""
        case "/ready":
            return (200, "") if health.registered else (503, "not connected to a controller yet\n")
        case "/metrics":
            return 200, figures(health, time.time())
        case _:
            return 404, ""


def figures(health: Health, now: float) -> str:
    """The figures as Prometheus reads them; `now` in seconds since the epoch."""
    found: dict[str, float | None] = {
        "holdfast_node_up": int(health.connected),
        "holdfast_node_attempt": health.attempt,
        "holdfast_node_workers": health.workers,
        "holdfast_node_step": health.step,
        "holdfast_last_step_timestamp_seconds": now - health.step_ago_s if health.step else None,
    }
    return "".join(
        f"# TYPE {name} gauge\n{name} {value}\n"
        for name, value in found.items()
        if value is not None
    )


def _unusable(host: str, port: int, error: OSError) -> Error:
    return Error(
        "port-unusable",
        f"the agent cannot listen on {host}, port {port}",
        why=error.strerror or str(error),
        help="set network.ports.agent to a port that is unused on every machine",
    )
