"""Whether the API server answers from here: any answer counts but that it cannot."""

import asyncio
import contextlib
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.agent import witness
from holdfast.agent.witness import api_answers
from tests.patience import PATIENCE_S


@contextlib.asynccontextmanager
async def server(answer: bytes | None, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A port where `answer` is said to whoever asks; None: nothing is."""
    asked = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            if answer is None:
                await asked.wait()
            else:
                writer.write(answer)
                await writer.drain()
        writer.close()

    found = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    yield found.sockets[0].getsockname()[1]
    asked.set()
    found.close()


def asked(answer: bytes | None, tls: ssl.SSLContext | None = None) -> bool:
    async def ask() -> bool:
        async with server(answer, tls) as port:
            told = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}
            if tls is not None:
                told["KUBERNETES_SERVICE_PORT_HTTPS"] = str(port)
            return await api_answers(told)

    return asyncio.run(ask())


@pytest.mark.parametrize("status", ["200 OK", "401 Unauthorized", "403 Forbidden", "404 Not Found"])
def test_an_answer_is_one_whoever_we_are(status: str) -> None:
    assert asked(f"HTTP/1.1 {status}\r\n\r\n".encode())


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 500 Internal Server Error\r\n\r\n",
        b"HTTP/1.1 503 \r\n\r\n",
        b"HTTP/1.1 \r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"SSH-2.0-x\r\n",
        b"\xff" * 100_000,
        b"",
    ],
)
def test_what_says_that_it_cannot_or_is_no_web_server_does_not_answer(answer: bytes) -> None:
    assert not asked(answer)


def test_who_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness, "WITHIN_S", 0.2)
    assert not asked(None)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "no"},
        {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"},
    ],
)
def test_where_none_is_named_or_nobody_listens_there_is_no_answer(environ: dict[str, str]) -> None:
    assert not asyncio.run(api_answers(environ))


def test_a_certificate_that_nobody_has_signed_is_no_reason_to_say_no(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(witness, "WITHIN_S", PATIENCE_S)
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x"]
    subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    assert asked(b"HTTP/1.1 200 OK\r\n\r\n", context)
