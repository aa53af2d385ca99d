"""What a cluster asks an agent by HTTP: is it live, is it ready, and its figures for Prometheus.

Live is who answers: it takes a turn of the agent's loop, and nothing of the training. Ready is who
has been welcomed by a controller once, and stays so while controllers come and go, because systems
that evict what is not ready must not evict a node for that. No token is asked for: the kubelet
could not show one, and nothing can be changed here.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from holdfast import scrape
from holdfast.agent.counters import NodeCounters
from holdfast.agent.figures import figures
from holdfast.detection.health import Reading
from holdfast.errors import Error
from holdfast.scrape import NOT_FOUND, ScrapePage


@dataclass(frozen=True)
class Health:
    """How a node is."""

    name: str
    machine: str  # the name of its machine, as node-exporter and Kubernetes have it
    registered: bool  # a controller has welcomed it
    connected: bool  # and is there now
    attempt: int
    workers: int  # that live
    counters: NodeCounters
    readings: Collection[Reading]  # the newest of each kind and device
    xids: Mapping[tuple[str, int], int]  # how often, by GPU and number
    step: int | None = None
    step_ago_s: float = 0.0


async def serve(host: str, port: int, look: Callable[[], Health]) -> asyncio.Server:
    """Answer from now on. Raises `Error` port-unusable."""
    try:
        return await scrape.serve(host, port, lambda path, accept: _page(path, accept, look))
    except OSError as error:
        raise _unusable(host, port, error) from error


def _page(path: str, accept: str, look: Callable[[], Health]) -> ScrapePage:
    match path:
        case "/live":
            return ScrapePage(200)
        case "/ready":
            words = b"not connected to a controller yet\n"
            return ScrapePage(200) if look().registered else ScrapePage(503, words)
        case "/metrics":
            return figures(look(), time.time()).page(accept)
        case _:
            return NOT_FOUND


def _unusable(host: str, port: int, error: OSError) -> Error:
    return Error(
        "port-unusable",
        f"the agent cannot listen on {host}, port {port}",
        why=error.strerror or str(error),
        help="set network.ports.agent to a port that is unused on every machine",
    )
