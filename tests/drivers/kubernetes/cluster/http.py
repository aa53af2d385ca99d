"""A small HTTP/1.1 server on asyncio: requests with a length, answers whole or in chunks.

No framework, because an API server needs to do what frameworks prevent: to cut a stream in the
middle, to say nothing for a while, to lie about the time.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

BODY_MAX_BYTES = 16 << 20


class Request(NamedTuple):
    """What a client asks. Names of headers are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Answer:
    """A whole answer, or a stream of pieces."""

    status: int = 200
    body: bytes | AsyncIterator[bytes] = b""
    headers: dict[str, str] = field(default_factory=dict)


class CutError(Exception):
    """The connection is to be dropped, in the middle of an answer or before it."""


Handler = Callable[[Request], Awaitable[Answer]]


class Server:
    """Listens on a free port of 127.0.0.1 until closed; owns its connections."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self, port: int = 0) -> None:
        """Listen; on another port each time, unless one is named."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Drop all connections and listen no more."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def drop(self) -> None:
        """Cut every connection there is; new ones are welcome."""
        for task in self._connections:
            task.cancel()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with contextlib.suppress(
                CutError, ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError
            ):
                while (request := await _request(reader)) is not None:
                    await _send(writer, await self._handler(request))
        finally:
            self._connections.discard(task)
            writer.transport.abort()


async def _request(reader: asyncio.StreamReader) -> Request | None:
    head = await reader.readline()
    if not head:
        return None
    method, target, _ = head.decode("latin-1").split(" ", 2)
    headers = {}
    while (line := (await reader.readline()).decode("latin-1").strip()) != "":
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    length = min(int(headers.get("content-length", "0")), BODY_MAX_BYTES)
    body = await reader.readexactly(length)
    parts = urlsplit(target)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    return Request(method, unquote(parts.path), query, headers, body)


async def _send(writer: asyncio.StreamWriter, answer: Answer) -> None:
    headers = {"Content-Type": "application/json", **answer.headers}
    whole = isinstance(answer.body, bytes)
    headers |= {"Content-Length": str(len(answer.body))} if isinstance(answer.body, bytes) else {}
    headers |= {} if whole else {"Transfer-Encoding": "chunked"}
    lines = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
    if isinstance(answer.body, bytes):
        writer.write(answer.body)
    else:
        await writer.drain()
        await _chunks(writer, answer.body)
    await writer.drain()


async def _chunks(writer: asyncio.StreamWriter, pieces: AsyncIterator[bytes]) -> None:
    async for piece in pieces:
        writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        await writer.drain()
    writer.write(b"0\r\n\r\n")
