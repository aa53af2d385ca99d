"""The controller's end of the wire: nobody unknown, nothing twice, garbage harmless."""

import asyncio
import contextlib
import logging
import resource
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import connect
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
    Hello,
    Keep,
    Kept,
    Leave,
    Report,
    Stop,
    StopJob,
    ToController,
    Welcome,
    WorkersStopped,
)
from holdfast.shell import server as shell_server
from holdfast.shell.outbox import DEADLINE_S
from holdfast.shell.server import REPORT, Server
from tests.patience import PATIENCE_S
from tests.shell.line import GET, GIVEN, KEY, UPGRADE, Line, frame
from tests.shell.scene import TERM, hello
from tests.shell.site import TOKEN, Ear, answered, dial, receive, send, until, with_server

COMMITTED = CheckpointCommitted(node="m", tier="shared", attempt=1, step=5, seconds=1.0, bytes=5)
STOPPED = WorkersStopped(node="n", attempt=1, store=Store("h", 1, True))


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x"])
def test_nobody_gets_in_without_the_token(token: str | None) -> None:
    async def test(_server: Server, ear: Ear, port: int) -> None:
        with pytest.raises(InvalidStatus) as raised:
            async with dial(port, token):
                pass
        assert raised.value.response.status_code == 401
        assert ear.facts == []

    with_server(test)


def test_an_agent_is_welcomed_and_told_what_the_shell_has_for_it() -> None:
    async def test(_server: Server, ear: Ear, port: int) -> None:
        async with dial(port) as agent:
            await send(agent, hello())
            welcome = await receive(agent)
            assert isinstance(welcome, Welcome) and (welcome.acked, welcome.term) == (0, TERM)
            ear.wires["n"].send(Stop(attempt=1, grace_s=0.0))
            assert await receive(agent) == Stop(attempt=1, grace_s=0.0)

    with_server(test)


@pytest.mark.parametrize("who", [hello("lost"), hello("n", protocol=PROTOCOL + 1)])
def test_a_lost_node_or_one_of_another_protocol_is_turned_away(who: Hello) -> None:
    async def test(_server: Server, _ear: Ear, port: int) -> None:
        async with dial(port) as agent:
            await send(agent, who)
            welcome = await receive(agent)
            assert isinstance(welcome, Welcome)
            assert not welcome.known
            with pytest.raises(ConnectionClosed):
                await receive(agent)

    with_server(test, "lost")


def test_a_fact_sent_twice_over_two_connections_is_heard_once() -> None:
    async def test(_server: Server, ear: Ear, port: int) -> None:
        for _ in range(2):
            async with dial(port) as agent:
                await send(agent, hello("m"))
                await send(agent, Fact(seq=1, event=COMMITTED))
                await send(agent, Fact(seq=2, event=COMMITTED))
                await answered(agent)
        assert ear.facts == [("m", 1), ("m", 2)]
        ear.nodes.acknowledge("m", 2)
        async with dial(port) as agent:
            await send(agent, hello("m"))
            welcome = await receive(agent)
            assert isinstance(welcome, Welcome) and welcome.acked == 2
            await send(agent, Fact(seq=2, event=COMMITTED))
            assert await receive(agent) == Ack(seq=2, term=TERM)

    with_server(test)


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

    async def test(_server: Server, ear: Ear, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        writer.write_eof()
        answer = b""
        with contextlib.suppress(ConnectionError):
            answer = await asyncio.wait_for(reader.read(), 30)
        refused = (400, 401, 405, 426, 431)
        assert answer[:12] in (b"", *(b"HTTP/1.1 %d" % status for status in refused))
        writer.close()
        async with dial(port) as agent:
            await send(agent, hello("m"))
            assert isinstance(await receive(agent), Welcome)
        assert (ear.requests, ear.reports, ear.facts) == ([], [], [])

    with_server(test)
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == []


def test_two_tokens_are_none() -> None:
    async def test(_server: Server, _ear: Ear, port: int) -> None:
        twice = [("Authorization", f"Bearer {TOKEN}")] * 2
        with pytest.raises(InvalidStatus) as raised:
            async with connect(f"ws://127.0.0.1:{port}/", additional_headers=twice, proxy=None):
                pass
        assert raised.value.response.status_code == 401

    with_server(test)


NESTED = b"\x82\xa4type\xa9AskStatus\xa1x" + b"\x91" * 100_000


@pytest.mark.parametrize("garbage", [b"", b"\xff" * 50, "text", b"\x81\xa4type\xa5Hello", NESTED])
def test_garbage_closes_that_connection_and_no_other(garbage: bytes | str) -> None:
    async def test(_server: Server, ear: Ear, port: int) -> None:
        async with dial(port) as good, dial(port) as bad:
            await send(good, hello("m"))
            await receive(good)
            await bad.send(garbage)
            with pytest.raises(ConnectionClosed):
                await asyncio.wait_for(bad.recv(), 10)
            await send(good, Fact(seq=1, event=COMMITTED))
            await answered(good)
        assert ear.facts == [("m", 1)]

    with_server(test)


WHOLE = msgspec.msgpack.encode(Fact(seq=1, event=STOPPED))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_damaged_message_is_understood_or_refused_and_said_so(data: st.DataObject) -> None:
    """Cut off, or with bytes that are others: never anything but the server saying why."""
    damaged = bytearray(WHOLE[: data.draw(st.integers(0, len(WHOLE)))])
    for at in data.draw(st.lists(st.integers(0, len(WHOLE) - 1), max_size=4)):
        damaged[at : at + 1] = data.draw(st.binary(max_size=3))

    async def test(server: Server, ear: Ear, _port: int) -> None:
        line = await Line.open(server)
        line.say(msgspec.msgpack.encode(hello()), bytes(damaged))
        server.catch_up()
        heard = ear.facts or ear.answers or ear.reports or ear.requests
        assert line.closed == 1007 or (line.closed is None and heard)
        line.connection.connection_lost(None)
        assert ear.broken == ["n"]

    with_server(test)


@pytest.mark.parametrize(
    "message",
    [
        Fact(seq=1, event=msgspec.structs.replace(COMMITTED, seconds=float("nan"))),
        Fact(seq=1, event=msgspec.structs.replace(COMMITTED, node="another")),
        Fact(seq=-1, event=COMMITTED),
        Fact(seq=2**63, event=COMMITTED),
        *map(hello, ("m", "", "../../x", "a\0b\x1b[31m", "n" * 300, "m\n")),
    ],
    ids=repr,
)
def test_what_no_agent_would_say_is_not_taken(message: ToController) -> None:
    """A NaN would be null in the journal, and end whoever replays it."""

    async def test(server: Server, ear: Ear, _port: int) -> None:
        line = await Line.open(server)
        line.say(*map(msgspec.msgpack.encode, (hello("m"), message)))
        assert (line.closed, ear.facts) == (1007, [])

    with_server(test)


def test_a_fact_before_hello_is_not_taken() -> None:
    async def test(_server: Server, ear: Ear, port: int) -> None:
        async with dial(port) as agent:
            await send(agent, Fact(seq=1, event=STOPPED))
            await send(agent, StopJob(by="me", now=True))
            assert await receive(agent) == Done()
        assert ear.facts == []
        assert ear.requests == [StopJob(by="me", now=True)]

    with_server(test)


def test_what_a_replica_says_is_heard_with_its_name_and_that_of_a_stranger_is_not() -> None:
    async def test(_server: Server, ear: Ear, port: int) -> None:
        async with dial(port) as replica, dial(port) as stranger:
            await send(stranger, Kept(seq=7, term=9))
            await answered(stranger)
            await send(replica, hello("m"))
            await receive(replica)
            ear.wires["m"].send(Keep(first=0, lines=(b"{}\n",), term=1))
            assert await receive(replica) == Keep(first=0, lines=(b"{}\n",), term=1)
            await send(replica, Kept(seq=0, term=1))
            await answered(replica)
        assert ear.answers == [("m", Kept(seq=0, term=1))]

    with_server(test)


# ── before it is known who it is ──


@pytest.mark.parametrize("token", ["wrong", TOKEN])
def test_what_comes_along_with_the_request_is_not_heard(token: str) -> None:
    """It was parsed before the token was looked at."""

    async def test(_server: Server, ear: Ear, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        request = UPGRADE + KEY + f"Authorization: Bearer {token}\r\n\r\n"
        stop = msgspec.msgpack.encode(StopJob(by="nobody", now=True))
        writer.write(request.encode() + frame(b"", 9) + frame(stop))
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()
        assert ear.requests == []

    with_server(test)


def test_what_follows_a_request_that_was_refused_is_not_heard() -> None:
    async def test(server: Server, ear: Ear, _port: int) -> None:
        line = Line(server)
        line.connection.data_received((UPGRADE + KEY + "\r\n").encode())
        assert line.written.startswith(b"HTTP/1.1 401")
        line.say(msgspec.msgpack.encode(StopJob(by="nobody", now=True)))
        assert ear.requests == []
        line.connection.connection_lost(None)

    with_server(test)


@pytest.mark.parametrize(
    "said", ["", "G", GET, UPGRADE + KEY + GIVEN, UPGRADE + KEY + GIVEN + "\r\n"], ids=repr
)
def test_who_does_not_get_as_far_as_hello_is_dropped(
    said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte by byte, it would keep a place for ever."""
    monkeypatch.setattr(shell_server, "OPEN_S", 0.2)

    async def test(server: Server, _ear: Ear, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for byte in said.encode():
            writer.write(bytes([byte]))
            await writer.drain()
        with contextlib.suppress(ConnectionError):
            answer = await asyncio.wait_for(reader.read(), 30)
            assert answer[:12] in (b"", b"HTTP/1.1 101")
        await until(lambda: not server.connections)
        writer.close()

    with_server(test)


def test_an_agent_and_who_waits_for_an_answer_are_not_dropped_for_being_there_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shell_server, "OPEN_S", 2.0)

    async def test(_server: Server, _ear: Ear, port: int) -> None:
        async with dial(port) as agent, dial(port) as client, dial(port) as late:
            await send(agent, hello("m"))
            await receive(agent)
            await send(client, AskStatus())
            await receive(client)
            with pytest.raises(ConnectionClosed):
                await receive(late)
            await answered(agent)
            await send(client, AskStatus())
            await receive(client)

    with_server(test)


def test_one_that_is_accepted_while_the_server_closes_is_cut() -> None:
    async def story() -> None:
        server = Server(Ear(), TOKEN, asyncio.get_running_loop().time)
        port = await server.listen("127.0.0.1")
        opening = [asyncio.open_connection("127.0.0.1", port) for _ in range(50)]
        opened = asyncio.gather(*opening, return_exceptions=True)
        await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_S):
            await server.close()
            for found in await opened:
                if isinstance(found, tuple):
                    with contextlib.suppress(ConnectionError):
                        assert await found[0].read() == b""
                    found[1].close()
        assert server.connections == set()

    asyncio.run(story())


def test_one_that_takes_nothing_is_overdue_and_one_that_takes_a_little_is_not() -> None:
    async def test(server: Server, ear: Ear, _port: int) -> None:
        line = await Line.open(server)
        line.say(msgspec.msgpack.encode(hello()))
        line.transport.waiting_bytes = 40
        assert not line.connection.overdue(0.0)
        ear.wires["n"].send(Leave(reason="x"))
        assert not line.connection.overdue(DEADLINE_S - 1), "more was sent, of which some was taken"
        assert not line.connection.overdue(2 * DEADLINE_S - 2)
        assert line.connection.overdue(2 * DEADLINE_S)

    with_server(test)


# ── reports ──


def report(step: int) -> Report:
    return Report(node="n", attempt=step, workers=())


def test_of_the_reports_that_wait_the_newest_counts_and_none_holds_up_facts() -> None:
    async def test(server: Server, ear: Ear, _port: int) -> None:
        line = await Line.open(server)
        line.say(msgspec.msgpack.encode(hello()))
        flood = [msgspec.msgpack.encode(report(step)) for step in range(1_000)]
        line.say(*flood)
        assert ear.reports == []
        line.say(WHOLE)
        assert ear.facts == [("n", 1)], "at once"
        assert ear.reports == [report(999)], "what was said before is heard before"
        line.say(*flood)
        await until(lambda: len(ear.reports) > 1)
        assert ear.reports[1:] == [report(999)]

    with_server(test)


def test_every_report_that_waits_is_read_when_asked_for() -> None:
    async def test(server: Server, ear: Ear, _port: int) -> None:
        for node in ("a", "b"):
            line = await Line.open(server)
            said = msgspec.structs.replace(report(1), node=node)
            line.say(*map(msgspec.msgpack.encode, (hello(node), said)))
        server.catch_up()
        assert [found.node for found in ear.reports] == ["a", "b"]

    with_server(test)


def test_a_server_that_listens_again_reads_reports_again() -> None:
    async def test(server: Server, ear: Ear, _port: int) -> None:
        before = await Line.open(server)
        before.say(*map(msgspec.msgpack.encode, (hello(), report(1))))
        before.connection.connection_lost(None)
        await server.close()
        await server.listen_again()
        line = await Line.open(server)
        line.say(*map(msgspec.msgpack.encode, (hello(), report(2))))
        await until(lambda: report(2) in ear.reports)

    with_server(test)


def test_the_last_report_of_a_connection_that_breaks_is_heard() -> None:
    async def test(server: Server, ear: Ear, _port: int) -> None:
        line = await Line.open(server)
        line.say(*map(msgspec.msgpack.encode, (hello(), report(7))))
        line.connection.connection_lost(None)
        assert ear.reports == [report(7)] and ear.broken == ["n"]

    with_server(test)


@pytest.mark.parametrize("said", [b"\x84" + REPORT, b"\x84" + REPORT + b"\xff" * 40])
def test_a_report_that_is_none_ends_its_connection(said: bytes) -> None:
    async def test(server: Server, ear: Ear, _port: int) -> None:
        line = await Line.open(server)
        line.say(msgspec.msgpack.encode(hello()), said)
        await until(lambda: line.closed)
        assert line.closed == 1007 and ear.reports == []

    with_server(test)


def test_a_report_about_another_node_or_of_a_stranger_is_not_heard() -> None:
    async def test(server: Server, ear: Ear, _port: int) -> None:
        stranger, other = await Line.open(server), await Line.open(server)
        stranger.say(msgspec.msgpack.encode(report(1)))
        other.say(*map(msgspec.msgpack.encode, (hello("m"), report(1))))
        server.catch_up()
        assert ear.reports == []

    with_server(test)


# ── the end ──


def test_at_the_end_everybody_gets_what_was_queued_and_is_told() -> None:
    async def story() -> None:
        ear = Ear()
        server = Server(ear, TOKEN, asyncio.get_running_loop().time)
        port = await server.listen("127.0.0.1")
        async with dial(port) as agent:
            await send(agent, hello("m"))
            assert isinstance(await receive(agent), Welcome)
            ear.wires["m"].send(Leave(reason="the end"))
            closing = asyncio.create_task(server.close())
            assert await receive(agent) == Leave(reason="the end")
            with pytest.raises(ConnectionClosed):
                await receive(agent)
            await closing
        assert ear.broken == [], "nobody is told of what it did itself"

    asyncio.run(story())


def test_the_end_does_not_wait_for_who_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell_server, "CLOSE_S", 0.1)

    async def story() -> None:
        ear = Ear()
        server = Server(ear, TOKEN, asyncio.get_running_loop().time)
        port = await server.listen("127.0.0.1")
        _reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write((UPGRADE + KEY + GIVEN + "\r\n").encode())
        await until(lambda: server.connections)
        async with asyncio.timeout(PATIENCE_S):
            await server.close()
        writer.close()

    asyncio.run(story())


def test_a_controller_may_have_as_many_connections_as_its_system_allows() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(1_024, before[1]), before[1]))
        shell_server.allow_connections()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


# ── encryption ──


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

    async def test(_server: Server, _ear: Ear, port: int) -> None:
        url = f"{tls.scheme()}://127.0.0.1:{port}/"
        trusted = connect(url, additional_headers=headers, proxy=None, ssl=tls.client_context())
        async with trusted as agent:
            await send(agent, hello("m"))
            assert isinstance(await receive(agent), Welcome)
        with pytest.raises((InvalidMessage, ConnectionClosed, OSError)):
            async with dial(port):
                pass

    assert (certificate / "key.pem").exists()
    with_server(test)


def test_a_missing_certificate_is_an_error_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(tls.VARIABLE, str(tmp_path))
    for context in (tls.server_context, tls.client_context):
        with pytest.raises(Error) as raised:
            context()
        assert raised.value.slug == "tls-unusable"
