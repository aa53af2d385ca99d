"""A server of the shell on loopback, agents that are real connections, and a network between them
that the test can cut."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Self, TypeVar

import msgspec
from websockets.asyncio.client import ClientConnection, connect

from holdfast.controller import Controller, Limits, State
from holdfast.events import AnyEvent, JobSubmitted, Store
from holdfast.messages import (
    MAX_MESSAGE_BYTES,
    Answer,
    AskStatus,
    Done,
    Fact,
    FromClient,
    Hello,
    Question,
    Report,
    ToAgent,
    ToClient,
    ToController,
)
from holdfast.shell.clock import Clock
from holdfast.shell.host import Host, cancelled
from holdfast.shell.nodes import NodeLives, Receipt, Wire
from holdfast.shell.replicas import Lines
from holdfast.shell.server import Server
from holdfast.shell.shell import Settings, Shell
from tests.shell.scene import RECONNECT_S, TERM, Book, Effect, Engine, hello, ready

TOKEN = "a-secret"
DEADLINE_S = 30.0
Found = TypeVar("Found")


async def until(condition: Callable[[], Found], what: str = "") -> Found:
    """The first true answer."""
    async with asyncio.timeout(DEADLINE_S):
        while not (found := condition()):
            await asyncio.sleep(0.005)
    assert found, what
    return found


class Ear:
    """A listener that takes nodes in as the shell does, decides nothing, and remembers."""

    def __init__(self, *lost: str) -> None:
        self.now = 0.0
        self.facts: list[Receipt] = []
        self.events: list[AnyEvent] = []
        self.reports: list[Report] = []
        self.requests: list[FromClient] = []
        self.answers: list[tuple[str, Answer]] = []
        self.broken: list[str] = []
        self.wires: dict[str, Wire] = {}
        state = State(limits=Limits())
        state.lost.update(dict.fromkeys(lost, "it was silent"))
        self.nodes = NodeLives(
            state, 1_000.0, TERM, lambda: self.now, self._put, lambda _node: None
        )

    def _put(self, events: list[AnyEvent], receipt: Receipt | None) -> None:
        self.events += events
        self.facts += [receipt] if receipt is not None else []

    def hello(self, wire: Wire, hello: Hello) -> bool:
        self.wires[hello.node] = wire
        return self.nodes.hello(wire, hello)

    def fact(self, node: str, fact: Fact) -> None:
        self.nodes.fact(node, fact)

    def report(self, report: Report) -> None:
        self.reports.append(report)

    def answered(self, node: str, answer: Answer) -> None:
        self.answers.append((node, answer))

    def client(self, message: FromClient, reply: Callable[[ToClient], None]) -> None:
        self.requests.append(message)
        reply(Done())

    def closed(self, node: str, wire: Wire) -> None:
        self.broken.append(node)
        self.nodes.closed(node, wire)


def with_server(test: Callable[[Server, Ear, int], Awaitable[None]], *lost: str) -> None:
    """Run this against a server that listens."""

    async def run() -> None:
        ear = Ear(*lost)
        server = Server(ear, TOKEN, asyncio.get_running_loop().time)
        port = await server.listen("127.0.0.1")
        try:
            await test(server, ear, port)
        finally:
            for connection in list(server.connections):
                connection.abort("the test is over")
            await server.close()

    asyncio.run(run())


def dial(port: int, token: str | None = TOKEN) -> connect:
    """A connection as an agent makes it."""
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    return connect(
        f"ws://127.0.0.1:{port}/", additional_headers=headers, proxy=None, compression=None,
        max_size=MAX_MESSAGE_BYTES, ping_interval=None,
    )  # fmt: skip


async def send(connection: ClientConnection, message: ToController) -> None:
    """Say this."""
    await connection.send(msgspec.msgpack.encode(message))


async def receive(connection: ClientConnection) -> ToAgent | Question | ToClient:
    """What comes next."""
    data = await asyncio.wait_for(connection.recv(decode=False), DEADLINE_S)
    kinds = ToAgent | Question | ToClient
    found: ToAgent | Question | ToClient = msgspec.msgpack.decode(data, type=kinds)
    return found


async def answered(connection: ClientConnection) -> None:
    """Until everything that was sent over it has been heard."""
    await send(connection, AskStatus())
    while not isinstance(await receive(connection), Done):
        pass


# ── a whole shell ──


class Site:
    """A shell in its host, with an engine and a journal of the tests."""

    def __init__(
        self, limits: Limits, timeout_s: float, lines: "Callable[[Site], Lines] | None" = None
    ) -> None:
        self.effects: list[Effect] = []
        self.book, self.engine = Book(self.effects), Engine(self.effects)
        clock = Clock()
        settings = Settings(timeout_s, RECONNECT_S, TERM)
        self.controller = Controller(limits)
        self.shell = Shell(
            self.controller, self.book, self.engine, settings, clock.now,
            lines(self) if lines is not None else None,
        )  # fmt: skip
        self.host = Host(self.shell, clock, TOKEN, timeout_s)

    def events(self, kind: type) -> list[AnyEvent]:
        """What was decided upon."""
        return [entry.event for entry in self.book.entries if isinstance(entry.event, kind)]


@contextlib.asynccontextmanager
async def open_site(
    limits: Limits, *, timeout_s: float = 2.0, lines: Callable[[Site], Lines] | None = None
) -> AsyncIterator[tuple[Site, int]]:
    """A site that runs, and its port."""
    site = Site(limits, timeout_s, lines)
    port = await site.host.server.listen("127.0.0.1")
    site.shell.begin(JobSubmitted())
    running = asyncio.create_task(site.host.run({}, lambda _text: None))
    try:
        yield site, port
    finally:
        await cancelled(running)
        await site.host.server.close()


class Agent:
    """An agent that is there, gives signs of life, and remembers what it was told."""

    def __init__(self, node: str, store: Store | None = None) -> None:
        self.node, self._store = node, store
        self.told: list[ToAgent | Question | ToClient] = []
        self.connection: ClientConnection | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def join(self, port: int, pulse_s: float = 0.1) -> Self:
        """Connect, and be ready."""
        self.connection = await dial(port)
        await send(self.connection, hello(self.node))
        await send(self.connection, Fact(seq=1, event=ready(self.node, self._store)))
        tasks = (self._hear(self.connection), self._live(self.connection, pulse_s))
        self._tasks = [asyncio.create_task(task) for task in tasks]
        return self

    async def _hear(self, connection: ClientConnection) -> None:
        kinds = ToAgent | Question | ToClient
        async for data in connection:
            message = msgspec.msgpack.decode(data, type=kinds)  # type: ignore[arg-type]
            self.told.append(message)
            await self.obey(message)

    async def obey(self, message: ToAgent | Question | ToClient) -> None:
        """Nothing is done."""

    async def _live(self, connection: ClientConnection, pulse_s: float) -> None:
        while True:
            await connection.pong()
            await asyncio.sleep(pulse_s)

    def was_told(self, kind: type) -> bool:
        """Whether such a message has come."""
        return any(isinstance(message, kind) for message in list(self.told))

    async def leave(self) -> None:
        """Be gone."""
        await cancelled(*self._tasks)
        if self.connection is not None:
            self.connection.transport.abort()


# ── the network ──


class Proxy:
    """Carries bytes between agents and a server, each way as the test says: `hold_up`, `hold_down`
    stop a direction (nothing is read, so the sender's buffers fill), `cut` ends connections."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._flows = {"up": asyncio.Event(), "down": asyncio.Event()}
        self.delay_s = 0.0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        for flow in self._flows.values():
            flow.set()

    async def listen(self) -> int:
        """Start; the port."""
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0, limit=1 << 16)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def hold(self, *directions: str) -> None:
        """From now on nothing moves this way."""
        for direction in directions:
            self._flows[direction].clear()

    def release(self) -> None:
        """Everything moves again."""
        for flow in self._flows.values():
            flow.set()

    def cut(self) -> None:
        """Both ends are told that it is over."""
        for writer in self._writers:
            writer.transport.abort()

    async def close(self) -> None:
        """End."""
        assert self._server is not None
        self._server.close()
        self.cut()
        await cancelled(*self._tasks)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(
            "127.0.0.1", self._target, limit=1 << 16
        )
        self._writers += [writer, far_writer]
        for pumped in (
            self._pump(reader, far_writer, self._flows["up"]),
            self._pump(far_reader, writer, self._flows["down"]),
        ):
            task = asyncio.create_task(pumped)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, flow: asyncio.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while True:
                await flow.wait()
                data = await source.read(1 << 16)
                await flow.wait()
                await asyncio.sleep(self.delay_s)
                if not data:
                    break
                sink.write(data)
                await sink.drain()
        sink.close()


@contextlib.asynccontextmanager
async def proxied(port: int) -> AsyncIterator[tuple[Proxy, int]]:
    """A proxy in front of this port, and its own port."""
    proxy = Proxy(port)
    try:
        yield proxy, await proxy.listen()
    finally:
        await proxy.close()
