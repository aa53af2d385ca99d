"""How the ranks of an attempt agree about snapshots: a connection of each one to rank 0.

After each step rank 0 tells all what is to become of it, and goes on; the others tell it when a
snapshot is whole. Nothing but these few bytes goes here, and nobody waits for the slowest rank,
which the training does anyway.
"""

import threading
from multiprocessing.connection import Connection
from typing import TypeVar

import msgspec

from holdfast import meeting

_WAIT_S = 60.0  # for the agent, which ends a worker whose peer is gone
Said = TypeVar("Said")


class PeerGoneError(ConnectionError):
    """Another rank has ended; its own agent tells of that."""


class Channel:
    """Connections of rank 0 to all others; of any other rank, the one to rank 0."""

    def __init__(self, rank: int, size: int, connections: tuple[Connection, ...]) -> None:
        self._rank, self.size, self._connections = rank, size, connections
        for connection in connections:
            meeting.be_patient(connection)

    def gather(self, mine: bytes) -> list[bytes]:
        """What all have, on all of them."""
        if self.size == 1:
            return [mine]
        if self._rank > 0:
            self._send(self._connections[0], mine)
            return msgspec.msgpack.decode(self.hear(), type=list[bytes])
        found = [mine, *map(self._receive, self._connections)]
        self.tell(msgspec.msgpack.encode(found))
        return found

    def tell(self, said: bytes) -> None:
        """Rank 0 to all others."""
        for connection in self._connections:
            self._send(connection, said)

    def hear(self) -> bytes:
        """What rank 0 has told."""
        return self._receive(self._connections[0])

    def report(self, said: bytes) -> None:
        """To rank 0, which takes it when it likes."""
        self._send(self._connections[0], said)

    def reports(self) -> list[bytes]:
        """What has been reported since; without waiting."""
        found = []
        for connection in self._connections:
            while connection.poll():
                found.append(self._receive(connection))
        return found

    def _send(self, connection: Connection, data: bytes) -> None:
        try:
            connection.send_bytes(data)
        except OSError as error:
            raise _gone(error) from error

    def _receive(self, connection: Connection) -> bytes:
        try:
            return connection.recv_bytes()
        except (OSError, EOFError) as error:
            raise _gone(error) from error


def _gone(error: BaseException) -> PeerGoneError:
    """Its death is the cause, and known to its agent; ours must not come first."""
    threading.Event().wait(_WAIT_S)
    return PeerGoneError(f"another rank is lost ({type(error).__name__})")
