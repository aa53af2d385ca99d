"""The controller's end of the wire: nobody unknown, nothing twice, garbage harmless."""

import asyncio
import contextlib
import logging
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from holdfast.drivers.links import Links
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus

from holdfast import tls
from holdfast.errors import Error
from holdfast.events import CheckpointCommitted, Store
from holdfast.messages import (
    PROTOCOL,
    Ack,
    AskStatus,
    Done,
    Fact,
    FromReplica,
    Hello,
    Keep,
    Kept,
    Report,
    Stop,
    StopJob,
    ToAgent,
    ToClient,
    ToController,
    ToReplica,
    Welcome,
    WorkersStopped,
)

TOKEN = "a-secret"
COMMITTED = CheckpointCommitted(node="m", tier="shared", attempt=1, step=5, seconds=1.0, bytes=5)
STOPPED = WorkersStopped(node="n", attempt=1, store=Store("h", 1, True))


class Ear:
    """Listens and remembers."""

    def __init__(self) -> None:
        self.facts: list[tuple[str, int]] = []
        self.reports: list[Report] = []
        self.stops: list[StopJob] = []
        self.broken: list[str] = []

    def hello(self, hello: Hello) -> bool:
        return hello.node != "lost"

    def orders_for(self, node: str) -> list[ToAgent]:
        return [Stop(attempt=1, grace_s=0.0)] if node == "n" else []

    def fact(self, node: str, fact: Fact) -> None:
        self.facts.append((node, fact.seq))

    def disconnected(self, node: str) -> None:
        self.broken.append(node)

    def report(self, report: Report) -> None:
        self.reports.append(report)

    def client(self, message: StopJob | AskStatus) -> ToClient:
        if isinstance(message, StopJob):
            self.stops.append(message)
        return Done()


def hello(node: str = "n", protocol: int = PROTOCOL) -> Hello:
    return Hello(
        protocol=protocol,
        node=node,
        name=node,
        address="h",
        workers=1,
        pid=1,
        attempt=0,
        running=False,
    )


async def send(connection: ClientConnection, message: ToController) -> None:
    await connection.send(msgspec.msgpack.encode(message))


async def receive(connection: ClientConnection) -> ToAgent | ToReplica | ToClient:
    data = await asyncio.wait_for(connection.recv(), 10)
    assert isinstance(data, bytes)
    kinds = ToAgent | ToReplica | ToClient
    found: ToAgent | ToReplica | ToClient = msgspec.msgpack.decode(data, type=kinds)
    return found


def with_links(test: Callable[[Links, Ear, int], Awaitable[None]]) -> None:
    async def run() -> None:
        ear = Ear()
        links = Links(ear, TOKEN)
        port = await links.listen("127.0.0.1")
        try:
            await test(links, ear, port)
        finally:
            await links.close()

    asyncio.run(run())


def dial(port: int, token: str | None = TOKEN) -> connect:
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    return connect(f"ws://127.0.0.1:{port}/", additional_headers=headers, proxy=None)


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x"])
def test_nobody_gets_in_without_the_token(token: str | None) -> None:
    async def test(_links: Links, ear: Ear, port: int) -> None:
        with pytest.raises(InvalidStatus) as raised:
            async with dial(port, token):
                pass
        assert raised.value.response.status_code == 401
        assert ear.facts == []

    with_links(test)


def test_an_agent_is_welcomed_and_told_what_holds() -> None:
    async def test(_links: Links, _ear: Ear, port: int) -> None:
        async with dial(port) as agent:
            await send(agent, hello())
            assert await receive(agent) == Welcome(protocol=PROTOCOL, acked=0, known=True)
            assert await receive(agent) == Stop(attempt=1, grace_s=0.0)

    with_links(test)


@pytest.mark.parametrize("who", [hello("lost"), hello("n", protocol=PROTOCOL + 1)])
def test_a_lost_node_or_one_of_another_protocol_is_turned_away(who: Hello) -> None:
    async def test(_links: Links, _ear: Ear, port: int) -> None:
        async with dial(port) as agent:
            await send(agent, who)
            welcome = await receive(agent)
            assert isinstance(welcome, Welcome)
            assert not welcome.known

    with_links(test)


def test_a_fact_sent_twice_over_two_connections_is_heard_once() -> None:
    async def test(links: Links, ear: Ear, port: int) -> None:
        for _ in range(2):
            async with dial(port) as agent:
                await send(agent, hello("m"))
                await receive(agent)
                await send(agent, Fact(seq=1, event=COMMITTED))
                await send(agent, Fact(seq=2, event=COMMITTED))
                await send(agent, AskStatus())
                await receive(agent)
        assert ear.facts == [("m", 1), ("m", 2)]
        await links.acknowledge("m", 2)
        async with dial(port) as agent:
            await send(agent, hello("m"))
            assert await receive(agent) == Welcome(protocol=PROTOCOL, acked=2, known=True)
            await send(agent, Fact(seq=2, event=COMMITTED))
            assert await receive(agent) == Ack(seq=2)

    with_links(test)


GET = "GET / HTTP/1.1\r\nHost: x\r\n"
UPGRADE = GET + "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
KEY = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
GIVEN = f"Authorization: Bearer {TOKEN}\r\n"
REQUESTS = {
    "": b"",
    "two tokens": UPGRADE + KEY + GIVEN * 2,
    "two wrong tokens": UPGRADE + KEY + "Authorization: a\r\nAuthorization: b\r\n",
    "a token that is no text": UPGRADE + KEY + "Authorization: Bearer \xff\xfe\r\n",
    "no path": "GET\r\n",
    "a path that is no text": "GET \xff\xff HTTP/1.1\r\n" + GIVEN,
    "another method": "POST / HTTP/1.1\r\n" + GIVEN,
    "another protocol": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n",
    "no upgrade": GET + GIVEN,
    "no key": UPGRADE + GIVEN,
    "two keys": UPGRADE + KEY * 2 + GIVEN,
    "a key that is none": UPGRADE + "Sec-WebSocket-Key: x\r\n" + GIVEN,
    "another version": UPGRADE.replace("13", "99") + KEY + GIVEN,
    "an odd subprotocol": UPGRADE + KEY + GIVEN + "Sec-WebSocket-Protocol: ,;\r\n",
    "a body": UPGRADE + KEY + GIVEN + "Content-Length: 5\r\n",
    "a body in parts": UPGRADE + KEY + GIVEN + "Transfer-Encoding: chunked\r\n",
    "many headers": UPGRADE + KEY + "".join(f"X-{n}: y\r\n" for n in range(500)) + GIVEN,
    "a huge header": UPGRADE + KEY + f"X: {'y' * 100_000}\r\n" + GIVEN,
}


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("end", ["\r\n", ""])
def test_a_request_that_is_none_is_refused_without_a_word_in_the_log(
    request_: str | bytes, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    sent = request_ if isinstance(request_, bytes) else (request_ + end).encode("latin-1")

    async def test(_links: Links, ear: Ear, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        writer.write_eof()
        answer = b""
        with contextlib.suppress(ConnectionError):
            answer = await asyncio.wait_for(reader.read(), 30)
        assert answer[:12] in (b"", *(b"HTTP/1.1 %d" % status for status in (400, 401, 426, 431)))
        writer.close()
        async with dial(port) as agent:
            await send(agent, hello("m"))
            assert isinstance(await receive(agent), Welcome)
        assert (ear.stops, ear.reports, ear.facts) == ([], [], [])

    with_links(test)
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == []


def test_two_tokens_are_none() -> None:
    async def test(_links: Links, _ear: Ear, port: int) -> None:
        twice = [("Authorization", f"Bearer {TOKEN}")] * 2
        with pytest.raises(InvalidStatus) as raised:
            async with connect(f"ws://127.0.0.1:{port}/", additional_headers=twice, proxy=None):
                pass
        assert raised.value.response.status_code == 401

    with_links(test)


NESTED = b"\x82\xa4type\xa9AskStatus\xa1x" + b"\x91" * 100_000


@pytest.mark.parametrize("garbage", [b"", b"\xff" * 50, "text", b"\x81\xa4type\xa5Hello", NESTED])
def test_garbage_closes_that_connection_and_no_other(garbage: bytes | str) -> None:
    async def test(_links: Links, ear: Ear, port: int) -> None:
        async with dial(port) as good, dial(port) as bad:
            await send(good, hello("m"))
            await receive(good)
            await bad.send(garbage)
            with pytest.raises(ConnectionClosed):
                await asyncio.wait_for(bad.recv(), 10)
            await send(good, Fact(seq=1, event=COMMITTED))
            await send(good, AskStatus())
            assert await receive(good) == Done()
        assert ear.facts == [("m", 1)]

    with_links(test)


WHOLE = msgspec.msgpack.encode(Fact(seq=1, event=STOPPED))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_damaged_message_is_understood_or_refused_and_said_so(data: st.DataObject) -> None:
    """Cut off, or with bytes that are others: never anything but `Links` saying why."""
    damaged = bytearray(WHOLE[: data.draw(st.integers(0, len(WHOLE)))])
    for at in data.draw(st.lists(st.integers(0, len(WHOLE) - 1), max_size=4)):
        damaged[at : at + 1] = data.draw(st.binary(max_size=3))

    async def test(links: Links, ear: Ear, _port: int) -> None:
        wire = Wire([msgspec.msgpack.encode(hello()), bytes(damaged)])
        await links._serve(wire)  # type: ignore[arg-type]
        assert ear.broken == ["n"]
        assert wire.closed in ([], [1007]) and (wire.closed or ear.facts or len(wire.sent) > 1)

    with_links(test)


class Wire:
    """A connection on which these messages come, and then its end."""

    def __init__(self, coming: list[bytes]) -> None:
        self.coming, self.sent, self.closed = coming, list[bytes](), list[int]()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for message in self.coming:
            yield message

    async def send(self, data: bytes) -> None:
        self.sent.append(data)

    async def close(self, code: int, _reason: str) -> None:
        self.closed.append(code)


@pytest.mark.parametrize(
    "message",
    [
        Fact(seq=1, event=msgspec.structs.replace(COMMITTED, seconds=float("nan"))),
        Fact(seq=1, event=msgspec.structs.replace(COMMITTED, node="another")),
        Fact(seq=-1, event=COMMITTED),
        Fact(seq=2**63, event=COMMITTED),
        *map(hello, ("", "../../x", "a\0b\x1b[31m", "n" * 300, "m\n")),
    ],
    ids=repr,
)
def test_what_no_agent_would_say_is_not_taken(message: ToController) -> None:
    """A NaN would be null in the journal, and end whoever replays it."""

    async def test(links: Links, ear: Ear, _port: int) -> None:
        wire = Wire([*map(msgspec.msgpack.encode, (hello("m"), message))])
        await links._serve(wire)  # type: ignore[arg-type]
        assert (wire.closed, ear.facts) == ([1007], [])

    with_links(test)


def test_a_fact_before_hello_is_not_taken() -> None:
    async def test(_links: Links, ear: Ear, port: int) -> None:
        async with dial(port) as agent:
            await send(agent, Fact(seq=1, event=STOPPED))
            await send(agent, StopJob(by="me", now=True))
            assert await receive(agent) == Done()
        assert ear.facts == []
        assert ear.stops == [StopJob(by="me", now=True)]

    with_links(test)


def test_what_a_keeper_says_is_heard_with_its_name_and_that_of_a_stranger_is_not() -> None:
    async def test(links: Links, _ear: Ear, port: int) -> None:
        heard: list[tuple[str, FromReplica]] = []
        links.on_kept = lambda node, message: heard.append((node, message))
        async with dial(port) as keeper, dial(port) as stranger:
            await send(stranger, Kept(seq=7, term=9))
            await send(stranger, AskStatus())
            await receive(stranger)
            await send(keeper, hello("m"))
            await receive(keeper)
            await links.send("m", Keep(first=0, lines=(b"{}\n",), term=1))
            assert await receive(keeper) == Keep(first=0, lines=(b"{}\n",), term=1)
            await send(keeper, Kept(seq=0, term=1))
            await send(keeper, AskStatus())
            await receive(keeper)
        assert heard == [("m", Kept(seq=0, term=1))]

    with_links(test)


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """HOLDFAST_TLS with a certificate of its own for 127.0.0.1."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    new = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=127.0.0.1",
    ]
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run([*new, *files], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "ca.pem").write_bytes((tmp_path / "cert.pem").read_bytes())
    monkeypatch.setenv(tls.VARIABLE, str(tmp_path))
    return tmp_path


def test_with_tls_an_agent_is_welcomed_and_plain_text_is_not(certificate: Path) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}

    async def test(_links: Links, _ear: Ear, port: int) -> None:
        url = f"{tls.scheme()}://127.0.0.1:{port}/"
        trusted = connect(url, additional_headers=headers, proxy=None, ssl=tls.client_context())
        async with trusted as agent:
            await send(agent, hello("m"))
            assert isinstance(await receive(agent), Welcome)
        with pytest.raises((InvalidMessage, ConnectionClosed, OSError)):
            async with dial(port):
                pass

    assert (certificate / "key.pem").exists()
    with_links(test)


def test_a_missing_certificate_is_an_error_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(tls.VARIABLE, str(tmp_path))
    for context in (tls.server_context, tls.client_context):
        with pytest.raises(Error) as raised:
            context()
        assert raised.value.slug == "tls-unusable"
