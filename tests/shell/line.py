"""What a client says to the server, byte by byte, and a connection that needs no network."""

import asyncio

from holdfast.shell.server import Connection, Server
from tests.shell.site import TOKEN

GET = "GET / HTTP/1.1\r\nHost: x\r\n"
UPGRADE = GET + "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
KEY = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
GIVEN = f"Authorization: Bearer {TOKEN}\r\n"


class Line:
    """A connection without a network: what is said arrives at once, in one piece."""

    def __init__(self, server: Server) -> None:
        self.connection = Connection(server)
        self.written = bytearray()
        self.transport = Transport(self.written, self.connection)
        self.connection.connection_made(self.transport)

    @staticmethod
    async def open(server: Server) -> "Line":
        """One that was let in."""
        line = Line(server)
        line.connection.data_received((UPGRADE + KEY + GIVEN + "\r\n").encode())
        assert line.written.startswith(b"HTTP/1.1 101")
        line.written.clear()
        return line

    def say(self, *messages: bytes) -> None:
        """Messages, in frames of their own."""
        self.connection.data_received(b"".join(map(frame, messages)))

    @property
    def closed(self) -> int | None:
        """The status with which it was closed."""
        rest = bytes(self.written)
        while rest:
            size, head = rest[1], 2
            if size >= 126:
                head = 4 if size == 126 else 10
                size = int.from_bytes(rest[2:head], "big")
            if rest[0] == 0x88:
                return int.from_bytes(rest[head : head + 2], "big")
            rest = rest[head + size :]
        return None


class Transport(asyncio.Transport):
    """Takes everything."""

    def __init__(self, written: bytearray, connection: Connection) -> None:
        super().__init__()
        self._written, self._connection = written, connection
        self.waiting_bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._written += data

    def abort(self) -> None:
        if not self._connection.gone.is_set():
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)

    def close(self) -> None:
        self.abort()

    def get_write_buffer_size(self) -> int:
        return self.waiting_bytes


def frame(payload: bytes, opcode: int = 2, *, fin: bool = True) -> bytes:
    """As a client sends it, with a mask that changes nothing."""
    head = bytes([(0x80 if fin else 0) | opcode])
    if len(payload) < 126:
        head += bytes([0x80 | len(payload)])
    elif len(payload) < 1 << 16:
        head += b"\xfe" + len(payload).to_bytes(2, "big")
    else:
        head += b"\xff" + len(payload).to_bytes(8, "big")
    return head + bytes(4) + payload
