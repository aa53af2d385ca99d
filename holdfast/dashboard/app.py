"""The page as an application, and the server that hands it out until it is told to stop."""

import asyncio
import errno
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from holdfast.dashboard.api import Pages, row
from holdfast.dashboard.fleet import Fleet, Glances
from holdfast.dashboard.guard import LOOPBACK, Guard, Links, Verify
from holdfast.dashboard.stream import Stream
from holdfast.errors import Error

STATIC = Path(__file__).parent / "static"
LAST_S = 1  # for answers under way when the server is told to stop


class Serving(NamedTuple):
    """Where the page is served, and to whom. `verify`: asks the cluster about a token."""

    host: str
    port: int
    verify: Verify | None = None
    asks_token: bool = False  # on loopback, too

    @property
    def local(self) -> bool:
        """Whether only this machine reaches it."""
        return self.host in ("localhost", "127.0.0.1", "::1")


def application(fleet: Fleet, serving: Serving, links: Links | None) -> Guard:
    """The page of these jobs."""

    async def index(_: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    glances = Glances(fleet, row)
    glances.warm()
    routes = [
        Route("/", index),
        *Pages(fleet, glances).routes(),
        *Stream(fleet, glances).routes(),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    verify = links.verify if links is not None else serving.verify
    return Guard(Starlette(routes=routes), LOOPBACK if serving.local else None, verify, links)


def serve(fleet: Fleet, serving: Serving, say: Callable[[str], None]) -> None:
    """Until SIGINT or SIGTERM. Raises `Error` address-unusable."""
    with closing(listening(serving)) as listener:
        asyncio.run(serve_on(listener, fleet, serving, say))


async def serve_on(
    listener: socket.socket, fleet: Fleet, serving: Serving, say: Callable[[str], None]
) -> None:
    """On a socket that listens. Where that is ended by SIGTERM, the process ends with status 0."""
    signal.signal(signal.SIGTERM, _leave)  # uvicorn raises it once more when it is done
    port = listener.getsockname()[1]
    name = f"[{serving.host}]" if ":" in serving.host else serving.host
    url = f"http://{name}:{port}/"
    needs_link = serving.verify is None and (serving.asks_token or not serving.local)
    links = Links(lambda secret: say(f"open, once: {url}?token={secret}")) if needs_link else None
    say(f"{fleet.title}: {url}")
    if links is not None:
        say(f"token for programs: {links.token}")
        links.offer()
    config = uvicorn.Config(
        application(fleet, serving, links), log_level="warning", lifespan="off", ws="none",
        access_log=False, server_header=False, timeout_graceful_shutdown=LAST_S,
    )  # fmt: skip
    await uvicorn.Server(config).serve(sockets=[listener])


def _leave(_signal: int, _frame: FrameType | None) -> None:
    """By its default action nothing would be tidied up: there are copies of journals in a temporary
    folder."""
    sys.exit(0)


def listening(serving: Serving) -> socket.socket:
    """A socket there. Raises `Error` address-unusable."""
    family = socket.AF_INET6 if ":" in serving.host else socket.AF_INET
    try:
        return socket.create_server((serving.host, serving.port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        number = getattr(error, "errno", None)
        why = os.strerror(number) if number and number > 0 else str(error)
        taken = number == errno.EADDRINUSE
        raise Error(
            "address-unusable",
            f"cannot listen on {serving.host}, port {serving.port}",
            why=why,
            help="holdfast dashboard --port 0   (any free port)" if taken else "ip address",
        ) from error
