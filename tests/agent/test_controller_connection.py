"""The agent's end of the wire against the controller's: facts arrive, old terms are not obeyed."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.frames import Frame, Opcode

from holdfast.agent import controller_connection
from holdfast.agent.controller_connection import ControllerConnection, Order, RejectedError
from holdfast.events import CheckpointCommitted
from holdfast.messages import (
    PROTOCOL,
    Ack,
    Fact,
    Hello,
    Leave,
    Report,
    Start,
    Stop,
    ToAgent,
    Welcome,
)
from holdfast.shell.host import cancelled
from holdfast.shell.server import Server
from tests.patience import PATIENCE_S
from tests.shell.scene import TERM, hello
from tests.shell.site import TOKEN, Ear, proxied, until


def committed(step: int) -> CheckpointCommitted:
    return CheckpointCommitted(node="n", tier="shared", attempt=1, step=step, seconds=1.0, bytes=5)


class Office:
    """A controller that says what the test wants, and knows how often it was connected to."""

    def __init__(self, *saying: ToAgent) -> None:
        self.saying = list(saying)
        self.hellos: list[Hello] = []
        self.facts: list[Fact] = []
        self.others: list[object] = []
        self.connections: set[ServerConnection] = set()

    async def serve(self, connection: ServerConnection) -> None:
        self.connections.add(connection)
        kinds = Hello | Fact | Report
        try:
            async for data in connection:
                match msgspec.msgpack.decode(data, type=kinds):  # type: ignore[arg-type]
                    case Hello() as said:
                        self.hellos.append(said)
                        for message in self.saying:
                            await connection.send(msgspec.msgpack.encode(message))
                    case Fact() as fact:
                        self.facts.append(fact)
                    case other:
                        self.others.append(other)
        finally:
            self.connections.discard(connection)


@contextlib.asynccontextmanager
async def controller(office: Office) -> AsyncIterator[int]:
    """It listens there."""
    async with serve(office.serve, "127.0.0.1", 0) as server:
        yield next(iter(server.sockets)).getsockname()[1]


def publish(folder: Path, port: int) -> None:
    (folder / "token").write_text(TOKEN)
    fresh = folder / "controller.new"
    fresh.write_text(json.dumps({"host": "127.0.0.1", "port": port}))
    fresh.replace(folder / "controller.json")


@contextlib.asynccontextmanager
async def linked(
    folder: Path,
) -> AsyncIterator[tuple[ControllerConnection, list[Order], "asyncio.Task[None]"]]:
    """A link that runs, the orders that came, and its task."""
    orders: list[Order] = []
    link = ControllerConnection(folder, hello, orders.append, lambda: ())
    running = asyncio.create_task(link.run())
    try:
        yield link, orders, running
    finally:
        await cancelled(running)


def welcome(term: int, *, known: bool = True, protocol: int = PROTOCOL) -> Welcome:
    return Welcome(protocol=protocol, acked=0, known=known, term=term, pulse_s=0.02)


def stop(term: int) -> Stop:
    return Stop(attempt=1, grace_s=0.0, term=term)


# ── terms ──


@pytest.mark.parametrize(
    "old",
    [welcome(4), welcome(4, known=False), welcome(4, protocol=PROTOCOL - 1), welcome(0)],
    ids=["welcomes", "has given it up", "of another protocol", "before terms were"],
)
def test_a_controller_of_an_older_term_is_left_at_once_and_none_of_its_orders_done(
    tmp_path: Path, old: Welcome
) -> None:
    async def story() -> None:
        new, replaced = Office(welcome(5)), Office(old, stop(9), Leave(reason="x", term=9))
        async with controller(new) as port, controller(replaced) as old_port:
            publish(tmp_path, port)
            async with linked(tmp_path) as (link, orders, running):
                await until(lambda: link.connected)
                publish(tmp_path, old_port)
                link.fact(committed(1))
                await until(lambda: new.facts)
                new.saying = []
                await cut(new)
                await until(lambda: len(replaced.hellos) >= 2, "it is left, and tried again")
                assert {said.obeyed for said in replaced.hellos} == {5}
                assert orders == [] and not running.done() and replaced.facts == []

    asyncio.run(story())


async def cut(office: Office) -> None:
    """It ends every connection it has."""
    for connection in list(office.connections):
        await connection.close()


def test_an_order_of_an_older_term_is_not_done_and_ends_the_connection(tmp_path: Path) -> None:
    async def story() -> None:
        office = Office(welcome(5), stop(5), stop(4), stop(5))
        async with controller(office) as port:
            publish(tmp_path, port)
            async with linked(tmp_path) as (_link, orders, _running):
                await until(lambda: len(office.hellos) == 2)
                assert orders in ([stop(5)], [stop(5)] * 2)
                assert office.hellos[1].obeyed == 5

    asyncio.run(story())


def test_a_controller_of_a_newer_term_is_obeyed_and_every_later_hello_says_so(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        office = Office(welcome(5))
        async with controller(office) as port:
            publish(tmp_path, port)
            async with linked(tmp_path) as (_link, orders, _running):
                await until(lambda: office.hellos)
                office.saying = [welcome(6), stop(6)]
                await cut(office)
                await until(lambda: orders == [stop(6)])
                await cut(office)
                await until(lambda: len(office.hellos) >= 3)
                assert [said.obeyed for said in office.hellos[:3]] == [0, 5, 6]

    asyncio.run(story())


@pytest.mark.parametrize("said", [welcome(5, known=False), welcome(5, protocol=PROTOCOL + 1)])
def test_a_controller_that_has_given_it_up_or_cannot_talk_to_it_ends_it(
    tmp_path: Path, said: Welcome
) -> None:
    async def story() -> None:
        async with controller(Office(said)) as port:
            publish(tmp_path, port)
            async with linked(tmp_path) as (_link, _orders, running):
                with pytest.raises(RejectedError):
                    await asyncio.wait_for(running, PATIENCE_S)

    asyncio.run(story())


# ── what is sent ──


@contextlib.asynccontextmanager
async def taken_in(folder: Path) -> AsyncIterator[tuple[Server, Ear, int]]:
    """The production server, with an ear."""
    ear = Ear()
    server = Server(ear, TOKEN, asyncio.get_running_loop().time)
    port = await server.listen("127.0.0.1")
    publish(folder, port)
    try:
        yield server, ear, port
    finally:
        for connection in list(server.connections):
            connection.abort("the test is over")
        await server.close()


def test_where_nothing_happens_signs_of_life_are_sent_and_nothing_else(tmp_path: Path) -> None:
    async def story() -> None:
        office = Office(welcome(5))
        kinds: list[Opcode] = []
        async with controller(office) as port:
            publish(tmp_path, port)
            async with linked(tmp_path) as (link, _orders, _running):
                await until(lambda: link.connected)
                (connection,) = office.connections
                heard = connection.protocol.recv_frame

                def note(found: Frame) -> None:
                    kinds.append(found.opcode)
                    heard(found)

                connection.protocol.recv_frame = note  # type: ignore[method-assign, assignment]
                await until(lambda: len(kinds) > 5)
                assert set(kinds) == {Opcode.PONG}
                assert office.facts == [] and office.others == []

    asyncio.run(story())


def test_a_fact_arrives_once_whatever_happens_to_its_connections(tmp_path: Path) -> None:
    async def story() -> None:
        async with taken_in(tmp_path) as (server, ear, port), proxied(port) as (proxy, far):
            publish(tmp_path, far)
            async with linked(tmp_path) as (link, _orders, _running):
                await until(lambda: link.connected)
                for step in range(1, 6):
                    link.fact(committed(step))
                    await until(lambda step=step: len(ear.facts) >= step)  # type: ignore[misc]
                    if step % 2:
                        ear.nodes.acknowledge("n", step)
                    connected = link.welcomes
                    proxy.cut()
                    await until(lambda known=connected: link.welcomes > known)  # type: ignore[misc]
                assert ear.facts == [("n", step) for step in range(1, 6)]
                ear.nodes.acknowledge("n", 5)
                await asyncio.wait_for(link.flush(), 30)
                assert len([c for c in server.connections if c.node]) == 1

    asyncio.run(story())


def test_an_acknowledged_fact_is_not_sent_again(tmp_path: Path) -> None:
    async def story() -> None:
        office = Office(welcome(5), Ack(seq=1, term=5))
        async with controller(office) as port:
            publish(tmp_path, port)
            async with linked(tmp_path) as (link, _orders, _running):
                link.fact(committed(1))
                link.fact(committed(2))
                await until(lambda: len(office.facts) >= 1)
                await cut(office)
                await until(lambda: len(office.hellos) == 2 and office.facts[-1].seq == 2)
                assert [fact.seq for fact in office.facts].count(1) <= 1

    asyncio.run(story())


def test_whoever_waits_continues_when_the_controller_has_every_fact(tmp_path: Path) -> None:
    async def story() -> None:
        office = Office(welcome(5))
        async with controller(office) as port:
            publish(tmp_path, port)
            async with linked(tmp_path) as (link, _orders, _running):
                await link.flush()  # nothing has happened
                link.fact(committed(1))
                waiting = asyncio.ensure_future(link.flush())
                await until(lambda: office.facts)
                assert not waiting.done()
                (connection,) = office.connections
                await connection.send(msgspec.msgpack.encode(Ack(seq=1, term=5)))
                await asyncio.wait_for(waiting, PATIENCE_S)

    asyncio.run(story())


def test_orders_come_in_their_order(tmp_path: Path) -> None:
    async def story() -> None:
        async with taken_in(tmp_path) as (_server, ear, _port):
            async with linked(tmp_path) as (link, orders, _running):
                await until(lambda: link.connected)
                said: list[Order] = [stop(TERM), Leave(reason="x", term=TERM), stop(TERM)]
                for order in said:
                    assert isinstance(order, Start | Stop | Leave)
                    ear.wires["n"].send(order)
                await until(lambda: len(orders) == 3)
                assert orders == said

    asyncio.run(story())


def test_a_fact_that_cannot_be_sent_does_not_leave_a_link_that_seems_well(tmp_path: Path) -> None:
    async def story() -> None:
        async with taken_in(tmp_path) as (_server, _ear, _port):
            async with linked(tmp_path) as (link, _orders, running):
                await until(lambda: link.connected)
                link.fact(msgspec.structs.replace(committed(1), name=object()))
                with pytest.raises(TypeError):
                    await asyncio.wait_for(running, PATIENCE_S)

    asyncio.run(story())


# ── a controller that is gone ──


def test_a_controller_that_hangs_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection stays open, and it answers nothing."""
    monkeypatch.setattr(controller_connection, "ANSWER_S", 1.0)

    async def story() -> None:
        async with taken_in(tmp_path) as (_server, _ear, port), proxied(port) as (proxy, far):
            publish(tmp_path, far)
            async with linked(tmp_path) as (link, _orders, _running):
                await until(lambda: link.connected)
                proxy.hold("up", "down")
                publish(tmp_path, port)
                await until(lambda: link.welcomes == 2, "the next one is found")

    asyncio.run(story())


def test_what_the_machine_of_the_controller_does_not_acknowledge_breaks_the_connection(
    tmp_path: Path,
) -> None:
    """Both ends ask their kernel to see to it: on loopback everything is acknowledged."""

    async def story() -> None:
        async with taken_in(tmp_path) as (server, _ear, _port):
            async with linked(tmp_path) as (link, _orders, _running):
                await until(lambda: link.connected)
                (ours,) = server.connections
                assert ours._transport is not None
                sock = ours._transport.get_extra_info("socket")
                watched = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                assert watched == 1_000 * 10
                assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1

    made: list[int] = []
    setting = controller_connection._let_the_kernel_watch

    def watch(connection: object) -> None:
        setting(connection)  # type: ignore[arg-type]
        sock = connection.transport.get_extra_info("socket")  # type: ignore[attr-defined]
        made.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(controller_connection, "_let_the_kernel_watch", watch)
        asyncio.run(story())
    assert made == [8_000]
