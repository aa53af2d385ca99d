"""The way to a cluster that a kubeconfig describes: a proxy, another name, somebody else's."""

import asyncio
import contextlib
import shutil
import ssl
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.drivers.kubernetes import api as client
from holdfast.drivers.kubernetes.api import opened
from holdfast.drivers.kubernetes.cluster import ApiError
from holdfast.errors import Error

ANSWER = b'{"gitVersion":"v1.36.2"}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
NAME = "api.internal"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAUSE_S", 0.001)


def use(
    monkeypatch: pytest.MonkeyPatch, folder: Path, cluster: dict[str, Any], **user: Any
) -> None:
    """A kubeconfig with this cluster and user."""
    said = {
        "clusters": [{"name": "a", "cluster": cluster}],
        "users": [{"name": "a", "user": {"token": "admin", **user}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "current-context": "a",
    }
    (folder / "config").write_text(yaml.safe_dump(said))
    monkeypatch.setenv("KUBECONFIG", str(folder / "config"))


def heard(
    then: Callable[[int], Awaitable[None]], context: ssl.SSLContext | None = None
) -> list[str]:
    """The lines that a server hears, which answers everything with its version."""
    lines: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := (await reader.readline()).decode().strip():
            lines.append(line)
        writer.write(HEAD % len(ANSWER) + ANSWER)
        writer.close()

    async def whole() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
            await then(server.sockets[0].getsockname()[1])

    asyncio.run(whole())
    return lines


async def ask() -> None:
    await (await opened()).close()


def test_a_proxy_is_used_though_the_environment_names_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def then(port: int) -> None:
        proxy = f"http://127.0.0.1:{port}"
        use(monkeypatch, tmp_path, {"server": "http://cluster.invalid", "proxy-url": proxy})
        await ask()

    assert heard(then)[0] == "GET http://cluster.invalid/version HTTP/1.1"


@pytest.mark.parametrize(
    ("proxy", "slug"),
    [("http://127.0.0.1:1", "cluster-unreachable"), ("carrier://pigeon", "kubeconfig-unusable")],
)
def test_a_proxy_that_is_of_no_use_is_named(
    proxy: str, slug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, tmp_path, {"server": "http://cluster.invalid", "proxy-url": proxy})
    with pytest.raises(Error) as caught:
        asyncio.run(ask())
    assert caught.value.slug == slug and proxy.partition("//")[2] in caught.value.why


def test_we_act_as_whom_the_user_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def then(port: int) -> None:
        server = {"server": f"http://127.0.0.1:{port}"}
        user = {"as": "eve", "as-groups": ["x", "y"], "as-user-extra": {"a/b": ["1"]}}
        use(monkeypatch, tmp_path, server, **user)
        await ask()

    said = [line.lower() for line in heard(then)]
    assert "impersonate-user: eve" in said and "impersonate-extra-a%2fb: 1" in said
    assert [line[-1] for line in said if line.startswith("impersonate-group")] == ["x", "y"]


def test_a_refusal_that_does_not_end_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a pod behind the proxy of the API, that fills our memory."""
    sent = list[int]()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD % len(ANSWER) + ANSWER)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 500 Internal Server Error\r\n\r\nno figures ")
        with contextlib.suppress(OSError):
            while len(sent) < 1_000:
                writer.write(b"x" * (1 << 16))
                await writer.drain()
                sent.append(1 << 16)
        writer.close()

    async def whole() -> None:
        async with await asyncio.start_server(endless, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            use(monkeypatch, tmp_path, {"server": f"http://127.0.0.1:{port}"})
            api = await opened()
            with pytest.raises(ApiError, match="no figures"):
                await api.read("/proxy", 1 << 20)
            await api.close()

    asyncio.run(whole())
    assert sum(sent) < 32 << 20


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """One for a name that leads nowhere."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -keyout key.pem -out cert.pem"
    names = ["-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}"]
    subprocess.run([*words.split(), *names], cwd=tmp_path, check=True, capture_output=True)
    return tmp_path


@pytest.mark.parametrize("named", [True, False])
def test_a_server_is_known_by_the_name_that_is_said(
    named: bool, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    asked: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: asked.append(name)

    async def then(port: int) -> None:
        said = {"server": f"https://127.0.0.1:{port}", "certificate-authority": "cert.pem"}
        use(monkeypatch, certificate, said | ({"tls-server-name": NAME} if named else {}))
        if named:
            await ask()
            return
        with pytest.raises(Error) as caught:
            await ask()
        assert "certificate" in caught.value.why

    lines = heard(then, context)
    assert bool(lines) is named and (NAME in asked) is named
