"""A TCP proxy in front of an S3 server that breaks what it is told to break."""

import contextlib
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.patience import PATIENCE_S

HEAD_END = b"\r\n\r\n"
LENGTH = re.compile(rb"(?i)content-length: *(\d+)")


@dataclass(frozen=True)
class Answer:
    """The proxy answers itself, with this status and error code."""

    status: int
    code: str


@dataclass(frozen=True)
class Break:
    """The connection is reset after so many bytes of the real answer."""

    after: int


@dataclass(frozen=True)
class Silence:
    """Nothing is ever answered."""


Fault = Answer | Break | Silence | None
Choose = Callable[[bytes], Fault]  # from the first line of a request


@contextmanager
def proxied(target: tuple[str, int], choose: Choose) -> Iterator[str]:
    """The URL of a proxy that asks for each connection what is to become of it."""
    listener = socket.create_server(("127.0.0.1", 0))
    opened: list[socket.socket] = [listener]
    threads: list[threading.Thread] = []

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                opened.append(client)
                thread = threading.Thread(target=_serve, args=(client, target, choose, opened))
                threads.append(thread)
                thread.start()

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        host, port = listener.getsockname()
        yield f"http://{host}:{port}"
    finally:
        for one in opened:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in (acceptor, *threads):
            thread.join(PATIENCE_S)


def _serve(
    client: socket.socket, target: tuple[str, int], choose: Choose, opened: list[socket.socket]
) -> None:
    with contextlib.suppress(OSError), client:
        while request := _request(client):
            match choose(request.partition(b"\r\n")[0]):
                case Answer() as answer:
                    client.sendall(_answer(answer))
                    return
                case Silence():
                    client.recv(1)  # until the client or the test gives up
                    return
                case Break(after):
                    client.sendall(_ask(target, request, opened)[:after])
                    linger = struct.pack("ii", 1, 0)
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    return
                case None:
                    client.sendall(_ask(target, request, opened))
                    return


def _request(client: socket.socket) -> bytes:
    """One whole request; empty if the client has left."""
    data = b""
    while HEAD_END not in data:
        got = client.recv(65536)
        if not got:
            return b""
        data += got
    head, _, body = data.partition(HEAD_END)
    if b"100-continue" in head.lower():
        client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    found = LENGTH.search(head)
    length = int(found[1]) if found else 0
    chunks = [body]
    while sum(map(len, chunks)) < length:
        got = client.recv(1 << 20)
        if not got:
            return b""
        chunks.append(got)
    kept = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"expect:")]
    return b"\r\n".join([*kept, b"Connection: close"]) + HEAD_END + b"".join(chunks)


def _ask(target: tuple[str, int], request: bytes, opened: list[socket.socket]) -> bytes:
    with socket.create_connection(target) as server:
        opened.append(server)
        server.sendall(request)
        parts = []
        while got := server.recv(1 << 20):
            parts.append(got)
    return b"".join(parts)


def _answer(answer: Answer) -> bytes:
    body = f"<Error><Code>{answer.code}</Code><Message>{answer.code}</Message></Error>".encode()
    head = f"HTTP/1.1 {answer.status} X\r\nContent-Length: {len(body)}\r\nConnection: close"
    return head.encode() + HEAD_END + body
