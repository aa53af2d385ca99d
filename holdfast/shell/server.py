"""The controller's end of every connection: agents and the command line, over one WebSocket server.

Each connection is an asyncio protocol around the Sans-I/O layer of websockets: what arrives is
handed on in the callback that read it, and sending only queues, so that 12,500 connections are
12,500 small objects and no task. Nothing is answered before the bearer token has been checked.

Whatever arrives is a sign of life. What comes all the time, a pong without content or one message
in one frame, is taken as it is, past the parser for everything there may be. Reports are not
decoded as they come: only the newest of each node is kept, and those that are waiting are decoded
together, apart from facts and orders.
"""

import asyncio
import hmac
import http
import logging
import resource
import socket
from collections.abc import Callable
from typing import Protocol

import msgspec
from websockets.exceptions import InvalidState
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State as Stage
from websockets.server import ServerProtocol

from holdfast import tls
from holdfast.compiled_code import CompiledHere
from holdfast.detection.answers import TcpState
from holdfast.messages import (
    MAX_MESSAGE_BYTES,
    Answer,
    ApiSeen,
    AskCode,
    EntryTimes,
    EvidenceReply,
    Fact,
    FromClient,
    GroupOpened,
    Hello,
    JournalCopy,
    Kept,
    MachineChecked,
    Question,
    Report,
    Stacks,
    StepRepeated,
    ToAgent,
    ToClient,
    ToController,
    VersionPrepared,
)
from holdfast.profiles import ProfileTaken, TracePart
from holdfast.shell import kernel_answers
from holdfast.shell.nodes import Wire
from holdfast.shell.outbox import Outbox

logger = logging.getLogger(__name__)

BACKLOG = 4_096  # connections that wait to be accepted: a whole job may come back at once
OPEN_S = 20.0  # for a connection to become that of an agent, or of the command line
CLOSE_S = 5.0  # for the other end to answer that it is closed
DIGEST_S = 0.02  # reports that arrive within this time are decoded together
DIGEST_COUNT = 500  # at once, then others have their turn
SILENT_S = 10  # after this time the kernel gives up what the other end does not acknowledge

PULSE = b"\x8a\x80"  # how a pong without content begins, before its mask
PULSE_BYTES = 6
PING = b"\x89\x00"  # a ping without content; it is answered by such a pong
MESSAGE = 0x82  # how a frame begins that is a whole binary message
REPORT = b"\xa4type\xa6Report"  # how a report begins, after the byte with the count of its fields
NOT_UNDERSTOOD = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)  # by the decoder

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ToController)
_reports = msgspec.msgpack.Decoder(Report)


class Listener(Protocol):
    """Who hears what arrives. A shell is one."""

    def hello(self, wire: Wire, hello: Hello) -> bool:
        """An agent (re)connected. False: the connection is to be closed."""

    def fact(self, node: str, fact: Fact) -> None:
        """News of a node. Raises `msgspec.ValidationError` if it cannot be."""

    def report(self, report: Report) -> None:
        """Telemetry."""

    def answered(self, node: str, answer: Answer) -> None:
        """What a node says to what it was asked."""

    def client(self, message: FromClient, reply: Callable[[ToClient], None]) -> None:
        """A request of the command line, answered now or later."""

    def closed(self, node: str, wire: Wire) -> None:
        """A connection is gone that nobody here has closed."""


class Server:
    """All connections of one controller. `after` is called whenever something was heard."""

    def __init__(
        self,
        listener: Listener,
        token: str,
        clock: Callable[[], float],
        after: Callable[[], None] = lambda: None,
    ) -> None:
        self.listener, self.clock, self.after = listener, clock, after
        self.connections: set[Connection] = set()
        self.closing = False
        self._expected = _bytes(f"Bearer {token}")
        self._server: asyncio.Server | None = None
        self._place = ("", 0)
        self._reported: dict[Connection, None] = {}  # with a report that was not read yet
        self._digesting: asyncio.TimerHandle | None = None
        self._framed: tuple[object, bytes] = (None, b"")

    async def listen(self, host: str, port: int = 0) -> int:
        """Start to listen and return the port. Raises `OSError` if it is taken, `Error`
        tls-unusable."""
        loop, context = asyncio.get_running_loop(), tls.server_context()
        self.closing = False
        self._server = await loop.create_server(
            lambda: Connection(self), host, port, backlog=BACKLOG, ssl=context,
            ssl_handshake_timeout=OPEN_S if context is not None else None,
        )  # fmt: skip
        found: int = self._server.sockets[0].getsockname()[1]
        self._place = (host, found)
        return found

    async def listen_again(self) -> None:
        """Where it listened before it was closed. Raises `OSError` if the port is taken."""
        await self.listen(*self._place)

    async def close(self) -> None:
        """Stop listening and close every connection, after what was queued for it."""
        if self._server is None:
            return
        self.closing = True
        self._server.close()
        if self._digesting is not None:
            self._digesting.cancel()
            self._digesting = None
        self._reported.clear()
        for connection in list(self.connections):
            connection.close("the controller is shutting down")
        closings = [connection.gone.wait() for connection in self.connections]
        await asyncio.gather(*closings)
        await self._server.wait_closed()

    def answer(self, protocol: ServerProtocol, request: Request) -> Response:
        """It is accepted if it carries the token, once."""
        given = request.headers.get_all("Authorization")  # `get` raises where there are two
        if len(given) == 1 and hmac.compare_digest(_bytes(given[0]), self._expected):
            return protocol.accept(request)
        status = http.HTTPStatus.UNAUTHORIZED
        return protocol.reject(status, "bearer token missing or wrong\n")

    def framed(self, message: ToAgent | Question | ToClient) -> bytes:
        """Its bytes, in one frame; what goes to everybody is encoded once."""
        if message is not self._framed[0]:
            self._framed = (message, framed(_encoder.encode(message)))
        return self._framed[1]

    # ── reports ──

    def has_report(self, connection: "Connection") -> None:
        """A report waits there."""
        self._reported[connection] = None
        if self._digesting is None:
            loop = asyncio.get_running_loop()
            self._digesting = loop.call_later(DIGEST_S, self._digest)

    def _digest(self) -> None:
        self._digesting = None
        for connection in list(self._reported)[:DIGEST_COUNT]:
            connection.read_report()
            self._reported.pop(connection, None)
        if self._reported:
            self._digesting = asyncio.get_running_loop().call_later(0.0, self._digest)
        self.after()

    def catch_up(self) -> None:
        """Read every report that waits."""
        for connection in list(self._reported):
            connection.read_report()
        self._reported.clear()


class Connection(asyncio.Protocol):
    """One connection; a `Wire` once it has turned out to be that of an agent."""

    def __init__(self, server: Server) -> None:
        self.heard_at = 0.0
        self.node = ""
        self.gone = asyncio.Event()
        self._server = server
        self._protocol = ServerProtocol(max_size=MAX_MESSAGE_BYTES, logger=_quiet)
        self._transport: asyncio.Transport | None = None
        self._outbox = Outbox()
        self._sent_bytes = 0
        self._parts: list[bytes] = []
        self._left: int | None = None  # bytes of the newest frame that are still to come, if known
        self._report: bytes | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ours = False  # we have closed it, and know

    # ── what asyncio calls ──

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody has connected; who says nothing is not waited for."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._server.closing:  # it had been accepted already
            transport.abort()
            return
        self._server.connections.add(self)
        _let_the_kernel_watch(transport.get_extra_info("socket"))
        self._timer = asyncio.get_running_loop().call_later(OPEN_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Bytes of any length."""
        self.heard_at = self._server.clock()
        between = self._left == 0 and not self._parts and self._protocol.state is Stage.OPEN
        messages = only_messages(data) if between else None
        if messages == []:
            return
        try:
            if messages is None:
                self._parse(data)
            else:
                for message in messages:
                    self._message(message)
        except NOT_UNDERSTOOD as error:
            who = self.node or "an unknown peer"
            logger.warning("cannot decode a message from %s: %s", who, error)
            if self._protocol.state is Stage.OPEN:
                self._close(CloseCode.INVALID_DATA, str(error))
        self._flush()
        self._server.after()

    def eof_received(self) -> None:
        """The other end sends nothing more."""
        self._protocol.receive_eof()
        self._flush()

    def connection_lost(self, _exc: Exception | None) -> None:
        """It is gone, for whatever reason."""
        if self._timer is not None:
            self._timer.cancel()
        self._server.connections.discard(self)
        self.gone.set()
        if self.node and not self._ours:
            self.read_report()
            self._server.listener.closed(self.node, self)
            self._server.after()

    # ── what the shell calls ──

    def send(self, message: ToAgent | Question | ToClient) -> None:
        """Queue this, unless the connection is closed."""
        if self._protocol.state is Stage.OPEN and self._transport is not None:
            data = self._server.framed(message)
            self._sent_bytes += len(data)
            self._transport.write(data)

    def ask(self) -> None:
        """Send a ping, unless something waits to be sent anyway, or the connection is closed."""
        transport = self._transport
        if self._protocol.state is not Stage.OPEN or transport is None:
            return
        if not transport.get_write_buffer_size():
            self._sent_bytes += len(PING)
            transport.write(PING)

    def tcp_state(self) -> TcpState | None:
        """What our kernel knows of what was sent and answered."""
        if self._transport is None:
            return None
        connection = self._transport.get_extra_info("socket")
        return kernel_answers.tcp_state(connection, self._server.clock())

    def overdue(self, now: float) -> str:
        """Why it is to be closed because the other end takes nothing; empty if it is not."""
        waiting = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return self._outbox.observe(self._sent_bytes, waiting, now)

    def close(self, why: str) -> None:
        """Send what is queued, then close; the listener hears no more of it."""
        self._ours = True
        self._close(CloseCode.NORMAL_CLOSURE, why)

    def abort(self, why: str) -> None:
        """Close at once."""
        self._ours = True
        logger.info("closing the connection of %s: %s", self.node or "an unknown peer", why)
        if self._transport is not None:
            self._transport.abort()

    def _close(self, code: CloseCode, why: str) -> None:
        try:
            self._protocol.send_close(code, why[:100])
        except InvalidState:
            self.abort(why)
            return
        self._flush()
        self._abort_in(CLOSE_S)

    def _abort_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, self._transport.abort)

    def _flush(self) -> None:
        assert self._transport is not None
        for data in self._protocol.data_to_send():
            if data:
                self._sent_bytes += len(data)
                self._transport.write(data)
            else:
                self._transport.close()  # after what was queued
                self._abort_in(CLOSE_S)

    # ── what arrives ──

    def _parse(self, data: bytes) -> None:
        if self._left is not None:
            self._left = left_of_frame(data, self._left)
        self._protocol.receive_data(data)
        events = self._protocol.events_received()
        for event in events:
            if isinstance(event, Frame):
                self._frame(event)
            elif len(events) > 1:  # frames came along, and would be heard whatever the answer
                self.abort("it did not wait for the answer to its request")
                return
            elif isinstance(event, Request):
                self._protocol.send_response(self._server.answer(self._protocol, event))
                self._left = 0

    def _frame(self, frame: Frame) -> None:
        match frame.opcode:
            case Opcode.BINARY if frame.fin:
                self._message(bytes(frame.data))
            case Opcode.BINARY | Opcode.TEXT | Opcode.CONT:
                self._parts.append(bytes(frame.data) if frame.opcode is not Opcode.TEXT else b"")
                if frame.fin:
                    data, self._parts = b"".join(self._parts), []
                    self._message(data)
            case _:
                pass

    def _message(self, data: bytes) -> None:
        if data[1:13] == REPORT:
            if self.node:
                self._report = data
                self._server.has_report(self)
            return
        self.read_report()  # a report is of the time before what follows it
        listener = self._server.listener
        match message := _decoder.decode(data):
            case Hello():
                self._hello(message)
            case Fact():
                if self.node:
                    listener.fact(self.node, message)
            case (
                Kept()
                | JournalCopy()
                | ApiSeen()
                | Stacks()
                | EntryTimes()
                | EvidenceReply()
                | MachineChecked()
                | GroupOpened()
                | StepRepeated()
                | VersionPrepared()
                | AskCode()
                | ProfileTaken()
                | TracePart()
                | CompiledHere()
            ):
                if self.node:
                    listener.answered(self.node, message)
            case Report():
                if message.node == self.node:
                    listener.report(message)
            case _:
                self._is_known()  # some questions take an hour to be answered
                listener.client(message, self.send)

    def _is_known(self) -> None:
        if self._timer is not None and self._protocol.state is Stage.OPEN:
            self._timer.cancel()

    def _hello(self, hello: Hello) -> None:
        if self.node:
            raise msgspec.ValidationError(f"{self.node} sent hello twice")
        self._is_known()
        if self._server.listener.hello(self, hello):
            self.node = hello.node
        else:
            self._close(CloseCode.NORMAL_CLOSURE, "")

    def read_report(self) -> None:
        """Hand on the report that waits, if one does."""
        data, self._report = self._report, None
        if data is None:
            return
        try:
            report = _reports.decode(data)
        except NOT_UNDERSTOOD as error:
            logger.warning("cannot decode a report from %s: %s", self.node, error)
            self._close(CloseCode.INVALID_DATA, str(error))
            return
        if report.node == self.node:
            self._server.listener.report(report)


def framed(message: bytes) -> bytes:
    """A message in one frame, as a server sends it (RFC 6455, 5.2)."""
    size = len(message)
    if size < 126:
        return bytes((MESSAGE, size)) + message
    if size < 1 << 16:
        return bytes((MESSAGE, 126)) + size.to_bytes(2, "big") + message
    return bytes((MESSAGE, 127)) + size.to_bytes(8, "big") + message


def only_messages(data: bytes) -> list[bytes] | None:
    """The messages in the frames of a client that this is: each whole and alone in its frame, with
    pongs without content between them. None if it is anything else, or more, or less.

    Whoever has little time gets more than one at once, and has none for the parser.
    """
    found, at = [], 0
    while at < len(data):
        if data.startswith(PULSE, at):
            at += PULSE_BYTES
            continue
        begin, end = _message_at(data, at)
        if not begin < end <= len(data):
            return None
        size = end - begin
        key = data[begin - 4 : begin] * (size // 4 + 1)
        masked = int.from_bytes(data[begin:end], "big") ^ int.from_bytes(key[:size], "big")
        found.append(masked.to_bytes(size, "big"))
        at = end
    return found if at == len(data) else None


def _message_at(data: bytes, at: int) -> tuple[int, int]:
    """Where the message of the frame that begins here begins and ends; at the same place if it is
    not one whole message, or a very large one."""
    if data[at] != MESSAGE or len(data) - at <= PULSE_BYTES:
        return at, at
    size, begin = data[at + 1] - 0x80, at + 6
    if size == 126:
        size, begin = int.from_bytes(data[at + 2 : at + 4], "big"), at + 8
    elif size == 127:
        return at, at
    return begin, begin + size


def left_of_frame(data: bytes, left: int) -> int | None:
    """How many bytes of the last frame are still to come after this data, which begins with the
    `left` last bytes of a frame. None if it ends before that can be known."""
    at = left
    while at < len(data):
        size = data[at + 1] & 0x7F if at + 1 < len(data) else 127
        length_bytes = {126: 2, 127: 8}.get(size, 0)
        begin = at + 2 + length_bytes
        if begin > len(data):
            return None
        size = int.from_bytes(data[at + 2 : begin], "big") if length_bytes else size
        at = begin + 4 + size  # a mask comes before what a client says
    return at - len(data)


def allow_connections() -> None:
    """As many as this process may ever have: containers often begin with 1,024 open files."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


_quiet = logging.getLogger(f"{__name__}.protocol")
_quiet.disabled = True  # requests that are none are refused without a word


def _let_the_kernel_watch(connection: socket.socket | None) -> None:
    """What is not acknowledged in time breaks the connection; a machine that is gone does, too."""
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, SILENT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1_000 * SILENT_S)
    kernel_answers.repeat_evenly(connection)


def _bytes(header: str) -> bytes:
    return header.encode(errors="surrogateescape")
