"""The controller's end of every connection: agents and the command line, over one WebSocket server.

Nothing is answered before the bearer token has been checked. What is sent to a node that is not
connected is dropped: when it comes back it says `Hello`, and is told again what holds now.
"""

import asyncio
import contextlib
import hmac
import http
import logging
from collections.abc import Callable
from typing import Protocol

import msgspec
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from holdfast import tls
from holdfast.messages import (
    MAX_MESSAGE_BYTES,
    PROTOCOL,
    Ack,
    AskStatus,
    Fact,
    FromKeeper,
    Hello,
    JournalCopy,
    Kept,
    Report,
    StopJob,
    ToAgent,
    ToClient,
    ToController,
    ToKeeper,
    Welcome,
)

logger = logging.getLogger(__name__)

NOT_UNDERSTOOD = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)  # by the decoder

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ToController)


class Listener(Protocol):
    """Who hears what arrives."""

    def hello(self, hello: Hello) -> bool:
        """An agent (re)connected; False: it was given up and must end."""

    def orders_for(self, node: str) -> list[ToAgent]:
        """What this node is to do now, to be repeated after `Welcome`."""

    def fact(self, node: str, fact: Fact) -> None:
        """A fact not heard before."""

    def report(self, report: Report) -> None:
        """Telemetry."""

    def client(self, message: StopJob | AskStatus) -> ToClient:
        """A request of the command line."""

    def disconnected(self, node: str) -> None:
        """The connection of an agent broke."""


class Links:
    """All connections of one controller. Facts are handed on once each, in the sender's order.

    `on_kept` hears what nodes say that hold a copy of the journal.
    """

    def __init__(self, listener: Listener, token: str) -> None:
        self._listener = listener
        self._expected = f"Bearer {token}"
        self._agents: dict[str, ServerConnection] = {}
        self._heard: dict[str, int] = {}  # newest fact handed on, per node
        self._acked: dict[str, int] = {}  # newest fact that is durable, per node
        self._server: Server | None = None
        self.on_kept: Callable[[str, FromKeeper], None] | None = None

    async def listen(self, host: str, port: int = 0) -> int:
        """Start to listen and return the port. Raises `OSError` if it is taken."""
        self._server = await serve(
            self._serve,
            host,
            port,
            process_request=self._authenticate,
            max_size=MAX_MESSAGE_BYTES,
            compression=None,
            ping_interval=None,  # reports are the heartbeat
            ssl=tls.server_context(),
        )
        found: int = next(iter(self._server.sockets)).getsockname()[1]
        return found

    async def close(self) -> None:
        """Stop listening and close every connection."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    @property
    def connected(self) -> frozenset[str]:
        """Nodes whose agents are connected now."""
        return frozenset(self._agents)

    async def send(self, node: str, message: ToAgent | ToKeeper) -> None:
        """Send to a node if it is connected."""
        connection = self._agents.get(node)
        if connection is not None:
            with contextlib.suppress(ConnectionClosed):
                await connection.send(_encoder.encode(message))

    async def acknowledge(self, node: str, seq: int) -> None:
        """Tell a node that its facts up to `seq` are durable."""
        self._acked[node] = max(seq, self._acked.get(node, 0))
        await self.send(node, Ack(seq=seq))

    def _authenticate(self, connection: ServerConnection, request: Request) -> Response | None:
        given = request.headers.get_all("Authorization")  # `get` raises where there are two
        if len(given) == 1 and hmac.compare_digest(_bytes(given[0]), _bytes(self._expected)):
            return None
        return connection.respond(http.HTTPStatus.UNAUTHORIZED, "bearer token missing or wrong\n")

    async def _serve(self, connection: ServerConnection) -> None:
        node = ""
        try:
            async for data in connection:
                match message := _decoder.decode(data if isinstance(data, bytes) else b""):
                    case Hello():
                        node = message.node
                        if not await self._welcome(connection, message):
                            return
                    case Fact():
                        await self._fact(node, message)
                    case Report():
                        self._listener.report(message)
                    case Kept() | JournalCopy():
                        if node and self.on_kept is not None:
                            self.on_kept(node, message)
                    case _:
                        await connection.send(_encoder.encode(self._listener.client(message)))
        except ConnectionClosed:
            pass
        except NOT_UNDERSTOOD as error:
            logger.warning("a message of %s was not understood: %s", node or "a stranger", error)
            await connection.close(1007, str(error)[:100])
        finally:
            if self._agents.get(node) is connection:
                del self._agents[node]
                self._listener.disconnected(node)

    async def _welcome(self, connection: ServerConnection, hello: Hello) -> bool:
        known = hello.protocol == PROTOCOL and self._listener.hello(hello)
        acked = self._acked.get(hello.node, 0)
        welcome = Welcome(protocol=PROTOCOL, acked=acked, known=known)
        await connection.send(_encoder.encode(welcome))
        if not known:
            return False
        self._agents[hello.node] = connection
        for order in self._listener.orders_for(hello.node):
            await connection.send(_encoder.encode(order))
        return True

    async def _fact(self, node: str, fact: Fact) -> None:
        if not node:
            return
        _require_fit(node, fact)
        if fact.seq <= self._heard.get(node, 0):
            if fact.seq <= self._acked.get(node, 0):
                await self.send(node, Ack(seq=fact.seq))
            return
        self._heard[node] = fact.seq
        self._listener.fact(node, fact)


def _require_fit(node: str, fact: Fact) -> None:
    """It is about its sender, and the journal can keep it: JSON has no NaN, which would be null and
    end whoever replays it. Raises `msgspec.ValidationError`."""
    if fact.event.node != node:
        raise msgspec.ValidationError(f"{node} tells of {fact.event.node!r}")
    msgspec.json.decode(msgspec.json.encode(fact.event), type=type(fact.event))


def _bytes(header: str) -> bytes:
    return header.encode(errors="surrogateescape")


async def wait_closed(*tasks: "asyncio.Task[object]") -> None:
    """Cancel tasks and wait for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
