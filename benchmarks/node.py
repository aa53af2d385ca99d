"""A node without an agent: arena and storage page of one rank, and its storage process."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec

from holdfast.agent.storage import protocol
from holdfast.checkpoint.arena import Arena
from holdfast.checkpoint.storage_page import StoragePage


class Node:
    """From its start to `end`. The storage process also ends when this process does."""

    def __init__(self, folder: Path, places: tuple[protocol.DurablePlace, ...] = ()) -> None:
        """`places` are its durable tiers. A token is written into `folder`."""
        arena, storage_page = Arena.create(), StoragePage.create()
        self.arena, self.storage_page = Arena(arena), StoragePage(storage_page)
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{listener.getsockname()[1]}"
        token = folder / "token"
        token.write_text("benchmark")
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fds = (theirs.fileno(), listener.fileno(), arena, storage_page)
        command = [sys.executable, "-m", "holdfast.agent.storage", str(fds[0]), str(os.getpid())]
        self._process = subprocess.Popen(command, pass_fds=fds)
        theirs.close()
        setup = protocol.Setup(
            node="n", job="benchmark", token_file=str(token), arenas=(arena,),
            storage_pages=(storage_page,),
            listener=listener.fileno(), places=places,
        )  # fmt: skip
        protocol.send(self._sock, setup)
        listener.close()

    def committed(self) -> protocol.Committed:
        """Wait for the next checkpoint. Raises `RuntimeError` if it fails."""
        while True:
            news = msgspec.json.decode(
                self._sock.recv(protocol.PACKET_BYTES), type=protocol.AnyNews
            )
            match news:
                case protocol.Committed():
                    return news
                case protocol.SaveFailed(why=why):
                    raise RuntimeError(why)

    def end(self) -> None:
        """Stop the storage process."""
        self._process.kill()
        self._process.wait()
