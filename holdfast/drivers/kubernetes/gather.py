"""Before a new controller begins: fetch the longest copy of the journal that anybody has.

Copies are in the memory of agents and in the job's record. Agents come back to a controller within
a second or two of its Service pointing to it, so a short wait is enough; those that hold nothing
are sent away at once and come again.
"""

import asyncio
import hmac
import http
import time

import msgspec
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from holdfast import lines, tls
from holdfast.drivers.kubernetes.talk import say
from holdfast.messages import MAX_MESSAGE_BYTES, GiveJournal, Hello, JournalCopy, ToController

WITHIN_S = 10.0  # for agents to find us
AFTER_FIRST_S = 3.0  # once one was here, the others are not far: they try once a second

_decoder = msgspec.msgpack.Decoder(ToController)
_encoder = msgspec.msgpack.Encoder()


class Gathering:
    """Whoever connects is asked for what it keeps."""

    def __init__(self, token: str, expected: int) -> None:
        self._token = f"Bearer {token}"
        self._expected = expected
        self._heard: set[str] = set()
        self._first_at: float | None = None
        self.best = b""
        self._rank = (-1, -1)  # term and newest line of the best copy

    async def gather(self, host: str, port: int) -> bytes:
        """The longest copy; empty if nobody has one in time."""
        server = await serve(
            self._serve, host, port, process_request=self._authenticate,
            max_size=MAX_MESSAGE_BYTES, compression=None, ssl=tls.server_context(),
        )  # fmt: skip
        try:
            began = time.monotonic()
            while not self._enough(time.monotonic() - began):
                await asyncio.sleep(0.05)
        finally:
            server.close()
            await server.wait_closed()
        return self.best

    def _enough(self, waited_s: float) -> bool:
        if len(self._heard) >= self._expected or waited_s > WITHIN_S:
            return True
        since_first = time.monotonic() - self._first_at if self._first_at is not None else 0.0
        return since_first > AFTER_FIRST_S and bool(self.best)

    def _authenticate(self, connection: ServerConnection, request: Request) -> Response | None:
        given = request.headers.get("Authorization", "")
        if hmac.compare_digest(given.encode(), self._token.encode()):
            return None
        return connection.respond(http.HTTPStatus.UNAUTHORIZED, "bearer token missing or wrong\n")

    async def _serve(self, connection: ServerConnection) -> None:
        try:
            hello = _decoder.decode(await connection.recv(decode=False))
            if isinstance(hello, Hello):
                if hello.kept >= 0 and (hello.term, hello.kept) > self._rank:
                    await self._fetch(connection, hello.node, (hello.term, hello.kept))
                self._heard.add(hello.node)
                self._first_at = self._first_at or time.monotonic()
        except (ConnectionClosed, msgspec.MsgspecError):
            return

    async def _fetch(self, connection: ServerConnection, node: str, rank: tuple[int, int]) -> None:
        """A whole and sound copy, or nothing. What a newer controller had kept counts more."""
        await connection.send(_encoder.encode(GiveJournal()))
        data, size = b"", 1
        while len(data) < size:
            part = _decoder.decode(await connection.recv(decode=False))
            if not isinstance(part, JournalCopy) or part.offset != len(data):
                return
            data, size = data + part.data, part.size
        if not lines.sound(data):
            say(f"the copy of {node} is ignored: checksum mismatch")
        elif rank > self._rank:
            self.best, self._rank = data, rank
