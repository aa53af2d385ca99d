"""Storage processes as an agent starts them, with arenas that the test writes like a worker."""

import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from holdfast.agent.storage import protocol
from holdfast.checkpoint.arena import Arena, Cell, CellHeader, StatePart
from holdfast.checkpoint.index import Index, Leaf
from holdfast.checkpoint.key import Key
from holdfast.checkpoint.seal import seal_of
from holdfast.checkpoint.storage_page import Peer, StoragePage, WorkerInfo
from holdfast.checkpoint.tiers import SnapshotFlag
from tests.more import MORE
from tests.patience import PATIENCE_S
from tests.warm import Module

TOKEN = "a secret of the job"
ROUNDS = 30 if MORE else 3  # kills at random moments


class Site:
    """One node: memory that stays, and a storage process that may be killed and started again."""

    def __init__(self, folder: Path, ranks: int = 1, **setup: object) -> None:
        self.arena_fds = [Arena.create() for _ in range(ranks)]
        self.storage_page_fds = [StoragePage.create() for _ in range(ranks)]
        self.arenas = [Arena(fd) for fd in self.arena_fds]
        self.storage_pages = [StoragePage(fd) for fd in self.storage_page_fds]
        self.listen(socket.create_server(("127.0.0.1", 0)))
        self._within: tuple[str, ...] = ()
        self._token = folder / "token"
        self._token.write_text(TOKEN)
        self._setup = setup
        self.process: subprocess.Popen[bytes] | None = None
        self.sock: socket.socket | None = None

    def listen(self, listener: socket.socket) -> None:
        """Here."""
        self.listener = listener
        self.address = "{}:{}".format(*listener.getsockname())

    def move(self, pid: int, listener: socket.socket) -> None:
        """To the network and the mounts of this process."""
        self.listener.close()
        self.listen(listener)
        self._within = ("nsenter", "--net", "--mount", "--target", str(pid))

    def start(self) -> None:
        """As the agent does."""
        self.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fds = (theirs.fileno(), self.listener.fileno(), *self.arena_fds, *self.storage_page_fds)
        module, words = "holdfast.agent.storage", [str(fds[0]), str(os.getpid())]
        if self._within:
            command = [*self._within, sys.executable, "-P", "-m", module, *words]
            self.process = subprocess.Popen(command, pass_fds=fds)
        else:
            self.process = Module(module, words, pass_fds=fds)
        theirs.close()
        setup = protocol.Setup(
            node="n", job="job", token_file=str(self._token), arenas=tuple(self.arena_fds),
            storage_pages=tuple(self.storage_page_fds), listener=self.listener.fileno(),
            places=(),
        )  # fmt: skip
        protocol.send(self.sock, msgspec.structs.replace(setup, **self._setup))

    def news(self, within_s: float = PATIENCE_S) -> protocol.AnyNews:
        """The next thing it says."""
        assert self.sock is not None
        readable, _, _ = select.select([self.sock], [], [], within_s)
        assert readable, "it says nothing"
        said = protocol.receive_news(self.sock)
        assert said is not None, "it is gone"
        return said

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None and self.sock is not None:
            self.process.kill()
            self.process.wait()
            self.sock.close()
            self.process = None

    def close(self) -> None:
        """Everything of it."""
        self.kill()
        self.listener.close()
        for fd in (*self.arena_fds, *self.storage_page_fds):
            os.close(fd)


@contextmanager
def sites(count: int, ranks: int = 1, **setup: object) -> Iterator[list[Site]]:
    """Nodes that are gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        made = [Site(Path(folder), ranks, **setup) for _ in range(count)]
        try:
            for site in made:
                site.start()
            yield made
        finally:
            for site in made:
                site.close()


def pattern(step: int, size: int) -> bytes:
    """Contents that tell steps apart, block by block."""
    block = step.to_bytes(8, "little") * 512
    return (block * (size // len(block) + 1))[:size]


def snapshot(
    arena: Arena, key: Key, rank: int, world_size: int, size: int, *, keep: Key | None = None,
    flags: int = SnapshotFlag.COPY, part: StatePart = StatePart.PRIVATE, sealed: bool = False,
) -> Cell:  # fmt: skip
    """One part of a snapshot, as a worker writes it."""
    cell = arena.target(part, (keep,) if keep else ())
    assert cell is not None
    own = part is StatePart.PRIVATE
    leaf = Leaf("t", "uint8", (size,), (0,), 0, size, f"{part.name}.x", (size,), (0,), own=own)
    index = msgspec.msgpack.encode(Index({}, [leaf]))
    data = pattern(key.step, size) + index
    cell.reserve(len(data))
    cell.begin()
    cell.payload[: len(data)] = data
    header = CellHeader(key.attempt, key.step, rank, world_size, 7, size, len(index), flags)
    cell.commit(header, seal_of(data) if sealed else None)
    return cell


def introduce(site: Site, local_rank: int, info: WorkerInfo) -> None:
    """The worker of this local rank says who it is."""
    site.storage_pages[local_rank].introduce(info)


def ring(made: list[Site], attempt: int = 1, copies: int = 1, parent: Key | None = None) -> None:
    """One rank a node, each with the next ones as peers."""
    world = len(made)
    for rank, site in enumerate(made):
        others = [(rank + step) % world for step in range(1, copies + 1)]
        peers = tuple(Peer(other, made[other].address, 0) for other in others)
        info = WorkerInfo(
            attempt=attempt, rank=rank, world_size=world, local_world_size=1,
            parent=parent, peers=peers,
        )  # fmt: skip
        introduce(site, 0, info)
