"""Where the workers of one attempt tell each other what only they know: ports, mostly.

Rank 0 listens at the address that its attempt has for a rendezvous, a fresh one each time. Every
other rank says its part there, and all get the parts of all, in the order of ranks. So there is one
world per attempt: whoever is of another attempt, or does not know the job's key, is turned away.
Both sides prove that they know the key, which is made from the job's token and never sent.

Connections stay open as long as their owner likes: their end tells that a process is gone. Those of
the meeting that a worker has held before its script went on are in `kept`.
"""

import contextlib
import hashlib
import hmac
import os
import socket
import struct
import time
from collections.abc import Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import NamedTuple

import msgspec

KEY = "HOLDFAST_MEETING_KEY"
PATIENCE_S = 600.0  # for the slowest rank to begin
RETRY_S = 0.05
ANSWER_S = 10.0  # for one that has connected to say who it is
MESSAGE_BYTES = 1 << 20
# What comes of a stranger at the other end; Python 3.11 asserts that it gets a challenge.
STRANGE = (OSError, EOFError, AuthenticationError, AssertionError)


kept: list[Connection] = []


class Seat(NamedTuple):
    """Who meets where."""

    host: str
    port: int
    rank: int
    size: int
    attempt: int
    key: bytes

    @staticmethod
    def of(environ: Mapping[str, str]) -> "Seat":
        """That of a worker which has its rank."""
        return Seat(
            host=environ["MASTER_ADDR"],
            port=int(environ["MASTER_PORT"]),
            rank=int(environ["RANK"]),
            size=int(environ["WORLD_SIZE"]),
            attempt=int(environ["HOLDFAST_ATTEMPT"]),
            key=environ[KEY].encode(),
        )


class _Part(msgspec.Struct, frozen=True):
    rank: int
    attempt: int
    said: str


class PeersMet(NamedTuple):
    """What all said, by rank, and the connections: one to each other rank at rank 0, which has
    none to itself; elsewhere only the one to rank 0."""

    said: tuple[str, ...]
    connections: tuple[Connection, ...]

    def close(self) -> None:
        """Nobody waits for the end of anybody."""
        for connection in self.connections:
            connection.close()


def key_from(token: str) -> str:
    """The key of a job's meetings."""
    return hmac.new(token.strip().encode(), b"meeting", hashlib.sha256).hexdigest()


def meet(seat: Seat, said: str, patience_s: float = PATIENCE_S) -> PeersMet:
    """Say this, and hear what all say. Raises `TimeoutError` where one never comes, and `OSError`
    where the address is taken."""
    if seat.size == 1:
        return PeersMet((said,), ())
    until = time.monotonic() + patience_s
    return _host(seat, said, until) if seat.rank == 0 else _visit(seat, said, until)


def free_port(host: str) -> int:
    """One that is free now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as sock:
        return int(sock.getsockname()[1])


def _host(seat: Seat, said: str, until: float) -> PeersMet:
    parts: dict[int, tuple[str, Connection | None]] = {0: (said, None)}
    family = socket.AF_INET6 if ":" in seat.host else socket.AF_INET
    with socket.create_server((seat.host, seat.port), family=family, backlog=4096) as listener:
        while len(parts) < seat.size:
            listener.settimeout(max(0.01, until - time.monotonic()))
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                raise _absent(seat, parts) from None
            _hear(seat, sock, parts)
    everything = tuple(parts[rank][0] for rank in range(seat.size))
    connections = tuple(link for _, link in map(parts.__getitem__, range(1, seat.size)) if link)
    for connection in connections:
        with contextlib.suppress(OSError):  # it has died since: its agent tells of it
            connection.send_bytes(msgspec.json.encode(everything))
    return PeersMet(everything, connections)


def _hear(seat: Seat, sock: socket.socket, parts: dict[int, tuple[str, Connection | None]]) -> None:
    """One has connected; it is forgotten where it is none of ours."""
    connection = linked(sock, ANSWER_S)
    with contextlib.suppress(*STRANGE, msgspec.MsgspecError):
        deliver_challenge(connection, seat.key)
        answer_challenge(connection, seat.key)
        part = msgspec.json.decode(connection.recv_bytes(MESSAGE_BYTES), type=_Part)
        if part.attempt == seat.attempt and 0 < part.rank < seat.size and part.rank not in parts:
            parts[part.rank] = (part.said, connection)
            return
    connection.close()


def _visit(seat: Seat, said: str, until: float) -> PeersMet:
    why = ""
    while (left_s := until - time.monotonic()) > 0:
        try:
            sock = socket.create_connection((seat.host, seat.port), timeout=min(ANSWER_S, left_s))
            connection = linked(sock, left_s)
            answer_challenge(connection, seat.key)
            deliver_challenge(connection, seat.key)
            part = _Part(seat.rank, seat.attempt, said)
            connection.send_bytes(msgspec.json.encode(part))
            told = connection.recv_bytes(MESSAGE_BYTES * 16)
            return PeersMet(msgspec.json.decode(told, type=tuple[str, ...]), (connection,))
        except STRANGE as error:
            why = f"{type(error).__name__}: {error}"
        time.sleep(RETRY_S)
    raise TimeoutError(f"rank 0 at {seat.host}:{seat.port} cannot be reached: {why}")


def linked(sock: socket.socket, patience_s: float) -> Connection:
    """Blocking, but nobody is waited for longer than that."""
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(patience_s))
    return Connection(sock.detach())


def wait_for_end(connection: Connection) -> None:
    """Return when the other side has closed it, or is gone."""
    be_patient(connection)
    with contextlib.suppress(OSError, EOFError):
        while True:
            connection.recv_bytes(MESSAGE_BYTES)


def _timeval(seconds: float) -> bytes:
    whole = int(seconds)
    return struct.pack("@ll", whole, int((seconds - whole) * 1e6))


def _absent(seat: Seat, parts: dict[int, tuple[str, Connection | None]]) -> TimeoutError:
    missing = [rank for rank in range(seat.size) if rank not in parts]
    shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
    return TimeoutError(f"ranks {shown} have not connected to {seat.host}:{seat.port}")


def be_patient(connection: Connection) -> None:
    """From now on waiting for the other side has no end but its own."""
    with socket.socket(fileno=os.dup(connection.fileno())) as sock:
        sock.settimeout(None)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(0.0))
