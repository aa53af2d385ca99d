"""News of a job, or of the fleet, as server-sent events: one when something has changed.

An event says what is new in short, and its id is a digest of that. A browser that lost the stream
comes back with the id of the last one it has heard, and is told only what is different by then. So
nothing is kept for anybody, and a browser that went away costs nothing.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from holdfast.dashboard.api import fields, fleet_rows, row
from holdfast.dashboard.fleet import Fleet, Glances

LOOK_S = 1.0
FLEET_S = 3.0
QUIET_S = 15.0  # then a comment, so that nobody in between takes it for dead
RETRY_MS = 2000
STREAMS_MAX = 100
EVERY_TIME = ("wall_s", "ettr", "ettr_1h", "cost")  # of a live job, and no news


class Stream:
    """All streams of the page."""

    def __init__(self, fleet: Fleet, glances: Glances) -> None:
        self._fleet, self._glances, self._open = fleet, glances, 0

    def routes(self) -> list[Route]:
        """Where they are asked for: of everything, or of one job."""
        return [Route("/api/stream", self._answer), Route("/api/stream/{name}", self._answer)]

    async def _answer(self, request: Request) -> Response:
        name = request.path_params.get("name")
        if self._open >= STREAMS_MAX:
            return Response("too many streams are open", 503, media_type="text/plain")
        told = request.headers.get("last-event-id", "")
        look = self._fleet_news if name is None else lambda: self._job_news(name)
        events = self._events(request, look, FLEET_S if name is None else LOOK_S, told)
        return StreamingResponse(events, media_type="text/event-stream")

    async def _events(
        self, request: Request, look: Callable[[], Any], pause_s: float, told: str
    ) -> AsyncIterator[str]:
        self._open += 1
        try:
            yield f"retry: {RETRY_MS}\n\n"
            quiet_s = 0.0
            while not await request.is_disconnected():
                news = await run_in_threadpool(look)
                digest = _digest(news)
                if digest != told:
                    told, quiet_s = digest, 0.0
                    yield f"id: {digest}\ndata: {msgspec.json.encode(news).decode()}\n\n"
                elif quiet_s >= QUIET_S:
                    quiet_s = 0.0
                    yield ": nothing new\n\n"
                await asyncio.sleep(pause_s)
                quiet_s += pause_s
        finally:
            self._open -= 1

    def _job_news(self, name: str) -> Any:
        try:
            return row(self._fleet.record(name).look())
        except Exception as error:
            return {"job": name, "error": fields(error)}

    def _fleet_news(self) -> Any:
        try:
            return fleet_rows(self._glances)
        except Exception as error:
            return {"error": fields(error)}


def _digest(news: Any) -> str:
    rows = news if isinstance(news, list) else [news]
    lasting = [{k: v for k, v in one.items() if k not in EVERY_TIME} for one in rows]
    return hashlib.sha256(msgspec.json.encode(lasting)).hexdigest()[:16]
