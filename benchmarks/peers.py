"""How quickly a copy gets to another node, against the same bytes over a bare socket.

    .venv/bin/python benchmarks/peers.py [--quick] [--json] [--mib 1024] [--rounds 10]

Two nodes on the loopback interface, four processes that share this machine's cores. `socket` sends
from touched shared memory and receives straight into touched shared memory, no more; `holdfast` is
the time from the moment the snapshot is there until its storage page says that the peer has it
whole: found, offered, sent, checked against its seal and answered. Contestants take turns; `ratio`
is the median of the time over that of the socket in the same round.
"""

import argparse
import mmap
import os
import socket
import tempfile
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from holdfast.checkpoint.arena import CellHeader, StatePart
from holdfast.checkpoint.key import Key
from holdfast.checkpoint.storage_page import Peer, WorkerInfo
from holdfast.checkpoint.tiers import SnapshotFlag
from node import Node
from table import report

BLOCK = 4 << 20
TIMEOUT_S = 120.0
WARM_UP = 2  # both cells are touched


def main() -> None:
    args = _arguments()
    mib, rounds = (64, 3) if args.quick else (args.mib, args.rounds)
    times: dict[str, list[float]] = {"socket": [], "holdfast": []}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        nodes = [Node(Path(folder)) for _ in range(2)]
        bare = Bare(mib << 20)
        for number in range(rounds + WARM_UP):
            times["socket"].append(bare.send())
            times["holdfast"].append(pushed(nodes, number + 1, mib << 20))
        for node in nodes:
            node.end()
        bare.end()
    rows = {
        name: row(found[WARM_UP:], times["socket"][WARM_UP:], mib) for name, found in times.items()
    }
    report(f"A copy of {mib} MiB in another node", rows, as_json=args.json)


def row(found: list[float], floor: list[float], mib: int) -> dict[str, Any]:
    """One contestant's line."""
    pairs = zip(found, floor, strict=True)
    return {
        "n": len(found),
        "median_s": round(median(found), 4),
        "gb_per_s": round((mib << 20) / median(found) / 1e9, 3),
        "ratio": round(median(mine / other for mine, other in pairs), 3),
    }


def pushed(nodes: list[Node], step: int, size: int) -> float:
    """Seconds until the second node has a snapshot of the first."""
    owner, keeper = nodes
    storage_page = owner.storage_page
    if step == 1:
        peer = Peer(1, keeper.address, 0)
        info = WorkerInfo(
            attempt=1, rank=0, world_size=2, local_world_size=1, parent=None, peers=(peer,)
        )
        storage_page.introduce(info)
    key = Key(1, step)
    cell = owner.arena.target(StatePart.PRIVATE, (Key(1, step - 1),))
    assert cell is not None
    cell.reserve(size)
    cell.begin()
    cell.payload[:8] = step.to_bytes(8, "little")
    cell.commit(CellHeader(1, step, 0, 2, 7, size, 0, SnapshotFlag.COPY))
    cell.seal()
    began = time.perf_counter()
    while storage_page.newest_copied != key:
        assert time.perf_counter() - began < TIMEOUT_S, "it does not arrive"
        time.sleep(0.0005)
    return time.perf_counter() - began


class Bare:
    """A process that receives into touched memory, and the memory to send."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._memory = memory(size)
        self._pipe, theirs = get_context("spawn").Pipe()
        self._process = get_context("spawn").Process(target=receive, args=(size, theirs))
        self._process.start()
        self._sock = socket.create_connection(("127.0.0.1", self._pipe.recv()))

    def send(self) -> float:
        """Seconds until all of it is there."""
        view = memoryview(self._memory)
        began = time.perf_counter()
        for at in range(0, self._size, BLOCK):
            self._sock.sendall(view[at : at + BLOCK])
        self._pipe.recv()
        return time.perf_counter() - began

    def end(self) -> None:
        """Stop the process."""
        self._process.kill()
        self._process.join()


def receive(size: int, pipe: Connection) -> None:
    """Over and over."""
    view = memoryview(memory(size))
    with socket.create_server(("127.0.0.1", 0)) as server:
        pipe.send(server.getsockname()[1])
        sock, _ = server.accept()
    while True:
        at = 0
        while at < size:
            at += sock.recv_into(view[at : at + BLOCK])
        pipe.send(None)


def memory(size: int) -> mmap.mmap:
    """Touched shared memory."""
    fd = os.memfd_create("bare")
    os.ftruncate(fd, size)
    mapped = mmap.mmap(fd, size)
    mapped.madvise(23)
    return mapped


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="64 MiB, 3 rounds")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=10)
    return parser.parse_args()


if __name__ == "__main__":
    main()
